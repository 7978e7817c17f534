"""``kerolox store rebuild``: the log alone gives queues and index back, and nothing is at risk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import kerolox._pykernel as reference
from kerolox.errors import StoreError
from kerolox.inspect import rebuild as rebuilding
from kerolox.inspect.index_layout import IndexHeader, read_header
from kerolox.inspect.queue_writer import QueueWriter
from kerolox.inspect.rebuild import RebuildReport, index_shape, rebuild_store
from kerolox.kernel.settings import StoreSettings
from kerolox.store.layout import ENTRY, PRE_BLANK
from tests.support.stores.bench import SMALL_FILES, Bench, files, properties
from tests.support.stores.golden import copy_golden
from tests.support.stores.inspected import Made, check, made_store, places_of
from tests.unit.inspect.test_check import made_again, multi_dispatch


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "store"
    made_store(root, reference)
    return root


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Made:
    return Made.copy(source, tmp_path / "store")


def rebuild(made: Made, *, all_topics: bool = False, **options: object) -> RebuildReport:
    return rebuild_store(places_of(made.root, **options), all_topics=all_topics)


def test_the_new_files_are_the_old_ones_byte_for_byte(made: Made) -> None:
    before = files(made.root)
    report = rebuild(made)
    assert (report.records, report.queues, report.queue_entries) == (413, 5, 405)
    assert report.index_entries == 1213
    assert report.findings.notes == []
    assert files(made.root) == before
    assert check(made.root).is_clean
    assert not list(made.root.glob("*.new")) + list(made.root.glob("*.old"))


def test_what_java_wrote_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    root = golden.folder / "store"
    before = files(root)
    rebuild_store(places_of(root))
    after = files(root)
    assert {name: after[name] for name in before if "queue" in name} == {
        name: before[name] for name in before if "queue" in name
    }
    assert check(root).is_clean


def test_lost_queues_and_index_come_back(made: Made) -> None:
    before = files(made.root)
    shutil.rmtree(made.root / "consumequeue")
    shutil.rmtree(made.root / "index")
    rebuild(made, queue_file_bytes=2_000, index_slots=64, index_entries=256)
    assert files(made.root) == before


def test_the_store_opens_with_what_was_rebuilt(made: Made) -> None:
    rebuild(made)
    store = reference.Store(StoreSettings(store_path_root_dir=str(made.root), **SMALL_FILES))
    report = store.open()
    assert (report.clean, report.dispatched, report.notes) == (True, 0, [])
    assert store.queue_bounds("T", 3) == (0, 100)
    assert len(store.query_key("T", "k17", 10, 0, 1 << 60)[2]) > 0
    store.close()


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    bench.append(b"x")
    try:
        with pytest.raises(StoreError, match="is in use by this process"):
            rebuild_store(places_of(tmp_path / "store"))
    finally:
        bench.store.close()


def test_a_failure_leaves_the_old_ones(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(made.root)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(QueueWriter, "_write", fail)
    with pytest.raises(OSError, match="No space left"):
        rebuild(made)
    assert files(made.root) == before
    assert not list(made.root.glob("*.new"))


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_interrupted_swap_is_cleared_up(
    made: Made, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    before = files(made.root)
    count = 0
    rename = os.rename

    def interrupted(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding.os, "rename", interrupted)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            rebuild(made)
    rebuild(made)
    assert files(made.root) == before
    assert not list(made.root.glob("*.new")) + list(made.root.glob("*.old"))


def test_records_behind_damage_are_kept_and_the_damage_told(made: Made) -> None:
    offset, size, _body, _text = made.record(2, 40)
    made.flip(made.log_file(offset // 65536), offset % 65536 + 4)
    report = rebuild(made)
    [finding] = report.findings.kept
    assert f"no whole record from {offset} to {offset + size}" in finding.text
    assert report.findings.notes == ["T, queue 2: no records from 40 to 40, entries left blank."]
    assert report.queue_entries == 404
    assert made.queue_file("T", 2).read_bytes()[800:820] == PRE_BLANK
    assert check(made.root).findings.counts == {"log": 1}


def test_a_wrong_queue_offset_does_not_move_the_others(made: Made) -> None:
    before = files(made.root)
    offset, *_ = made.record(0, 50)
    made.flip(made.log_file(offset // 65536), offset % 65536 + 27, 0x10)
    report = rebuild(made)
    assert report.findings.notes == [
        f"T, queue 0: the record at {offset} says queue offset 34, it became 50."
    ]
    after = files(made.root)
    assert after["consumequeue/T/0"] == before["consumequeue/T/0"]


def test_deleted_topics_stay_deleted_unless_told(made: Made) -> None:
    shutil.rmtree(made.root / "consumequeue" / "T")
    (made.root / "config").mkdir()
    (made.root / "config" / "topics.json").write_text('{"topicConfigTable":{"Other":{}}}')
    report = rebuild(made)
    assert report.skipped_topics == {"T": 400}
    assert not (made.root / "consumequeue" / "T").exists()
    assert rebuild(made, all_topics=True).queue_entries == 405


def test_what_the_store_noted_as_deleted_stays_deleted(tmp_path: Path) -> None:
    made_again(tmp_path / "store")
    before = files(tmp_path / "store")
    made = Made(tmp_path / "store")
    assert rebuild(made).skipped_topics == {"T": 400}
    assert files(made.root) == before


def test_further_queues_are_rebuilt(tmp_path: Path) -> None:
    multi_dispatch(tmp_path / "store")
    before = files(tmp_path / "store")
    made = Made(tmp_path / "store")
    assert rebuild(made).queue_entries == 90
    assert files(made.root) == before


# -- one queue ----------------------------------------------------------------------------------
def entries_of(folder: Path) -> list[tuple[int, int]]:
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return [(number, entry[0]) for number, entry in enumerate(ENTRY.iter_unpack(data)) if entry[1]]


def test_a_queue_that_begins_late_has_blanks_in_its_first_file_only(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path / "q"), "Q", 100)
    assert writer.put(7, 70, 10, 0, 0) == ""
    assert writer.put(8, 80, 10, 0, 0) == ""
    assert writer.finish() == ""
    assert [path.name for path in (tmp_path / "q").iterdir()] == [f"{100:020d}"]
    assert entries_of(tmp_path / "q") == [(0, 0), (1, 0), (2, 70), (3, 80)]


def test_a_topic_made_again_begins_anew(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path / "q"), "Q", 100)
    for number in range(12):
        assert writer.put(number, 10 * number, 10, 0, 0) == ""
    assert writer.put(0, 500, 10, 0, 0) == ""
    assert "begins again at 0 with the record at 500" in writer.put(1, 510, 10, 0, 0)
    writer.finish()
    assert entries_of(tmp_path / "q") == [(0, 500), (1, 510)]
    assert writer.count == 2


@pytest.mark.parametrize("shape", [(500, 5_000), (97, 1_300), (1, 1_300)])
def test_the_shape_of_an_index_is_found_however_full_it_is(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open(max_hash_slot_num=shape[0], max_index_num=shape[1])
    found = []
    for number in range(620):
        bench.append(b"x", properties(UNIQ_KEY=f"U{number:07d}", KEYS=f"k{number}"))
        if number % 31 == 0:
            bench.wait_indexed()
            found.append(tuple(index_shape(places_of(bench.path))))
    bench.store.close()
    assert set(found) == {shape}


def test_the_shape_of_an_index_is_found_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open(max_hash_slot_num=500, max_index_num=5_000)
    for number in range(300):
        bench.append(b"x", properties(UNIQ_KEY=f"U{number:07d}", KEYS=f"k{number}"))
    bench.wait_indexed()
    torn = iter((True, False))
    headers = read_header

    def read(descriptor: int) -> IndexHeader:
        header = headers(descriptor)
        # The count is one ahead of the end for a moment.
        return header._replace(end_offset=header.end_offset - 9) if next(torn) else header

    monkeypatch.setattr(rebuilding, "read_header", read)
    assert index_shape(places_of(bench.path)) == (500, 5_000)
    bench.store.close()
