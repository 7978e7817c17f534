"""kill -9 at every named point: before and after each call by which a store changes its files.

A store puts messages, flushes, deletes a topic, drops old files, closes and opens again, in a
process that dies at one call of one kind (``crash_scenario.py``, ``shim.py``); then, for some,
again while it recovers. Whatever it acknowledged must be there, nothing else, and the store goes
on. The native kernel appends through its maps, without calls: those kills come by time, and torn
records by hand in ``test_torn_tail.py``.
"""

from __future__ import annotations

import os
import random
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.faults.crash_scenario import GONE, Acknowledged, ScenarioRunner
from tests.support.faults.crashing import NOW, QUEUES, Crashable, Kept, Ledger, find, read_queue
from tests.support.kernels import KERNELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEEDS = max(1, int(os.environ.get("KEROLOX_CRASH_SEEDS", "0")) // 25)
KILLS_BY_TIME = 6
IN_FLIGHT_MAX = 6
"""Messages of the put that was killed: they may be there."""


class Point(NamedTuple):
    """Calls of one kind: of which kernel, on which files, and how many a scenario has at least."""

    kernel: str
    name: str
    call: str
    part: str
    calls_min: int
    is_write: bool = False


POINTS = [
    Point("python", "append-record", "pwrite", "/commitlog/", 30, is_write=True),
    Point("python", "append-entry", "pwrite", "/consumequeue/", 30, is_write=True),
    Point("python", "roll", "ftruncate", "/commitlog/", 2),
    Point("python", "roll-map", "mmap", "/commitlog/", 2),
    Point("python", "roll-queue", "ftruncate", "/consumequeue/", 4),
    Point("python", "roll-index", "ftruncate", "/index/", 2),
    Point("python", "flush-log", "fdatasync", "/commitlog/", 2),
    Point("python", "flush-log-names", "fsync", "/commitlog", 2),
    Point("python", "flush-queue", "fdatasync", "/consumequeue/", 6),
    Point("python", "flush-index", "fdatasync", "/index/", 2),
    Point("python", "abort", "write", "/abort", 2, is_write=True),
    Point("native", "roll", "ftruncate", "/commitlog/", 2),
    Point("native", "roll-map", "mmap", "/commitlog/", 2),
    Point("native", "roll-queue", "ftruncate", "/consumequeue/", 4),
    Point("native", "roll-queue-map", "mmap", "/consumequeue/", 4),
    Point("native", "roll-index", "ftruncate", "/index/", 2),
    Point("native", "flush-log", "msync", "/commitlog/", 2),
    Point("native", "flush-log-names", "fsync", "/commitlog", 2),
    Point("native", "flush-queue", "msync", "/consumequeue/", 6),
    Point("native", "flush-queue-begin", "sync_file_range", "/consumequeue/", 4),
    Point("native", "flush-index", "msync", "/index/", 2),
    Point("native", "abort", "open", "/abort", 2),
    Point("native", "boot", "write", "/boot", 1, is_write=True),
] + [
    point._replace(kernel=kernel)
    for kernel in KERNELS
    for point in [
        Point("", "lock", "pwrite" if kernel == "python" else "write", "/lock", 1, is_write=True),
        Point("", "checkpoint", "pwrite", "/checkpoint", 3, is_write=True),
        Point("", "checkpoint-flush", "fdatasync", "/checkpoint", 3),
        Point("", "rename", "rename", "/inventory", 2),
        Point("", "rename-write", "write", "/inventory.tmp", 2, is_write=True),
        Point("", "rename-flush", "fsync", "/inventory.tmp", 2),
        Point("", "delete-topic", "write", "/deletions", 2, is_write=True),
        Point("", "delete-queue", "unlink", "/consumequeue/Gone", 2),
        Point("", "delete-folder", "rmdir", "/consumequeue/Gone", 2),
        # Files that were made ahead are removed too, if their thread was that quick.
        Point("", "delete-log-file", "unlink", "/commitlog/00000000000000000000", 1),
        Point("", "delete-queue-file", "unlink", "/consumequeue/A", 1),
        Point("", "delete-abort", "unlink", "/abort", 1),
        Point("", "flush-queue-names", "fsync", "/consumequeue", 4),
        Point("", "make-queue", "mkdir", "/consumequeue/", 4),
    ]
]  # fmt: skip
WHILE_RECOVERING = ["pwrite", "write", "unlink", "ftruncate", "open", "msync", "fdatasync", "mmap"]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioRunner]:
    with ScenarioRunner(tmp_path_factory.mktemp("faults")) as started:
        yield started


def check(kernel: str, folder: Path, notes: Path, lives: int) -> None:
    """Open the store and hold it to what was acknowledged; then it goes on."""
    known = Acknowledged.load(notes)
    crashable = Crashable(kernel, folder)
    crashable.now_ms = NOW + 60_000 * (lives + 1)
    crashable.open()
    store = crashable.store
    low = store.min_physical_offset
    assert low == 0 or known.dropping
    for kept in known.records:
        if kept.physical_offset >= low:
            assert store.lookup(kept.physical_offset) == kept.record, kept
    for topic, queue_id in QUEUES:
        of_queue = [k for k in known.records if (k.topic, k.queue_id) == (topic, queue_id)]
        mine = [kept for kept in of_queue if kept.is_queued]
        check_queue(records_of(store, topic, queue_id), mine, low, lives)
        for kept in mine:
            assert find(store, kept) == (kept.record if kept.physical_offset >= low else b""), kept
    check_deleted(store, known, low, lives)
    check_onward(crashable)


def records_of(store: Any, topic: str, queue_id: int) -> dict[int, bytes]:
    """The records of a queue by their queue offsets, which are dense."""
    raw = read_queue(store, topic, queue_id)
    found: dict[int, bytes] = {}
    while raw:
        (size,) = struct.unpack_from(">i", raw)
        (queue_offset,) = struct.unpack_from(">q", raw, 20)
        found[queue_offset], raw = raw[:size], raw[size:]
    assert list(found) == list(range(*store.queue_bounds(topic, queue_id)))
    return found


def check_queue(found: dict[int, bytes], mine: list[Kept], low: int, lives: int) -> None:
    """A queue has what was acknowledged and is left of it, and what was being put at the kills."""
    for kept in mine:
        assert found.get(kept.queue_offset) == (
            kept.record if kept.physical_offset >= low else None
        )
    left = sum(kept.physical_offset >= low for kept in mine)
    assert len(found) <= left + lives * IN_FLIGHT_MAX


def check_deleted(store: Any, known: Acknowledged, low: int, lives: int) -> None:
    """Nothing of an earlier life of the deleted topic is there, all of its last life is."""
    mine = [k for k in known.records if k.topic == GONE]
    alive = [k for k in mine if k.physical_offset >= known.deleted_before]
    # The deletion that was killed may have been done, or not.
    maybe = [k for k in alive if k.physical_offset >= known.deleting_before]
    found = records_of(store, GONE, 0)
    first = struct.unpack_from(">q", next(iter(found.values()), bytes(36)), 28)[0]
    is_done = not found or first >= known.deleting_before
    check_queue(found, maybe if is_done else alive, low, lives)


def check_onward(crashable: Crashable) -> None:
    """The store takes new messages, and a clean stop leaves nothing to repair."""
    ledger = Ledger()
    ledger.number = 10**6
    for topic, queue_id in (*QUEUES, (GONE, 0)):
        before = crashable.store.queue_bounds(topic, queue_id)[1]
        assert ledger.put(crashable, topic, queue_id).queue_offset == before
    crashable.close()
    report = crashable.open()
    assert (report.clean, report.truncated_bytes, report.dispatched) == (True, 0, 0), report
    assert report.notes == []
    for kept in ledger.records:
        assert crashable.store.lookup(kept.physical_offset) == kept.record
        assert find(crashable.store, kept) == kept.record
    crashable.close()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.kernel}-{point.name}")
def test_a_kill_at_a_named_point_loses_nothing(
    runner: ScenarioRunner, point: Point, seed: int, memory_path: Path
) -> None:
    if point.kernel not in KERNELS:
        return
    actions = ["kill-before", "kill-after", *(["kill-torn"] if point.is_write else [])]
    for number, action in enumerate(actions):
        chance = random.Random(f"{point}{seed}{action}")
        folder, notes = memory_path / f"{number}" / "store", memory_path / f"{number}.notes"
        nth = chance.randint(1, point.calls_min)
        rule = f"{point.call}:{point.part}:{nth}:{action}"
        assert runner.run(point.kernel, folder, notes, 0, rule), f"{rule} did not fire"
        lives = 1
        if chance.random() < 0.5:
            # Killed again, now while it recovers or soon after.
            call = chance.choice(WHILE_RECOVERING)
            again = f"{call}:/store/:{chance.randint(1, 25)}:{chance.choice(actions[:2])}"
            runner.run(point.kernel, folder, notes, lives, again)
            lives += 1
        opener = chance.choice(KERNELS)
        try:
            check(opener, folder, notes, lives)
        except BaseException as error:
            error.add_note(f"killed at {rule}, {lives} lives, opened by {opener}")
            raise


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(KILLS_BY_TIME * SEEDS))
def test_a_kill_at_any_time_loses_nothing(
    runner: ScenarioRunner, kernel: str, seed: int, memory_path: Path
) -> None:
    chance = random.Random(seed)
    folder, notes = memory_path / "store", memory_path / "notes"
    lives = chance.randint(1, 3)
    for life in range(lives):
        runner.run(kernel, folder, notes, life, kill_ms=chance.randint(10, 120))
    check(chance.choice(KERNELS), folder, notes, lives)
