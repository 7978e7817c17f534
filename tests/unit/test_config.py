"""Settings from .properties files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kerolox.config import (
    SETTINGS_FILE_BYTES_MAX,
    camel,
    change_settings_file,
    load_settings,
    nearest,
    read_properties,
    setting_keys,
    setting_text,
    write_with_backup,
)
from kerolox.errors import ConfigError
from kerolox.properties import format_properties, parse_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    listen_port: int = field(default=1, metadata={"min": 0, "max": 65535})
    broker_ip: str = field(default="", metadata={"key": "brokerIP1"})
    flush_disk_type: str = field(default="ASYNC", metadata={"choices": ("ASYNC", "SYNC")})
    enabled: bool = False
    ratio: float = 0.5
    folder: Path | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ConfigError("ratio: above 1")


def load(overrides: dict[str, object] | None = None, **values: str) -> Settings:
    unused = {"sendMessageThreadPoolNums": "no pools", "old": "it is old", "older": "it is old"}
    return load_settings(Settings, values, where="b.conf", known_unused=unused, overrides=overrides)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c ", {"a": "b c "}),
        ("a:b", {"a": "b"}),
        ("a b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("# c\n! d\n\n   # e\na=1", {"a": "1"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=b\\\n   c\\\n\td", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e4\\uD83D\\uDE00", {"a": "ä😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("\ta\f=\f1", {"a": "1"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


def test_a_broken_escape_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 3: \\u12"):
        parse_properties("a=1\n\nb=\\u12")


def test_a_file_is_utf_8_or_else_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_bytes("\ufeffa=ä".encode())
    assert read_properties(path) == {"a": "ä"}
    path.write_bytes("a=ä".encode("latin-1"))
    assert read_properties(path) == {"a": "ä"}


def test_a_file_that_is_missing_or_huge_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.conf: can't be read: No such file"):
        read_properties(tmp_path / "none.conf")
    huge = tmp_path / "huge.conf"
    huge.write_bytes(bytes(SETTINGS_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"huge\.conf: larger than"):
        read_properties(huge)


def test_properties_are_written_as_lines() -> None:
    assert format_properties({"a": "1", "b": ""}) == "a=1\nb=\n"


def test_names_are_mapped_by_rule_or_by_metadata() -> None:
    assert camel("flush_disk_type") == "flushDiskType"
    assert camel("enabled") == "enabled"
    keys = setting_keys(Settings)
    assert keys["listenPort"] == "listen_port"
    assert keys["brokerIP1"] == "broker_ip"
    assert "brokerIp" not in keys


def test_values_become_what_their_fields_are() -> None:
    settings = load(
        listenPort="10911",
        brokerIP1="10.0.0.1",
        flushDiskType="SYNC",
        enabled="true",
        ratio="0.25",
        folder="/tmp/x",
        count="-3",
    )
    assert dataclasses.astuple(settings) == (
        10911,
        "10.0.0.1",
        "SYNC",
        True,
        0.25,
        Path("/tmp/x"),
        -3,
    )


def test_blanks_around_a_value_do_not_count() -> None:
    assert load(listenPort="10911  ", brokerIP1="a ").listen_port == 10911


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("listenPort", "10911 #mine", "'10911 #mine' ends in a comment"),
        ("brokerIP1", "10.0.0.1 ! mine", "ends in a comment"),
        ("listenPort", "", "'' is no whole number"),
        ("listenPort", "1e3", "'1e3' is no whole number"),
        ("listenPort", "0x10", "'0x10' is no whole number"),
        ("listenPort", "1_000", "'1_000' is no whole number"),
        ("listenPort", "٣", "is no whole number"),
        ("count", "9" * 19, "does not fit 64 bits"),
        ("count", "9" * 64, "does not fit 64 bits"),
        ("count", "9" * 65, "65 bytes are too many; the most is 64"),
        ("brokerIP1", "ä" * 513, "1026 bytes are too many; the most is 1024"),
        ("brokerIP1", "a\nb=c", "'a\\nb=c' has a control character"),
        ("folder", "/a\x00b", "'/a\\x00b' has a control character"),
        ("folder", "/" + "a" * (16 << 10), "the most is 16384"),
        ("listenPort", "-1", "-1 is too small; the least is 0"),
        ("listenPort", "65536", "65536 is too large; the most is 65535"),
        ("enabled", "True", "'True' is neither true nor false"),
        ("enabled", "1", "'1' is neither true nor false"),
        ("ratio", "half", "'half' is no number"),
        ("ratio", "nan", "'nan' is no finite number"),
        ("flushDiskType", "SYNCH", "'SYNCH' is none of ASYNC, SYNC (did you mean 'SYNC'?)"),
    ],
)
def test_a_wrong_value_is_an_error_with_file_and_key(key: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(**{key: text})
    assert str(raised.value).startswith(f"b.conf: {key}: ")
    assert reason in str(raised.value)


def test_a_rule_of_several_settings_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^b\.conf: ratio: above 1$"):
        load(ratio="1.5")


def test_an_unknown_key_is_an_error_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'listnPort' \(did you mean 'listenP"):
        load(listnPort="1")
    with pytest.raises(ConfigError, match=r"\(did you mean 'sendMessageThreadPoolNums'\?\)"):
        load(sendMessageThreadPool="1")
    with pytest.raises(ConfigError, match=r"unknown settings 'a'; 'zzzz'$"):
        load(zzzz="1", a="2")


def test_a_key_that_only_rocketmq_uses_is_a_warning(caplog) -> None:
    assert load(sendMessageThreadPoolNums="4") == Settings()
    load(sendMessageThreadPoolNums="4", old="", older="")
    assert [record.getMessage() for record in caplog.records] == [
        "b.conf: without effect: sendMessageThreadPoolNums (no pools)",
        "b.conf: without effect: sendMessageThreadPoolNums (no pools); old, older (it is old)",
    ]


def test_overrides_are_stronger_than_the_file_and_checked() -> None:
    assert load({"listen_port": 5, "count": None}, listenPort="4").listen_port == 5
    assert load({"folder": "/tmp/y"}).folder == Path("/tmp/y")
    with pytest.raises(ConfigError, match="option listen_port: 70000 is too large"):
        load({"listen_port": 70000})
    with pytest.raises(ConfigError, match=r"no setting 'listenport' \(did you mean 'listen_port'"):
        load({"listenport": 1})


def test_the_nearest_name_ignores_case() -> None:
    assert nearest("BROKERNAME", ["brokerName", "listenPort"]) == "brokerName"
    assert nearest("xyz", ["brokerName"]) is None


def test_settings_become_text_again() -> None:
    assert [setting_text(value) for value in (True, False, None, 3, Path("/a"))] == [
        "true",
        "false",
        "",
        "3",
        "/a",
    ]


def test_a_file_is_replaced_whole_and_its_old_text_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    write_with_backup(path, "one")
    assert sorted(p.name for p in path.parent.iterdir()) == ["topics.json"]
    write_with_backup(path, "zwei ä")
    assert path.read_text(encoding="utf-8") == "zwei ä"
    assert path.with_name("topics.json.bak").read_text() == "one"
    assert not path.with_name("topics.json.tmp").exists()


def test_three_of_many_unknown_keys_are_named_and_compared(monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("kerolox.config.nearest", lambda name, known: asked.append(name))
    with pytest.raises(ConfigError) as raised:
        load(**{f"listenPort{number}": "1" for number in range(5000)})
    assert len(asked) == 3
    assert len(str(raised.value)) < 200
    assert str(raised.value).endswith("; and 4997 more")


def test_a_name_too_long_for_a_setting_is_compared_with_none(monkeypatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, *_, **__: compared.append(name))
    for name in ("listenPort" * 7, "a" * 100_000):
        with pytest.raises(ConfigError) as raised:
            load(**{name: "1"})
        assert len(str(raised.value)) < 200
    assert compared == []


# -- files that are changed ---------------------------------------------------------------------
def changed(path: Path, **changes: str) -> None:
    change_settings_file(path, changes, header="# made here\n", check=lambda values: None)


def test_a_change_leaves_comments_order_and_other_keys_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(
        b"# mine: \xe4\r\n\r\n  traceOn : true\r\n! b\r\nb=1\\\r\n   2\r\nc=3\r\nb=4\r\nlast=x"
    )
    path.chmod(0o600)
    changed(path, traceOn="false", c="\u00fc\n", new="a\\b")
    assert path.read_bytes() == (
        b"# mine: \xe4\r\n\r\n  traceOn : false\r\n! b\r\nb=1\\\r\n   2\r\n"
        b"c=\\u00fc\\n\r\nb=4\r\nlast=x\r\nnew=a\\\\b\r\n"
    )
    assert path.with_name("broker.conf.bak").read_bytes().endswith(b"last=x")
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert modes == {"broker.conf": 0o600, "broker.conf.bak": 0o600}


def test_the_last_of_a_key_given_twice_is_changed_also_when_it_is_continued(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("b=1\n# between\n b \\\n  = 2\\\n 3\nc=4\n")
    changed(path, b="5")
    assert path.read_text() == "b=1\n# between\n b=5\nc=4\n"


def test_a_file_that_is_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "real.conf", tmp_path / "broker.conf"
    target.write_text("a=1\n")
    link.symlink_to(target)
    changed(link, a="2")
    assert link.is_symlink()
    assert target.read_text() == "a=2\n"


def test_a_file_that_is_made_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config" / "broker.properties"
    changed(path, a="1")
    assert path.read_text() == "# made here\na=1\n"
    before = path.stat().st_mtime_ns
    changed(path, a="1")
    assert path.stat().st_mtime_ns == before


def test_no_file_is_written_that_the_next_start_refuses(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    text = "# " + "x" * (SETTINGS_FILE_BYTES_MAX - 10) + "\na=1\n"
    path.write_text(text)
    changed(path, a="2")
    with pytest.raises(ConfigError, match=r"broker\.conf: would be larger than"):
        changed(path, a="2", b="1234")
    assert read_properties(path) == {"a": "2"}

    def refuse(values: dict[str, str]) -> None:
        raise ConfigError(f"no {values}")

    with pytest.raises(ConfigError, match=r"no \{'a': '3'\}"):
        change_settings_file(path, {"a": "3"}, header="", check=refuse)
    assert read_properties(path) == {"a": "2"}
