"""A topic that was deleted and made anew, of which no note is left: the log alone tells.

A slave notes no deletion, since its master's log does not name one, and a loss of power may cost
the note. Old and new records of a queue stand in the log then, and the queue's old files may be
back. What counts is the new life, and a slave goes on with what its master sends.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from tests.kernel.test_raw_log import raw
from tests.support.stores.bench import NOW, Bench

FILE_SIZE = 64 * 1024
OLD = [b"old-%d" % number for number in range(4)]
QUEUE = Path("consumequeue/T")


class Lost:
    """Copies of a bench's folder as a loss of power leaves them."""

    def __init__(self, kernel: Any, root: Path, closing: list[Bench]) -> None:
        self._kernel, self._root, self._closing = kernel, root, closing
        self._old = root / "old-queue"

    def keep(self, bench: Bench) -> None:
        """Remember the files of the queues as they are now."""
        bench.store.flush()
        shutil.copytree(bench.path / QUEUE, self._old)

    def copy(self, bench: Bench, *, queue: str, note: bool = False) -> Bench:
        """The folder, not opened; ``queue``: which of its files are there, "old", "new" or "none".
        ``note``: of the deletion."""
        copy = Bench(self._kernel, self._root / "copy")
        self._closing.append(copy)
        shutil.copytree(bench.path, copy.path)
        (copy.path / "abort").write_bytes(b"")
        (copy.path / "boot").unlink(missing_ok=True)
        if not note:
            (copy.path / "deletions").unlink(missing_ok=True)
        if queue != "new":
            shutil.rmtree(copy.path / QUEUE)
        if queue == "old":
            shutil.copytree(self._old, copy.path / QUEUE)
        return copy


@pytest.fixture
def lost(kernel: Any, tmp_path: Path, closing: list[Bench]) -> Lost:
    return Lost(kernel, tmp_path, closing)


def made_anew(bench: Bench, lost: Lost, count: int) -> list[bytes]:
    """Topic T with four old messages, then deleted, and with so many new ones."""
    for body in OLD:
        bench.append(body)
    bench.append(b"other", topic=b"Other")
    lost.keep(bench)
    bench.store.delete_queues("T")
    new = [b"new-%d" % number for number in range(count)]
    for body in new:
        bench.append(body)
    return new


@pytest.mark.parametrize("queue", ["old", "new", "none"])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_what_came_after_the_deletion_is_in_the_queue(
    bench: Bench, lost: Lost, queue: str, count: int
) -> None:
    new = made_anew(bench, lost, count)
    copy = lost.copy(bench, queue=queue)
    copy.open()
    assert copy.bodies() == new
    assert copy.bodies(topic="Other") == [b"other"]
    end = bench.store.max_physical_offset
    bench.append(b"next")
    assert copy.store.append_log(end, raw(bench, end)) == bench.store.max_physical_offset
    assert copy.bodies() == [*new, b"next"]


def test_of_a_topic_made_anew_twice_the_last_life_counts(bench: Bench, lost: Lost) -> None:
    made_anew(bench, lost, 1)
    bench.store.delete_queues("T")
    bench.append(b"last")
    copy = lost.copy(bench, queue="old")
    copy.open()
    assert copy.bodies() == [b"last"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("queue", ["old", "none"])
def test_it_counts_where_the_log_has_the_end_of_the_old_life_alone(
    bench: Bench, lost: Lost, queue: str, count: int
) -> None:
    for number in range(60):
        bench.append(b"%d" % number * 1_000)
    assert bench.store.drop_log_file() is not None
    sorted((bench.path / "commitlog").iterdir())[0].unlink()
    bench.store.expire_queue("T", 0, 4)
    assert bench.store.queue_bounds("T", 0)[0] > 0
    lost.keep(bench)
    bench.store.delete_queues("T")
    for number in range(count):
        bench.append(b"new-%d" % number)
    copy = lost.copy(bench, queue=queue)
    copy.open()
    assert copy.store.queue_bounds("T", 0) == (0, count)
    assert copy.bodies() == [b"new-%d" % number for number in range(count)]


@pytest.mark.parametrize("is_cut", [False, True], ids=["with entries", "without an entry"])
def test_a_queue_that_begins_with_blank_entries_begins_anew(
    bench: Bench, kernel: Any, lost: Lost, tmp_path: Path, closing: list[Bench], is_cut: bool
) -> None:
    """As of a slave that began in the middle of its master's log."""
    master = Bench(reference, tmp_path / "master")
    closing.append(master)
    master.open()
    for number in range(100):
        master.append(b"%d" % number * 1_000)
    bench.store.append_log(FILE_SIZE, raw(master, FILE_SIZE))
    low = bench.store.queue_bounds("T", 0)[0]
    assert low > 0
    lost.keep(bench)
    if is_cut:
        file = next((tmp_path / "old-queue/0").iterdir())
        file.write_bytes(file.read_bytes()[: low * 20].ljust(file.stat().st_size, b"\0"))
    end = master.store.max_physical_offset
    master.store.delete_queues("T")
    for number in range(3):
        master.append(b"new-%d" % number)
    bench.store.append_log(end, raw(master, end))
    copy = lost.copy(bench, queue="old")
    copy.open()
    assert copy.bodies() == [b"new-0", b"new-1", b"new-2"]


@pytest.mark.parametrize("queue", ["old", "none"])
def test_records_that_the_checkpoint_covers_are_found_by_the_note(
    bench: Bench, lost: Lost, queue: str
) -> None:
    bench.store.set_clock(NOW - 200_000)
    new = made_anew(bench, lost, 2)
    for number in range(20):
        bench.store.set_clock(NOW - 190_000 + 9_000 * number)
        bench.append(b"later", topic=b"Other")
    bench.store.flush()
    if queue == "none":
        bench.append(b"new-2")
        new.append(b"new-2")
    copy = lost.copy(bench, queue=queue, note=True)
    copy.open()
    assert copy.bodies() == new


def test_a_queue_without_entries_begins_where_its_first_record_says(
    bench: Bench, lost: Lost, tmp_path: Path, closing: list[Bench]
) -> None:
    """As of a slave that knows of a deletion which its master, a slave before, does not."""
    master = Bench(reference, tmp_path / "master")
    closing.append(master)
    master.open()
    for body in OLD:
        master.append(body)
    bench.store.append_log(0, raw(master))
    bench.store.delete_queues("T")
    for body in (b"four", b"five"):
        end = bench.store.max_physical_offset
        master.append(body)
        if body == b"five":
            bench.store.close()
            bench = lost.copy(bench, queue="none", note=True)
            bench.open()
            assert bench.store.queue_bounds("T", 0) == (4, 5)
        bench.store.append_log(end, raw(master, end))
    assert bench.bodies() == [b"four", b"five"]


def test_a_damaged_offset_in_the_middle_of_a_queue_does_not_begin_it_anew(
    bench: Bench, lost: Lost
) -> None:
    offsets = [bench.append(b"%d" % number)[1] for number in range(6)]
    copy = lost.copy(bench, queue="none")
    with next((copy.path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(offsets[3] + 20)
        file.write(struct.pack(">q", 0))
    copy.open()
    assert copy.bodies() == [b"0", b"1", b"2", b"4", b"5"]
    assert copy.store.queue_bounds("T", 0) == (0, 6)
