"""``kerolox store backup``, ``verify``, ``restore``: a copy is whole, or there is none."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from kerolox.errors import StoreError
from kerolox.inspect.backup import copying, taking
from kerolox.inspect.backup.manifest import Manifest, files_below, verify_backup
from kerolox.inspect.backup.restoring import restore_backup
from kerolox.inspect.backup.taking import back_up
from kerolox.kernel.choice import load_kernel
from kerolox.kernel.settings import StoreSettings
from kerolox.protocol.records import decode_records
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS
from tests.support.stores.bench import SMALL_FILES, Bench, files, properties
from tests.support.stores.golden import copy_golden
from tests.support.stores.inspected import FILE_BYTES, Made, check, made_store, places_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "store"
    made_store(root, reference)
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:7}}}')
    return root


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Made:
    return Made.copy(source, tmp_path / "store")


@pytest.fixture(scope="module")
def taken(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("taken") / "backup"
    back_up(places_of(source), str(target))
    return target


@pytest.fixture
def backup(taken: Path, tmp_path: Path) -> Made:
    return Made.copy(taken, tmp_path / "backup")


def bodies(root: Path, kernel: Any = reference, **settings: Any) -> list[bytes]:
    """Of all messages in the four queues of T, of a store that is opened for it."""
    values = {**SMALL_FILES, **settings}
    store = kernel.Store(StoreSettings(store_path_root_dir=str(root), **values))
    report = store.open()
    assert (report.clean, report.dispatched, report.notes) == (True, 0, [])
    found = []
    for queue_id in range(4):
        at, end = store.queue_bounds("T", queue_id)
        while at < end:
            answer = store.read("T", queue_id, at, 32, None)
            found += [message.body for message in decode_records(answer.records)]
            at = answer.next_offset
    store.close()
    return found


def nothing_left(target: Path) -> bool:
    return not list(target.parent.glob(target.name + "*"))


def test_a_backup_of_a_stopped_store_is_the_store(made: Made, tmp_path: Path) -> None:
    before = files(made.root)
    manifest = back_up(places_of(made.root), str(tmp_path / "backup"))
    assert files(made.root) == before
    copied = files(tmp_path / "backup")
    same = [name for name in before if name.startswith(("commitlog", "consumequeue", "config"))]
    assert {name: copied[name] for name in same} == {name: before[name] for name in same}
    report = check(tmp_path / "backup")
    assert (report.findings.kept, report.findings.notes) == ([], [])
    assert (report.records, report.index_entries) == (413, 1213)
    assert (manifest.log_begin, manifest.log_end) == (0, report.log_bytes)
    assert verify_backup(str(tmp_path / "backup")) == (manifest, [])


def test_an_index_file_made_during_a_backup_is_not_copied_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open(now=None, max_hash_slot_num=50, max_index_num=100)
    folder = bench.path / "index"
    copied: list[str] = []

    def append_until_files(count: int) -> list[str]:
        """Their names; the index has caught up with the log."""
        while len(list(folder.glob("*"))) < count:
            assert bench.append(b"x", properties(KEYS="k"), queue_id=0)[0] == 0
        wait_until(lambda: not bench.store.stats()["index_pending"], what="the index")
        return sorted(path.name for path in folder.glob("*"))

    def copy(source: int, target: str, *args: Any, **options: Any) -> Any:
        if Path(target).parent.name == "index":
            copied.append(Path(target).name)
            append_until_files(len(before) + 2)
        return copy_file(source, target, *args, **options)

    copy_file = copying.copy_file
    monkeypatch.setattr(taking, "copy_file", copy)
    before = append_until_files(3)

    def listed(of: str) -> Any:
        if of == str(folder):
            append_until_files(len(before) + 1)
        return files_below(of)

    monkeypatch.setattr(taking, "files_below", listed)
    try:
        back_up(places_of(bench.path), str(tmp_path / "backup"))
    finally:
        bench.store.close()
    assert copied == before[:-1]
    assert check(tmp_path / "backup").findings.kept == []


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_acknowledged_before_is_in_a_backup_beside_a_writer(
    name: str, tmp_path: Path
) -> None:
    kernel = load_kernel(name)
    bench = Bench(kernel, tmp_path / "store")
    bench.open(now=None, max_hash_slot_num=500, max_index_num=5_000)
    acknowledged: list[bytes] = []
    ending = threading.Event()

    def write() -> None:
        while not ending.wait(0.001):
            number = len(acknowledged)
            text = properties(UNIQ_KEY=f"U{number:07d}", KEYS=f"k{number}", TAGS="t")
            body = b"%07d" % number * 20
            assert bench.append(body, text, queue_id=number % 4)[0] == 0
            acknowledged.append(body)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(acknowledged) > 500, what="some messages")
        before = acknowledged.copy()
        back_up(places_of(bench.path), str(tmp_path / "backup"))
    finally:
        ending.set()
        writer.join()
        bench.store.close()
    assert check(tmp_path / "backup").findings.kept == []
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"))
    found = bodies(tmp_path / "again", kernel, max_hash_slot_num=500, max_index_num=5_000)
    assert set(before) <= set(found)
    assert len(found) == len(set(found))


def test_what_expires_meanwhile_is_in_the_backup(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(bodies(made.root))
    table = taking._table

    def expire(path: str) -> bytes | None:
        made.log_file(0).unlink(missing_ok=True)
        made.queue_file("T", 1).unlink(missing_ok=True)
        return table(path)

    monkeypatch.setattr(taking, "_table", expire)
    back_up(places_of(made.root), str(tmp_path / "backup"))
    assert not made.log_file(0).exists()
    report = check(tmp_path / "backup")
    assert report.records == 413
    monkeypatch.undo()
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"))
    assert sorted(bodies(tmp_path / "again")) == before


def test_a_table_that_is_being_replaced_is_waited_for(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made.root / "config" / "consumerOffset.json"
    text = table.read_text()
    (made.root / "config" / "consumerOffset.json.bak").write_text(text)
    table.unlink()
    waits = iter([lambda: table.write_text(text[:9]), lambda: table.write_text(text)])
    monkeypatch.setattr(taking.time, "sleep", lambda _seconds: next(waits)())  # type: ignore[attr-defined]
    back_up(places_of(made.root, has_index=False), str(tmp_path / "backup"))
    assert (tmp_path / "backup" / "config" / "consumerOffset.json").read_text() == text


def test_what_a_crash_left_is_recovered_in_the_copy_alone(made: Made, tmp_path: Path) -> None:
    (made.root / "abort").touch()
    last = sorted((made.root / "commitlog").iterdir())[-1]
    end = check(made.root).log_bytes
    made.write(last, end % FILE_BYTES, b"\0\0\1\0\xda\xa3\x20\xa7half of a record")
    before = files(made.root)
    back_up(places_of(made.root), str(tmp_path / "backup"))
    assert files(made.root) == before
    report = check(tmp_path / "backup")
    assert (report.findings.kept, report.log_bytes) == ([], end)


def test_a_log_that_can_not_be_read_to_its_end_gives_no_backup(made: Made, tmp_path: Path) -> None:
    (made.root / "checkpoint").unlink()
    offset, *_ = made.record(2, 60)
    made.flip(made.log_file(offset // FILE_BYTES), offset % FILE_BYTES + 4)
    with pytest.raises(StoreError, match=rf"copy ends at {offset}, and the log went to \d+"):
        back_up(places_of(made.root), str(tmp_path / "backup"))
    assert nothing_left(tmp_path / "backup")


def test_a_log_in_several_folders_is_brought_together_and_put_elsewhere(
    made: Made, tmp_path: Path
) -> None:
    before = files(made.root / "commitlog")
    (tmp_path / "two").mkdir()
    (made.root / "commitlog").rename(tmp_path / "one")
    for path in sorted((tmp_path / "one").iterdir())[2:]:
        path.rename(tmp_path / "two" / path.name)
    folders = (str(tmp_path / "one"), str(tmp_path / "two"))
    back_up(places_of(made.root, log_folders=folders), str(tmp_path / "backup"))
    assert files(tmp_path / "backup" / "commitlog") == before
    there = tmp_path / "elsewhere"
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"), log_folder=str(there))
    assert files(there) == before
    assert not (tmp_path / "again" / "commitlog").exists()
    assert check(tmp_path / "again", log_folders=(str(there),)).is_clean


@pytest.mark.parametrize("step", ["write_all", "data_end", "interrupt"])
def test_a_failure_leaves_nothing_and_the_next_one_works(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt if step == "interrupt" else OSError(errno.ENOSPC, "no room")

    before = files(made.root)
    with monkeypatch.context() as patched:
        if step != "interrupt":
            patched.setattr(copying, step, fail)
        with pytest.raises(KeyboardInterrupt if step == "interrupt" else OSError):
            back_up(places_of(made.root), str(tmp_path / "backup"), fail)
    assert nothing_left(tmp_path / "backup")
    assert files(made.root) == before
    back_up(places_of(made.root), str(tmp_path / "backup"))
    with monkeypatch.context() as patched:
        if step != "interrupt":
            patched.setattr(copying, step, fail)
        with pytest.raises(KeyboardInterrupt if step == "interrupt" else OSError):
            restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"), progress=fail)
    assert nothing_left(tmp_path / "again")
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"))
    assert check(tmp_path / "again").is_clean


def test_what_a_killed_copy_left_is_made_anew_unless_it_still_runs(
    made: Made, tmp_path: Path
) -> None:
    part = tmp_path / "backup.part"
    (part / "commitlog").mkdir(parents=True)
    (part / "unfinished").touch()
    (part / "abort").touch()
    with (part / "unfinished").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="is being written by another process"):
            back_up(places_of(made.root), str(tmp_path / "backup"))
    with pytest.raises(StoreError, match="is no backup"):
        verify_backup(str(part))
    back_up(places_of(made.root), str(tmp_path / "backup"))
    assert not part.exists()
    assert check(tmp_path / "backup").is_clean


def test_folders_that_hold_something_else_are_refused(made: Made, tmp_path: Path) -> None:
    places = places_of(made.root)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part" / "mine").touch()
    (tmp_path / "file").touch()
    for target, words in (
        (tmp_path / "full", "is there already"),
        (tmp_path / "file", "is there already"),
        (tmp_path / "other", "was not made by a copy"),
        (made.root / "backup", "lies in the store"),
        (Path("/proc"), "is there already"),
    ):
        with pytest.raises(StoreError, match=words):
            back_up(places, str(target))
    assert (tmp_path / "full" / "mine").exists()
    assert (tmp_path / "other.part" / "mine").exists()
    (tmp_path / "empty").mkdir()
    back_up(places, str(tmp_path / "empty"))
    with pytest.raises(StoreError, match="is there already"):
        restore_backup(str(tmp_path / "empty"), str(made.root))


def test_a_store_of_java_keeps_its_bytes(tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    root = golden.folder / "store"
    before = files(root)
    back_up(places_of(root), str(tmp_path / "backup"))
    after = files(tmp_path / "backup")
    same = [name for name in before if name.startswith(("commitlog", "consumequeue", "config"))]
    assert same
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert check(tmp_path / "backup").is_clean


def test_verify_names_each_file_that_is_not_as_it_was(backup: Made) -> None:
    backup.flip(backup.log_file(1), 200)
    backup.queue_file("T", 2).unlink()
    backup.write(backup.queue_file("T", 3), 1_999, b"x")
    with backup.log_file(0).open("ab") as file:
        file.write(b"\0")
    (backup.root / "config" / "more.json").touch()
    _manifest, faults = verify_backup(str(backup.root))
    assert [each.removeprefix(f"{backup.root}/") for each in faults] == [
        f"commitlog/{0:020d} has 65537 bytes, 65536 were written",
        f"commitlog/{FILE_BYTES:020d} has other bytes than were written",
        f"consumequeue/T/2/{0:020d} is missing",
        f"consumequeue/T/3/{0:020d} has other bytes than were written",
        "config/more.json was added",
    ]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_nothing_is_restored_from_a_damaged_backup(
    backup: Made, tmp_path: Path, damage: str
) -> None:
    file = backup.log_file(1)
    if damage == "flip":
        backup.flip(file, 200)
    elif damage == "cut":
        os.truncate(file, 5_000)
    else:
        file.unlink()
    with pytest.raises(StoreError, match=str(file)):
        restore_backup(str(backup.root), str(tmp_path / "again"))
    assert nothing_left(tmp_path / "again")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "its format is 2"),
        ({"files": [{"path": "../x", "size": 1, "used": 1, "sha256": ""}]}, "leads out"),
        ({"files": [{"path": "/etc/x", "size": 1, "used": 1, "sha256": ""}]}, "leads out"),
        ({"files": [{"path": "x", "size": 1, "used": 2, "sha256": ""}]}, "of which 2 are used"),
        ({"files": 3}, "is no manifest"),
        ({"log_end": None}, "is no manifest"),
        ([], "is no manifest"),
    ],
)
def test_a_manifest_that_can_not_be_is_refused(backup: Made, change: object, words: str) -> None:
    path = backup.root / "backup.json"
    members = json.loads(path.read_text())
    path.write_text(json.dumps(members | change if isinstance(change, dict) else change))
    with pytest.raises(StoreError, match=words):
        Manifest.read(str(backup.root))
    path.write_text("{" * 100_000)
    with pytest.raises(StoreError, match="can't be read"):
        Manifest.read(str(backup.root))


def test_extension_files_and_light_queues_are_copied_and_gone_on_with(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 4_096,
        "bit_map_length_consume_queue_ext": 16,
        "enable_multi_dispatch": True,
        "enable_lmq": True,
    }
    bench = Bench(reference, root)
    bench.open(now=None, **settings)
    for number in range(60):
        further = {"INNER_MULTI_DISPATCH": "%LMQ%light"}
        text = properties(UNIQ_KEY=f"U{number}", TAGS=f"t{number}", **further)
        assert bench.append(b"%d" % number, text, queue_id=number % 2)[0] == 0
    bench.wait_indexed()
    # As the checkpoint of a broker that has not flushed yet: recovery makes all entries again.
    back_up(places_of(root), str(tmp_path / "backup"))
    bench.store.close()
    assert check(tmp_path / "backup").findings.kept == []
    for part in ("consumequeue", "consumequeue_ext"):
        there, here = (
            {
                str(path.relative_to(each)): path.read_bytes()
                for path in each.rglob("0*")
                if path.is_file()
            }
            for each in (root / part, tmp_path / "backup" / part)
        )
        assert len(there) >= 2
        assert here == there
    assert len(bodies(tmp_path / "backup", **settings)) == 60
