from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import pytest

from kerolox.controller import storage as storage_module
from kerolox.controller.raft.messages import Entry, EntryType, HardState, Snapshot
from kerolox.controller.raft.raft import Ready
from kerolox.controller.storage import RaftStorage
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMBERS = {"n0": "host:1", "n1": "host:2"}


def ready(
    *entries: Entry, hard_state: HardState | None = None, snapshot: Snapshot | None = None
) -> Ready:
    return Ready(snapshot, entries, hard_state, (), (), ())


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(index, term, data)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RaftStorage]:
    made = opened(tmp_path)
    yield made
    made.close()


def opened(folder: Path, *, group: str = "g", node_id: str = "n0") -> RaftStorage:
    made = RaftStorage(folder, group=group, node_id=node_id)
    made.open(MEMBERS)
    return made


def reopened(storage: RaftStorage, folder: Path) -> RaftStorage:
    storage.close()
    return opened(folder)


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("raft-*.log")
    return path


def test_an_empty_folder_begins_with_the_first_members(tmp_path: Path) -> None:
    storage = reopened(opened(tmp_path), tmp_path)
    assert (storage.snapshot, storage.hard_state) == (
        Snapshot(configuration=MEMBERS),
        HardState(learns=True),
    )
    assert storage.entries == []
    storage.close()


def test_what_was_saved_is_there_after_a_start(storage: RaftStorage, tmp_path: Path) -> None:
    change = Entry(2, 1, b'{"n0":"host:1"}', EntryType.CONFIGURATION)
    storage.save(ready(entry(1), change, hard_state=HardState(1, "n1", 0)))
    storage.save(ready(hard_state=HardState(1, "n1", 2)))
    storage.save(ready())
    again = reopened(storage, tmp_path)
    assert again.entries == [entry(1), change]
    assert again.hard_state == HardState(1, "n1", 2)
    again.close()


def test_later_entries_replace_those_that_they_contradict(
    storage: RaftStorage, tmp_path: Path
) -> None:
    storage.save(ready(entry(1), entry(2), entry(3)))
    storage.save(ready(entry(2, 2), hard_state=HardState(2, "", 1)))
    again = reopened(storage, tmp_path)
    assert again.entries == [entry(1), entry(2, 2)]
    again.close()


def test_a_leaders_snapshot_replaces_all_but_the_term(storage: RaftStorage, tmp_path: Path) -> None:
    storage.save(ready(entry(1), hard_state=HardState(3, "n1", 0)))
    snapshot = Snapshot(10, 2, MEMBERS, b"state")
    storage.save(ready(entry(11, 3), snapshot=snapshot))
    again = reopened(storage, tmp_path)
    assert (again.snapshot, again.entries) == (snapshot, [entry(11, 3)])
    assert again.hard_state == HardState(3, "n1", 0)
    again.close()


def test_a_snapshot_makes_the_file_short(storage: RaftStorage, tmp_path: Path) -> None:
    storage.save(ready(entry(1, data=b"x" * storage_module.LOG_BYTES_MAX), entry(2)))
    assert storage.wants_snapshot
    snapshot = Snapshot(1, 1, MEMBERS, b"state")
    storage.compact(snapshot, HardState(1, "n0", 2), (entry(2),))
    assert not storage.wants_snapshot
    assert file_of(tmp_path).stat().st_size < 1_000
    storage.save(ready(entry(3)))
    again = reopened(storage, tmp_path)
    assert (again.snapshot, again.entries) == (snapshot, [entry(2), entry(3)])
    again.close()


def test_a_torn_write_is_as_if_it_had_not_been(
    storage: RaftStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage.save(ready(entry(1), hard_state=HardState(1, "n0", 0)))
    path = file_of(tmp_path)
    begin = path.stat().st_size
    storage.save(ready(entry(2), hard_state=HardState(2, "n1", 1)))
    storage.close()
    whole = path.read_bytes()
    for end in range(begin, len(whole)):
        for rest in (b"", bytes(len(whole) - end)):
            if whole[:end] + rest == whole:
                continue
            path.write_bytes(whole[:end] + rest)
            with caplog.at_level(logging.ERROR):
                again = opened(tmp_path)
            assert (again.entries, again.hard_state) == ([entry(1)], HardState(1, "n0", 0))
            again.close()
            assert path.stat().st_size == begin


def test_writing_goes_on_behind_a_tail_that_was_cut(storage: RaftStorage, tmp_path: Path) -> None:
    storage.save(ready(entry(1)))
    storage.close()
    with file_of(tmp_path).open("ab") as file:
        file.write(b"KRB\n torn")
    again = opened(tmp_path)
    again.save(ready(entry(2)))
    last = reopened(again, tmp_path)
    assert last.entries == [entry(1), entry(2)]
    last.close()


def test_damage_before_the_last_write_is_refused(storage: RaftStorage, tmp_path: Path) -> None:
    storage.save(ready(entry(1, data=b"first")))
    storage.save(ready(entry(2, data=b"second")))
    storage.close()
    path = file_of(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"first", b"FIRST"))
    with pytest.raises(ConfigError, match=r"damaged at byte \d+, before a whole batch at \d+"):
        opened(tmp_path)
    path.write_bytes(whole[: whole.index(b"KRB") + 20])
    with pytest.raises(ConfigError, match="damaged at its first batch; empty this folder"):
        opened(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is no log of a controller"):
        opened(tmp_path)


def test_a_snapshot_that_was_torn_beside_the_log_is_not_read(
    storage: RaftStorage, tmp_path: Path
) -> None:
    storage.save(ready(entry(1)))
    storage.close()
    path = file_of(tmp_path)
    whole = path.read_bytes()
    (tmp_path / "raft-2.tmp").write_bytes(whole[: len(whole) // 2])
    again = opened(tmp_path)
    assert again.entries == [entry(1)]
    again.compact(Snapshot(1, 1, MEMBERS, b"state"), HardState(1, "n0", 1), ())
    again.close()
    # It has its name only when it is whole: a torn one with the name is damage.
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="damaged at its first batch; empty this folder"):
        opened(tmp_path)


@pytest.mark.parametrize("keeps_times", [False, True])
def test_a_folder_of_a_backup_is_refused(
    storage: RaftStorage, tmp_path: Path, *, keeps_times: bool
) -> None:
    storage.save(ready(entry(1), hard_state=HardState(1, "n0", 1)))
    path = file_of(tmp_path)
    backup = tmp_path / "backup"
    copy = shutil.copy2 if keeps_times else shutil.copyfile
    copy(path, backup)
    storage.save(ready(entry(2), hard_state=HardState(2, "n1", 2)))
    storage.close()
    path.unlink()
    copy(backup, path)
    with pytest.raises(ConfigError, match="is a copy: votes and entries may be missing"):
        opened(tmp_path)
    taken = RaftStorage(tmp_path, group="g", node_id="n0")
    taken.open(MEMBERS, may_be_copy=True)
    assert (taken.entries, taken.hard_state) == ([entry(1)], HardState(1, "n0", 1))
    # It stays a copy until somebody has seen to what it may lack.
    assert (taken.is_copy, taken.wants_snapshot) == (True, False)
    taken.close()
    with pytest.raises(ConfigError, match="is a copy"):
        opened(tmp_path)
    taken.open(MEMBERS, may_be_copy=True)
    taken.make_own()
    assert (taken.is_copy, taken.wants_snapshot) == (False, True)
    taken.compact(taken.snapshot, taken.hard_state, (entry(1),))
    assert not taken.wants_snapshot
    again = reopened(taken, tmp_path)
    assert again.entries == [entry(1)]
    again.close()


def test_a_newer_file_is_refused(storage: RaftStorage, tmp_path: Path) -> None:
    storage.close()
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"kerolox_raft":1', b'"kerolox_raft":2', 1))
    with pytest.raises(ConfigError, match="is of version 2, this Kerolox knows 1: run the version"):
        opened(tmp_path)


def test_the_folder_of_another_controller_is_refused(storage: RaftStorage, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is used by another controller"):
        opened(tmp_path)
    storage.close()
    with pytest.raises(ConfigError, match="of controller n0 of group g, and this is n1 of g"):
        opened(tmp_path, node_id="n1")


def test_a_crash_while_a_snapshot_is_written_loses_nothing(
    storage: RaftStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.save(ready(entry(1), hard_state=HardState(1, "n0", 1)))

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            storage.compact(Snapshot(1, 1, MEMBERS, b"state"), HardState(1, "n0", 1), ())
    again = reopened(storage, tmp_path)
    assert again.entries == [entry(1)]
    again.compact(Snapshot(1, 1, MEMBERS, b"state"), HardState(1, "n0", 1), ())
    last = reopened(again, tmp_path)
    assert last.snapshot.data == b"state"
    last.close()


def test_a_file_that_is_too_long_is_not_read(
    storage: RaftStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.close()
    monkeypatch.setattr(storage_module, "FILE_BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="at most 10 are read"):
        opened(tmp_path)
