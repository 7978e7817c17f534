from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.eventually import until

from kerolox.config import write_with_backup
from kerolox.errors import ConfigError
from kerolox.namesrv import key_values as module
from kerolox.namesrv.key_values import KeyValues


async def test_the_table_is_there_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    first = KeyValues(path)
    first.load()
    await first.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    await first.put("ORDER_TOPIC_CONFIG", "U", "broker-ä:1")
    second = KeyValues(path)
    second.load()
    assert second.namespace("ORDER_TOPIC_CONFIG") == {
        "T": "broker-a:4;broker-b:4",
        "U": "broker-ä:1",
    }
    assert (path.with_name("kvConfig.json.bak")).exists()


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("\n")
    table = KeyValues(path)
    table.load()
    assert table.namespace("N") is None


@pytest.mark.parametrize("text", ["{", '{"configTable":[]}', '{"configTable":{"N":{"k":1.5}}}'])
def test_a_file_that_is_damaged_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"kvConfig\.json: .* mend it"):
        KeyValues(path).load()


def test_a_file_that_can_not_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        KeyValues(tmp_path).load()


async def test_the_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_VALUES_MAX", 1)
    table = KeyValues(tmp_path / "kvConfig.json")
    await table.put("N", "k", "1")
    await table.put("N", "k", "2")
    with pytest.raises(ConfigError, match="delete some"):
        await table.put("M", "k", "1")


async def test_puts_at_once_are_written_together_and_answered_when_the_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def write(path: Path, text: str) -> None:
        written.append(text)
        path.write_text(text)

    monkeypatch.setattr(module, "write_with_backup", write)
    path = tmp_path / "kvConfig.json"
    table = KeyValues(path)

    async def put(number: int) -> None:
        await table.put("N", f"k{number}", "v")
        assert f'"k{number}":"v"' in path.read_text()

    await asyncio.gather(*(put(number) for number in range(500)))
    assert len(written) <= 2
    await table.delete("N", "not there")
    assert len(written) <= 2
    second = KeyValues(path)
    second.load()
    assert len(second.namespace("N") or ()) == 500


async def test_all_who_wait_for_a_write_that_fails_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = KeyValues(tmp_path / "file" / "kvConfig.json")
    puts = (table.put("N", f"k{number}", "v") for number in range(3))
    told = await asyncio.gather(*puts, return_exceptions=True)
    assert [isinstance(error, OSError) for error in told] == [True] * 3


async def test_a_put_whose_client_goes_does_not_stop_the_write(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    table = KeyValues(path)
    first = asyncio.ensure_future(table.put("N", "a", "1"))
    second = asyncio.ensure_future(table.put("N", "b", "2"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert path.read_text() == '{"configTable":{"N":{"a":"1","b":"2"}}}'


# What JSON has to escape, and what takes more bytes than characters.
@pytest.mark.parametrize("value", ["v" * 100, '"\\' * 50, "\x01" * 50, "\N{SNOWMAN}" * 50])
async def test_the_file_never_exceeds_the_bound_and_a_start_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 20_000)
    path = tmp_path / "kvConfig.json"
    table = KeyValues(path)

    puts = (table.put(f"N{key % 3}", f"k{key}", value) for key in range(400))
    answers = await asyncio.gather(*puts, return_exceptions=True)
    count = answers.count(None)
    assert 30 < count < 200
    assert 19_000 < path.stat().st_size < 20_100
    with pytest.raises(ConfigError, match="at most 20000 are kept; delete some"):
        await table.put("N0", "one more", value)
    second = KeyValues(path)
    second.load()
    assert second._bytes == table._bytes
    assert sum(len(second.namespace(f"N{n}") or ()) for n in range(3)) == count
    # What gets shorter, or goes, makes room.
    await table.put("N0", "k0", "")
    await table.delete("N1", "k1")
    await table.put("N0", "new", value)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (("n" * 256, "k", "v"), "namespace .* has 256 bytes"),
        (("N", "k" * 256, "v"), "key .* has 256 bytes"),
        (("N", "k", "v" * 65_537), "value .* has 65537 bytes"),
    ],
)
async def test_names_and_values_have_a_length(
    tmp_path: Path, entry: tuple[str, str, str], fault: str
) -> None:
    table = KeyValues(tmp_path / "kvConfig.json")
    with pytest.raises(ConfigError, match=fault):
        await table.put(*entry)
    assert not (tmp_path / "kvConfig.json").exists()


async def test_empty_namespaces_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMESPACES_MAX", 2)
    table = KeyValues(tmp_path / "kvConfig.json")
    await table.put("A", "k", "v")
    await table.put("B", "k", "v")
    with pytest.raises(ConfigError, match="2 namespaces already; empty some"):
        await table.put("C", "k", "v")
    await table.delete("A", "k")
    # As RocketMQ: one that was emptied is still there.
    assert table.namespace("A") == {}
    await table.put("C", "k", "v")
    assert table.namespace("A") is None


def test_a_file_too_large_to_read_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES_MAX", 100)
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"N":{"k":"%s"}}}' % ("v" * 100))
    with pytest.raises(ConfigError, match="larger than 100 bytes; take out what nobody needs"):
        KeyValues(path).load()


async def test_what_many_changes_write_is_some_times_what_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [0]
    append = module._append

    def whole(path: Path, text: str) -> None:
        written[0] += len(text)
        write_with_backup(path, text)

    def some(path: Path, data: bytes) -> None:
        written[0] += len(data)
        append(path, data)

    monkeypatch.setattr(module, "write_with_backup", whole)
    monkeypatch.setattr(module, "_append", some)
    path = tmp_path / "kvConfig.json"
    table = KeyValues(path)
    for number in range(2_000):
        await table.put("N", f"k{number}", "v" * 1_000)
    assert written[0] < 8 * 2_000_000
    # Whatever happens to the process now, a start has all of it.
    again = KeyValues(path)
    again.load()
    assert again.namespace("N") == table.namespace("N")
    await again.delete("N", "k7")
    third = KeyValues(path)
    third.load()
    assert len(third.namespace("N") or {}) == 1_999
    assert third._bytes == again._bytes
    await table.close()


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 0)


def text_of(path: Path) -> str:
    return path.read_text()


def changes_of(path: Path) -> Path:
    return path.with_name("kvConfig.json.changes")


async def filled(path: Path) -> KeyValues:
    """A table whose file lacks its last changes."""
    table = KeyValues(path)
    await table.put("N", "old", "v" * 500)
    await table.put("N", "a", "1")
    await table.put("M", "b", "2")
    await table.put("N", "c", "3")
    await table.delete("N", "a")
    assert '"c"' not in text_of(path)
    return table


WANTED = {"N": {"old": "v" * 500, "c": "3"}, "M": {"b": "2"}}


@pytest.mark.usefixtures("all_are_large")
async def test_the_file_has_all_changes_after_a_stop_and_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "1" / "kvConfig.json"
    table = await filled(stopped)
    await table.close()
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.01)
    followed = tmp_path / "2" / "kvConfig.json"
    table = await filled(followed)
    await until(lambda: not changes_of(followed).exists())
    for path in (stopped, followed):
        assert json.loads(text_of(path)) == {"configTable": WANTED}
    assert not changes_of(stopped).exists()


@pytest.mark.usefixtures("all_are_large")
async def test_a_crash_loses_no_change_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    table = await filled(path)
    changes = changes_of(path)
    data = changes.read_bytes()
    # While a line was written; and after the file was, before the changes were taken away.
    changes.write_bytes(data + b'["N","d","4')
    again = KeyValues(path)
    again.load()
    assert {name: again.namespace(name) for name in "NM"} == WANTED
    await again.put("N", "e", "5")
    assert '"e"' in text_of(path)
    changes.write_bytes(data)
    third = KeyValues(path)
    third.load()
    assert third.namespace("N") == {**WANTED["N"], "e": "5"}
    await table.close()


@pytest.mark.usefixtures("all_are_large")
async def test_after_a_write_that_failed_the_file_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kvConfig.json"
    table = await filled(path)

    def full(path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_append", full)
        with pytest.raises(OSError, match="No space"):
            await table.put("N", "d", "4")
    await table.put("N", "e", "5")
    again = KeyValues(path)
    again.load()
    assert again.namespace("N") == {**WANTED["N"], "d": "4", "e": "5"}


def test_changes_that_are_damaged_are_an_error_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.with_name("kvConfig.json.changes").write_text('["N"]\n')
    with pytest.raises(ConfigError, match=r"kvConfig\.json\.changes: a line is no change"):
        KeyValues(path).load()
