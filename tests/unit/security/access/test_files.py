"""The files of access control: which ones, in which order, and what a change does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.security.access import files as files_module
from kerolox.security.access.files import AclFiles, Places

SECRET = "Geheimnis-2718"


def accounts_of(*names: str, secret: str = SECRET, white: str = "") -> str:
    lines = [f"globalWhiteRemoteAddresses: [{white}]", "accounts:"]
    for name in names:
        lines += [f"- accessKey: account-{name}", f"  secretKey: {secret}"]
    return "\n".join(lines) + "\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    (folder / "acl").mkdir(parents=True)
    return folder


@pytest.fixture
def default(conf: Path) -> Path:
    path = conf / "plain_acl.yml"
    path.touch(0o600)
    return path


def files_of(conf: Path) -> AclFiles:
    return AclFiles(Places.of(str(conf.parent), ""))


def loaded(conf: Path) -> AclFiles:
    files = files_of(conf)
    files.load()
    return files


def names(files: AclFiles) -> list[str]:
    return sorted(key.removeprefix("account-") for key in files.accounts.by_key)


def settle(files: AclFiles) -> bool:
    """Look until files that changed have been the same twice; whether anything did."""
    return any([files.poll() for _ in range(3)])


@pytest.mark.parametrize(
    ("home", "file", "expected"),
    [
        ("/opt/mq", "", "/opt/mq/conf/plain_acl.yml"),
        ("/opt/mq", "conf/mine.yml", "/opt/mq/conf/mine.yml"),
        ("/opt/mq", "/etc/mq/acl.yml", "/etc/mq/acl.yml"),
        ("", "/etc/mq/../acl.yml", "/etc/acl.yml"),
    ],
)
def test_the_default_file_is_that_of_the_settings(home: str, file: str, expected: str) -> None:
    places = Places.of(home, file)
    assert places.file == Path(expected)
    assert places.folder == places.file.parent / "acl"


def test_settings_that_do_not_say_where_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"set aclFile .* or rocketmqHome"):
        Places.of("", "conf/plain_acl.yml")


def test_files_are_found_at_any_depth_and_tools_have_none(conf: Path, default: Path) -> None:
    (conf / "acl" / "teams" / "a").mkdir(parents=True)
    (conf / "acl" / "teams" / "a" / "x.yaml").write_text(accounts_of("deep"))
    (conf / "acl" / "b.yml").write_text(accounts_of("b"))
    (conf / "acl" / "tools.yml").write_text("accessKey: tools-account\n")
    (conf / "acl" / "b.yml.bak").write_text("]")
    (conf / "acl" / ".hidden.yml").write_text("]")
    default.write_text(accounts_of("default", white="10.1.2.3"))
    files = loaded(conf)
    assert names(files) == ["b", "deep", "default"]
    assert len(files.accounts.white) == 1


def test_an_access_key_of_two_files_is_the_first_ones(
    conf: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (conf / "acl" / "b.yml").write_text(accounts_of("x", secret="second-secret"))
    (conf / "acl" / "a.yml").write_text(accounts_of("x", secret="first-secret"))
    default.write_text(accounts_of("x", secret="third-secret"))
    assert loaded(conf).accounts.by_key["account-x"].secret_key == "first-secret"
    assert caplog.text.count("stands in") == 2
    assert "-secret" not in caplog.text


@pytest.mark.parametrize("has_folder", [True, False])
def test_without_any_file_nobody_has_an_account(
    conf: Path, has_folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not has_folder:
        (conf / "acl").rmdir()
    assert not loaded(conf).accounts.by_key
    assert f"every request is refused; write {conf / 'plain_acl.yml'}" in caplog.text
    assert not (conf / "plain_acl.yml").exists()


def test_a_start_with_a_wrong_file_fails_and_names_it(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("good"))
    (conf / "acl" / "a.yml").write_text(accounts_of("x") + "  admin: maybe\n")
    with pytest.raises(ConfigError, match=r"acl/a\.yml, line 5: admin must be"):
        files_of(conf).load()


def test_a_file_that_cannot_be_read_stops_the_start(conf: Path) -> None:
    os.mkfifo(conf / "plain_acl.yml")
    with pytest.raises(ConfigError, match="no regular file"):
        files_of(conf).load()
    (conf / "plain_acl.yml").unlink()
    (conf / "acl" / "circle.yml").symlink_to("circle.yml")
    with pytest.raises(ConfigError, match=r"circle\.yml: can't be read"):
        files_of(conf).load()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_examines_what_is_no_file_leave_nothing_open(
    conf: Path, default: Path, make: Callable[[Path], None]
) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    default.unlink()
    make(default)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert not files.poll()
    assert list(files.wrong) == [default]
    assert len(os.listdir("/proc/self/fd")) == before
    assert names(files) == ["a"]


def test_a_file_that_everybody_can_read_is_a_warning(
    conf: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default.write_text(accounts_of("x"))
    loaded(conf)
    assert "chmod" not in caplog.text
    default.chmod(0o644)
    loaded(conf)
    assert f"chmod 600 {default}" in caplog.text


def test_too_many_accounts_and_files_are_refused(
    conf: Path, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "ACCOUNTS_MAX", 1)
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    (conf / "acl" / "b.yml").write_text(accounts_of("b"))
    with pytest.raises(ConfigError, match="2 accounts; the most is 1"):
        files_of(conf).load()
    assert not settle(files)
    assert (names(files), files.failures) == (["a"], 1)
    (conf / "acl" / "b.yml").write_text("accounts: []\n")
    default.write_text(accounts_of("c"))
    assert settle(files)
    assert names(files) == ["c"]
    monkeypatch.setattr(files_module, "FILES_MAX", 0)
    with pytest.raises(ConfigError, match="more than 0 files"):
        files_of(conf).load()


def test_a_change_is_in_force_when_two_looks_find_the_same(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    default.write_text(accounts_of("a", "b"))
    assert [files.poll(), files.poll(), files.poll()] == [False, True, False]
    assert names(files) == ["a", "b"]
    default.write_text(accounts_of("b"))
    assert files.poll(at_once=True)
    assert (names(files), files.reloads) == (["b"], 2)


def test_a_file_that_is_being_written_is_left_for_a_while(
    conf: Path, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for count in range(1, 5):
        default.write_text(accounts_of(*(f"new{number}" for number in range(count))))
        assert not files.poll()
        now[0] += 0.25
    default.write_text(accounts_of("last"))
    assert files.poll()
    assert names(files) == ["last"]


def test_a_look_reads_no_file_that_is_as_it_was(
    conf: Path, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default.write_text(accounts_of("a"))
    old = 1_000_000_000 * 10**9
    os.utime(default, ns=(old, old))
    monkeypatch.setattr(files_module, "YOUNG_SECONDS", -1e9)
    files = loaded(conf)
    opened: list[str] = []
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
    assert not settle(files)
    assert opened == []


def test_a_change_within_the_clocks_grain_is_found(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    known = files_module._Signature.of(default.stat())
    default.write_text(accounts_of("b"))
    for file in files._files.values():
        file.signature = files_module._Signature.of(default.stat())
    assert files.poll()
    assert names(files) == ["b"]
    assert known.size == default.stat().st_size


def test_a_wrong_file_leaves_its_accounts_and_is_told_once(
    conf: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    default.write_text(accounts_of("a"))
    other = conf / "acl" / "other.yml"
    other.write_text(accounts_of("o1"))
    files = loaded(conf)
    other.write_text(accounts_of("o2") + "  admin: maybe\n")
    default.write_text(accounts_of("b"))
    assert settle(files)
    assert names(files) == ["b", "o1"]
    settle(files)
    assert (files.failures, list(files.wrong)) == (1, [other])
    assert caplog.text.count("line 5: admin must be true or false") == 1
    other.write_text(accounts_of("o1"))
    assert not settle(files)
    assert (files.failures, files.wrong) == (1, {})
    assert f"{other} is right again" in caplog.text


def test_files_that_are_gone_take_their_accounts_with_them(
    conf: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default.write_text(accounts_of("a"))
    (conf / "acl" / "b.yml").write_text(accounts_of("b"))
    files = loaded(conf)
    (conf / "acl" / "b.yml").unlink()
    assert [files.poll(), files.poll()] == [False, True]
    (conf / "acl").rmdir()
    default.unlink()
    assert settle(files)
    assert names(files) == []
    assert caplog.text.count("is gone") == 2
    (conf / "acl").mkdir()
    (conf / "acl" / "b.yml").write_text(accounts_of("b"))
    assert settle(files)
    assert names(files) == ["b"]


def test_a_file_that_is_gone_for_a_moment_keeps_its_accounts(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    default.unlink()
    assert not files.poll()
    default.write_text(accounts_of("a"))
    assert not settle(files)
    assert (names(files), files.reloads) == (["a"], 0)


def test_a_file_replaced_by_a_rename_is_read(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    fresh = conf / "fresh"
    fresh.write_text(accounts_of("b"))
    fresh.replace(default)
    assert settle(files)
    assert names(files) == ["b"]


def test_a_mounted_folder_whose_link_turns_is_read(conf: Path) -> None:
    folder = conf / "acl"
    for version, name in (("v1", "a"), ("v2", "b")):
        (folder / f"..{version}").mkdir()
        (folder / f"..{version}" / "acl.yml").write_text(accounts_of(name))
    (folder / "..data").symlink_to("..v1")
    (folder / "acl.yml").symlink_to("..data/acl.yml")
    files = loaded(conf)
    assert names(files) == ["a"]
    (folder / "..new").symlink_to("..v2")
    (folder / "..new").replace(folder / "..data")
    assert settle(files)
    assert names(files) == ["b"]


def test_folders_that_lead_in_a_circle_end(conf: Path, default: Path) -> None:
    (conf / "acl" / "again").symlink_to(".")
    (conf / "acl" / "a.yml").write_text(accounts_of("a"))
    assert names(loaded(conf)) == ["a"]


def test_a_thousand_changes_are_each_in_force(conf: Path, default: Path) -> None:
    default.write_text(accounts_of("first"))
    files = loaded(conf)
    for number in range(1000):
        default.write_text(accounts_of(f"n{number}"))
        assert files.poll(at_once=True)
        assert names(files) == [f"n{number}"]
    assert files.reloads == 1000


def test_the_log_says_what_changed_without_secrets(
    conf: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    default.write_text(accounts_of("a", "b", white="10.1.2.3"))
    files = loaded(conf)
    strange = accounts_of("c").replace("account-c", '"account-c\\u00e9"')
    (conf / "acl" / "c.yml").write_text(strange)
    default.write_text(accounts_of("b", secret="Geheimnis-9999"))
    assert settle(files)
    expected = (
        "added 'account-c\u00e9'; changed 'account-b'; removed 'account-a'; "
        "global white list changed; in force now: 2 accounts, 0 global white lists"
    )
    assert expected in caplog.text
    assert "Geheimnis" not in caplog.text


def test_a_file_that_can_be_read_again_is_right_again(
    conf: Path, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default.write_text(accounts_of("a"))
    files = loaded(conf)
    default.unlink()
    default.symlink_to(default.name)
    assert not settle(files)
    assert "can't be read" in files.wrong[default]
    default.unlink()
    default.write_text(accounts_of("a"))
    assert not settle(files)
    assert (names(files), files.wrong) == (["a"], {})
