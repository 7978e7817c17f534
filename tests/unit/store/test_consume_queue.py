from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kerolox.store.layout import ENTRY, PRE_BLANK, good_entries
from kerolox.store.queues.consume_queue import ConsumeQueue, OpenQueues
from kerolox.store.queues.names import check_topic_name

if TYPE_CHECKING:
    from pathlib import Path

FILE_SIZE = 200
PER_FILE = 10


def make(tmp_path: Path) -> ConsumeQueue:
    return ConsumeQueue(str(tmp_path), "T", 3, FILE_SIZE, OpenQueues())


def filled(tmp_path: Path, count: int) -> ConsumeQueue:
    queue = make(tmp_path)
    for index in range(count):
        queue.write_entries([index * 100, 100, index])
        queue.next_offset = queue.max_offset
    return queue


def test_an_entry_is_twenty_bytes_in_a_file_named_by_its_byte(tmp_path: Path) -> None:
    queue = filled(tmp_path, 12)
    queue.close()
    folder = tmp_path / "T" / "3"
    assert sorted(os.listdir(folder)) == ["00000000000000000000", "00000000000000000200"]
    data = (folder / "00000000000000000200").read_bytes()
    assert data == ENTRY.pack(1000, 100, 10) + ENTRY.pack(1100, 100, 11) + bytes(160)


def test_a_run_of_entries_crosses_files(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.write_entries([number for index in range(25) for number in (index, 1, -index)])
    assert queue.starts == [0, 200, 400]
    assert queue.max_offset == 25
    assert [queue.entry(index) for index in (0, 9, 10, 24, 25)] == [
        (0, 1, 0), (9, 1, -9), (10, 1, -10), (24, 1, -24), None,
    ]  # fmt: skip
    queue.close()


def test_a_read_ends_with_its_file(tmp_path: Path) -> None:
    queue = filled(tmp_path, 25)
    sizes = [len(queue.read_entries(at, 100) or b"") for at in (0, 7, 10, 22)]
    assert sizes == [200, 60, 200, 60]
    queue.close()


def test_a_read_of_a_file_that_is_gone_finds_nothing(tmp_path: Path) -> None:
    queue = filled(tmp_path, 25)
    os.unlink(queue.path_of(0))
    assert queue.read_entries(0, 1) is None
    assert queue.roll_next(3) == PER_FILE
    queue.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
def test_a_queue_loads_with_all_its_entries(tmp_path: Path, clean: bool, count: int) -> None:
    filled(tmp_path, count).close()
    queue = make(tmp_path)
    assert queue.load(clean=clean).notes == []
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count, count)
    assert queue.max_physical_offset == (count * 100 if count else -1)


def test_an_unclean_load_ends_at_the_first_entry_that_is_none(tmp_path: Path) -> None:
    queue = filled(tmp_path, 15)
    queue.set_entry(12, 0, 0, 0)
    queue.close()
    again = make(tmp_path)
    notes = again.load(clean=False).notes
    assert again.max_offset == 12
    assert "torn" in notes[0]
    assert (tmp_path / "T" / "3" / f"{200:020d}").read_bytes()[40:] == bytes(160)


def test_a_queue_may_begin_at_a_later_offset(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.begin_at(13)
    queue.write_entries([700, 50, 9])
    queue.close()
    data = (tmp_path / "T" / "3" / f"{200:020d}").read_bytes()
    assert data == PRE_BLANK * 3 + ENTRY.pack(700, 50, 9) + bytes(120)
    again = make(tmp_path)
    again.load(clean=True)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (13, 14)


def test_the_minimum_follows_the_log(tmp_path: Path) -> None:
    queue = filled(tmp_path, 25)
    for log_start, expected in ((0, 0), (1, 1), (1_050, 11), (9_999, 25)):
        queue.correct_min_offset(log_start)
        assert queue.min_offset == expected
    queue.close()


@pytest.mark.parametrize(("end", "left"), [(2_500, 25), (2_450, 24), (1_000, 10), (990, 9), (0, 0)])
def test_entries_behind_the_end_of_the_log_are_cut(tmp_path: Path, end: int, left: int) -> None:
    queue = filled(tmp_path, 25)
    assert queue.truncate(end) == 25 - left
    assert queue.max_offset == left
    again = make(tmp_path)
    again.load(clean=True)
    assert again.max_offset == left
    queue.write_entries([5, 5, 5])
    assert queue.entry(left) == (5, 5, 5)
    queue.close()


def test_cutting_looks_through_a_filled_gap(tmp_path: Path) -> None:
    queue = filled(tmp_path, 4)
    queue.fill_gap(8)
    queue.write_entries([5_000, 10, 0])
    queue.truncate(250)
    assert queue.max_offset == 2
    queue.close()


def test_a_deleted_queue_is_new(tmp_path: Path) -> None:
    queue = filled(tmp_path, 25)
    queue.delete()
    assert not (tmp_path / "T" / "3").exists()
    assert queue.max_offset == 0


def test_few_queues_hold_descriptors(tmp_path: Path) -> None:
    open_queues = OpenQueues()
    open_queues.limit = 3
    queues = [ConsumeQueue(str(tmp_path), "T", n, FILE_SIZE, open_queues) for n in range(10)]
    for _round in range(2):
        for queue in queues:
            queue.write_entries([queue.max_offset, 1, 0])
    assert sum(queue._tail_descriptor >= 0 for queue in queues) == 3
    assert [queue.entry(1) for queue in queues] == [(1, 1, 0)] * 10
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b", "x" * 256])
def test_a_topic_that_can_name_no_folder_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        check_topic_name(topic)


@pytest.mark.parametrize(
    ("bad", "good"),
    [((0, 0, 0), 2), ((-1, 5, 0), 2), ((5, -1, 0), 2), ((5, 256, 0), 4), ((0, 1, 0), 4)],
)
def test_good_entries_end_at_a_negative_offset_or_no_size(
    bad: tuple[int, int, int], good: int
) -> None:
    whole = ENTRY.pack(1, 1 << 24, -1)
    assert good_entries(whole * 2 + ENTRY.pack(*bad) + whole) == good
