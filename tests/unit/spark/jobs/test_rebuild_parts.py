"""What tasks of ``rebuild`` make of a log, without a Spark: the broker's own files."""

from __future__ import annotations

import os
import shutil
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kerolox._pykernel as reference
from kerolox.errors import ConfigError, StoreError
from kerolox.inspect.index_layout import IndexShape
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.rebuild import RebuildOptions
from kerolox.spark.jobs.rebuild import queues as writing
from kerolox.spark.jobs.rebuild.index import index_parts
from kerolox.spark.jobs.rebuild.queues import QueueFileWriter
from kerolox.spark.jobs.rebuild.source import settings_of
from kerolox.spark.jobs.rebuild.target import check_files, check_room, target_of
from kerolox.store.files.checkpoint import Checkpoint, StoreLock
from kerolox.store.index import IndexFile
from kerolox.store.layout import ENTRY, PRE_BLANK
from tests.support.stores.bench import NOW, Bench, files, properties
from tests.support.stores.golden import copy_golden
from tests.support.stores.inspected import check, made_store
from tests.support.stores.rebuilding import Local, rows, without_log
from tests.unit.inspect.test_check import made_again, multi_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several files of the log, delayed and prepared messages; only read."""
    root = tmp_path_factory.mktemp("made") / "store"
    made_store(root, reference)
    return root


def test_queues_and_index_are_the_broker_s_byte_for_byte(store: Path, tmp_path: Path) -> None:
    local = Local(store, tmp_path / "new")
    assert len(local.log.splits) >= 4
    local.run()
    assert files(tmp_path / "new") == without_log(store)


def test_queues_of_the_java_broker_come_byte_for_byte(tmp_path: Path) -> None:
    root = copy_golden(tmp_path).folder / "store"
    Local(root, tmp_path / "new").run()
    made = files(tmp_path / "new")
    java = {name: data for name, data in without_log(root).items() if name != "index"}
    assert {name: data for name, data in made.items() if name != "index"} == java
    for part in ("consumequeue", "index", "checkpoint"):
        path = root / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.rename(tmp_path / "new" / part, path)
    assert check(root).findings.counts.keys() <= {"checkpoint"}


def test_a_file_is_as_old_as_its_last_message(store: Path, tmp_path: Path) -> None:
    Local(store, tmp_path / "new").run()
    for queue_id, last in ((0, 396), (3, 399)):
        [path] = (tmp_path / "new" / "consumequeue" / "T" / str(queue_id)).iterdir()
        assert round(path.stat().st_mtime * 1_000) == NOW + last * 100


def test_further_queues_of_records_are_made(tmp_path: Path) -> None:
    multi_dispatch(tmp_path / "store")
    Local(tmp_path / "store", tmp_path / "new").run()
    assert files(tmp_path / "new") == without_log(tmp_path / "store")


def test_what_is_of_a_deleted_topic_is_left_out_and_counted(tmp_path: Path) -> None:
    made_again(tmp_path / "store")
    local = Local(tmp_path / "store", tmp_path / "new")
    deleted = [row for row in local.totals() if row["kind"] == "deleted"]
    assert sum(row["count"] for row in deleted) == 400
    local.run()
    queues = {"consumequeue/T/1", "consumequeue/SCHEDULE_TOPIC_XXXX/2"}
    made, before = files(tmp_path / "new"), files(tmp_path / "store")
    assert {name: made[name] for name in queues} == {name: before[name] for name in queues}


def test_a_queue_that_begins_again_is_odd_and_made_as_the_broker_has_it(tmp_path: Path) -> None:
    made_again(tmp_path / "store")
    (tmp_path / "store" / "deletions").unlink()
    local = Local(tmp_path / "store", tmp_path / "new")
    local.target.begin()
    (done, note) = local.write_odd_queues()
    assert "T, queue 1: begins again at 0" in note["note"]
    made = Path(local.target.queue_root, "T", "1")
    before = tmp_path / "store" / "consumequeue" / "T" / "1"
    assert [path.read_bytes() for path in sorted(made.iterdir())] == [
        path.read_bytes() for path in sorted(before.iterdir())
    ]
    # Again, as Spark runs a task again.
    assert local.write_odd_queues()[0]["files"] == done["files"]
    assert os.listdir(local.target.scratch) == []
    local.target.end()


def test_a_log_that_lost_its_beginning_gives_the_offsets_that_a_broker_shows(
    store: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(store, tmp_path / "store"))
    (root / "commitlog" / f"{0:020}").unlink()
    Local(root, tmp_path / "new").run()
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    for part in ("consumequeue", "index"):
        shutil.rmtree(moved / part)
    (moved / "inventory").unlink()
    shutil.copytree(tmp_path / "new", moved, dirs_exist_ok=True)
    seen = []
    for folder in (root, moved):
        bench = Bench(reference, folder)
        report = bench.open()
        assert (report.clean, report.dispatched, report.indexed) == (True, 0, 0)
        keys = [bench.store.query_key("T", f"k{number}", 9, 0, 1 << 60)[2] for number in range(400)]
        seen.append((sorted(bench.store.queues()), bench.bodies(2), keys))
        bench.store.close()
    assert seen[0] == seen[1]
    assert seen[0][0][-1].min_offset > 0


def entries(first: int, count: int, file: int) -> pyarrow.RecordBatch:
    offsets = list(range(first, first + count))
    return pyarrow.RecordBatch.from_pydict(
        {
            "topic": ["T"] * count,
            "queueId": pyarrow.array([3] * count, pyarrow.int32()),
            "file": [file] * count,
            "queueOffset": offsets,
            "physical": [offset * 100 for offset in offsets],
            "size": pyarrow.array([100] * count, pyarrow.int32()),
            "code": [-1] * count,
            "time": [1_000] * count,
        }
    )


def test_before_the_first_entry_of_a_queue_stand_pre_blank_ones(tmp_path: Path) -> None:
    scratch = tmp_path / "unfinished"
    scratch.mkdir()
    writer = QueueFileWriter(str(tmp_path), str(scratch), 200)
    [done] = rows(writer(iter([entries(17, 2, 1), entries(19, 1, 1)])))
    assert (done["entries"], done["files"]) == (3, 1)
    data = (tmp_path / "T" / "3" / f"{200:020}").read_bytes()
    assert data[:140] == PRE_BLANK * 7
    assert data[140:] == b"".join(ENTRY.pack(each * 100, 100, -1) for each in (17, 18, 19))


def test_entries_that_do_not_follow_each_other_are_no_file(tmp_path: Path) -> None:
    scratch = tmp_path / "unfinished"
    scratch.mkdir()
    writer = QueueFileWriter(str(tmp_path), str(scratch), 200)
    with pytest.raises(JobError, match="the log changed while it was read"):
        rows(writer(iter([entries(10, 2, 1), entries(13, 1, 1)])))
    assert os.listdir(tmp_path) == ["unfinished"]


@pytest.mark.parametrize("part", ["queues", "index"])
def test_on_a_full_disk_no_file_is_left(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    local = Local(store, tmp_path / "new")
    local.target.begin()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_all", full)
    monkeypatch.setattr(IndexFile, "put", full)
    write: Callable[[], object] = local.write_queues if part == "queues" else local.write_index
    with pytest.raises(OSError, match="No space left"):
        write()
    assert os.listdir(local.target.scratch) == os.listdir(local.target.index_folder) == []
    assert os.listdir(local.target.queue_root) == [Path(local.target.scratch).name]
    local.target.end()
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_left_over_makes_no_folder_anew(store: Path, tmp_path: Path) -> None:
    local = Local(store, tmp_path / "new")
    local.target.begin()
    local.target.end()
    for write in (local.write_queues, local.write_odd_queues, local.write_index):
        with pytest.raises(FileNotFoundError):
            write()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(2, 8))
def test_each_key_is_in_one_file_of_the_index(keys: list[int], entries_max: int) -> None:
    parts = index_parts(keys, IndexShape(7, entries_max), 1_763_715_347_123)
    starts = [0, *accumulate(keys)]
    first = 0
    for number, part in enumerate(parts):
        begin = starts[part.split] + part.skip
        assert 0 <= part.skip < keys[part.split]
        assert begin == first - (number > 0)
        assert part.follows == (number > 0)
        assert 0 < part.count < entries_max
        first += part.count
    assert first == sum(keys)
    names = [part.name for part in parts]
    assert names == sorted(set(names))
    assert all(len(name) == 17 for name in names)


def test_a_new_folder_appears_whole_or_not_at_all(store: Path, tmp_path: Path) -> None:
    local = Local(store, tmp_path / "new")
    local.target.begin()
    local.write_queues()
    assert not (tmp_path / "new").exists()
    # Killed here; the next one clears up.
    after = Local(store, tmp_path / "new")
    with pytest.raises(StoreError, match="another rebuild makes"):
        after.target.begin()
    local.target.end()
    shutil.copytree(store, tmp_path / "new.rebuilding")
    with pytest.raises(ConfigError, match=r"option --to: .*new\.rebuilding has other data"):
        after.target.begin()
    (tmp_path / "new.rebuilding" / "rebuild.json").write_text("{}")
    after.run()
    assert files(tmp_path / "new") == without_log(store)
    with pytest.raises(ConfigError, match=r"option --to: .*new has other data"):
        Local(store, tmp_path / "new")


def test_files_that_this_machine_does_not_see_stop_the_job(store: Path, tmp_path: Path) -> None:
    local = Local(store, tmp_path / "new")
    local.target.begin()
    local.write_queues()
    with pytest.raises(JobError, match="every machine that runs tasks must see that folder"):
        check_files(local.target, 1_000, 0)
    with pytest.raises(JobError, match=r"need about 1000000000000000000 bytes"):
        check_room(local.target, 10**18)
    local.target.end()


def test_the_store_itself_is_changed_under_its_lock_only(store: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store, tmp_path / "store"))
    given = RebuildOptions(store=str(root), in_place=True)
    target = target_of(given, settings_of(given))
    lock = StoreLock(str(root / "lock"))
    lock.acquire()
    with pytest.raises(StoreError, match="is in use by this process"):
        target.begin()
    target.end()
    lock.release()
    target.begin()
    with pytest.raises(BlockingIOError):
        lock.acquire()
    Path(target.queue_root, "x").mkdir()
    target.end()
    assert files(root) == files(store)
    assert not list(root.glob("*.new"))
    target.begin()
    target.publish(7, has_index=False, state={})
    target.end()
    assert not (root / "consumequeue" / "T").exists()
    checkpoint = Checkpoint(str(root / "checkpoint"))
    assert checkpoint.load()
    assert checkpoint.logics_timestamp == 7


def test_a_store_in_use_is_read_as_far_as_its_queues_go(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    for number in range(30):
        bench.append(b"x" * number, properties(KEYS=f"k{number}", TAGS="t"), queue_id=number % 4)
    bench.wait_indexed()
    Local(bench.path, tmp_path / "new").run()
    made = files(tmp_path / "new")
    assert made == without_log(bench.path)
    assert len(made) == 5
    bench.store.close()


def test_a_body_that_does_not_match_its_crc_is_counted_and_keeps_its_place(
    store: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(store, tmp_path / "store"))
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(90)
        file.write(b"\0")
    local = Local(root, tmp_path / "new")
    splits = [row for row in local.totals() if row["kind"] == "split"]
    assert sum(row["wrongCrc"] for row in splits) == 1
    assert not any(row["odd"] for row in splits)
    local.run()
    assert files(tmp_path / "new") == without_log(store)


def test_a_place_that_can_t_be_is_a_damage(tmp_path: Path) -> None:
    made_store(tmp_path / "store", reference)
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    with log.open("r+b") as file:
        file.seek(20)
        file.write((1 << 60).to_bytes(8, "big"))
    found = [row for row in Local(tmp_path / "store", tmp_path / "n").totals() if row["reason"]]
    assert [(row["kind"], row["first"]) for row in found] == [("damage", 0)]
    assert f"number {1 << 60} of queue 0 of topic 'T', which can't be" in found[0]["reason"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "option --to: name a new folder, or give --in-place"),
        ({"to": "/x", "in_place": True}, "option --in-place: goes without --to"),
        ({"to": "s3://x"}, "option --to: s3://x is a URI"),
        ({"to": "file:/x"}, "option --to: file:/x is a URI"),
        ({"store": "s3://x", "in_place": True}, "option --in-place: s3://x is a URI"),
        ({"to": "/x", "split_mib": 0}, "option --split-mib: 0 must be 1 or more"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RebuildOptions(**({"store": "/s"} | given))
