"""Reads against a model, ``getMessage`` written down plainly, on damaged stores too."""

from __future__ import annotations

import os
import random
import struct

import pytest

from kerolox.kernel.status import GetMessageStatus as Status
from kerolox.message import java_hash
from tests.support.stores.bench import Bench, properties
from tests.support.stores.read_model import LIMITS, LOG_FILE, PRE_BLANK, QUEUE_FILE, QueueReads

SCENARIOS = int(os.environ.get("KEROLOX_READ_SCENARIOS", "6"))
"""Stores that are made, of each kernel; each is read ``READS`` times."""
READS = 150
ENTRY = struct.Struct(">qiq")
TAGS = ("a", "b", "c")


def fill(bench: Bench, source: random.Random) -> None:
    """Messages of both queues, of many sizes, in log files that roll."""
    for _ in range(source.randint(1, 260)):
        text = properties(TAGS=source.choice(TAGS)) if source.random() < 0.9 else ""
        size = source.choice((0, 3, 50, 400, 1_400))
        bench.append(source.randbytes(size), text, queue_id=int(source.random() < 0.3))


def reopened(bench: Bench, source: random.Random, *, in_memory: bool) -> None:
    """Open the store again, perhaps without the beginning of its log."""
    bench.store.close()
    logs = sorted((bench.path / "commitlog").iterdir())
    for log in logs[: min(source.choice((0, 0, 1, 9)), len(logs) - 1)]:
        log.unlink()
    open_small(bench, in_memory=in_memory)


def open_small(bench: Bench, *, in_memory: bool) -> None:
    bench.open(
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
        access_message_in_memory_max_ratio=40 if in_memory else 0,
        **LIMITS,
    )


def damage(bench: Bench, source: random.Random) -> set[int]:
    """Spoil entries of queue 0 and lose one of its files, perhaps; the lost files."""
    folder = bench.path / "consumequeue" / "T" / "0"
    names = sorted(folder.iterdir())
    high = bench.store.queue_bounds("T", 0)[1]
    for _ in range(source.choice((0, 0, 3, 20))):
        at = source.randrange(high)
        bad = source.choice((PRE_BLANK, (1 << 40, 100, 97), (source.randrange(LOG_FILE), 60, 98)))
        with (folder / f"{at * 20 // QUEUE_FILE * QUEUE_FILE:020d}").open("r+b") as file:
            file.seek(at * 20 % QUEUE_FILE)
            file.write(ENTRY.pack(*bad))
    if len(names) > 1 and source.random() < 0.3:
        lost = source.randrange(len(names))
        names[lost].unlink()
        return {lost}
    return set()


def modelled(bench: Bench, lost: set[int], entries: list[bytes], *, in_memory: bool) -> QueueReads:
    """What now lies on disk."""
    store = bench.store
    log = b"".join(file.read_bytes() for file in sorted((bench.path / "commitlog").iterdir()))
    minimum, high = store.queue_bounds("T", 0)
    return QueueReads(
        bytes(store.min_physical_offset) + log,
        store.min_physical_offset,
        store.max_physical_offset,
        minimum,
        in_memory,
        list(ENTRY.iter_unpack(b"".join(entries)))[:high],
        lost,
    )


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_reads_are_those_of_the_model(closed_bench: Bench, seed: int) -> None:
    source = random.Random(seed)
    bench = closed_bench
    in_memory = bool(seed % 2)
    open_small(bench, in_memory=in_memory)
    fill(bench, source)
    bench.append(queue_id=0)
    reopened(bench, source, in_memory=in_memory)
    names = sorted((bench.path / "consumequeue" / "T" / "0").iterdir())
    lost = damage(bench, source) if seed >= 2 else set()
    entries = [
        file.read_bytes() if file.exists() else ENTRY.pack(*PRE_BLANK) * (QUEUE_FILE // 20)
        for file in names
    ]
    model = modelled(bench, lost, entries, in_memory=in_memory)
    high = len(model.entries)
    for _ in range(READS):
        offset = source.choice((0, model.minimum, high, source.randint(-2, high + 2)))
        wanted = source.choice((1, 2, 7, 12, 32, 900))
        codes = source.choice((None, {java_hash("a")}, {java_hash("b"), java_hash("c")}, {0}, {5}))
        given = None if codes is None else sorted(codes)
        got = tuple(bench.store.read("T", 0, offset, wanted, given, "G"))
        expected = model.read(offset, wanted, codes)
        assert got == expected, (offset, wanted, codes)
        if model.behind >= 0:
            assert bench.store.lag() == [("G", "T", 0, model.behind)]
    assert bench.store.read("T", 3, 4, 32, None)[:2] == (Status.NO_MESSAGE_IN_QUEUE, 0)


def test_a_queue_that_does_not_exist_reads_as_an_empty_one(bench: Bench) -> None:
    for topic, queue_id in (("T", 3), ("Nobody", 0)):
        read = tuple(bench.store.read(topic, queue_id, 7, 32, None, "G"))
        assert read == (Status.NO_MESSAGE_IN_QUEUE, 0, 0, 0, False, 0, b"")
    assert bench.store.queues() == []
    assert bench.store.lag() == []


def test_how_far_readers_are_behind_is_kept_by_group_and_queue(bench: Bench) -> None:
    first, second = bench.append(b"1"), bench.append(b"2")
    end = bench.store.max_physical_offset
    bench.store.read("T", 0, 0, 1, None, "slow")
    bench.store.read("T", 0, 1, 1, None, "fast")
    bench.store.read("T", 0, 0, 1, None)
    found = {(group, queue): size for group, _, queue, size in bench.store.lag()}
    # The entry that ends a batch counts as examined, as in RocketMQ.
    assert found == {("slow", 0): end - second[1], ("fast", 0): end - second[1]}
    bench.append(b"3" * 100, queue_id=1)
    bench.store.read("T", 0, 1, 1, None, "fast")
    found = {group: size for group, _, _, size in bench.store.lag()}
    assert found["fast"] == bench.store.max_physical_offset - second[1]
    assert first[1] == 0


def test_how_far_readers_are_behind_is_not_kept_when_that_is_off(closed_bench: Bench) -> None:
    closed_bench.open(disk_fall_recorded=False)
    closed_bench.append()
    assert closed_bench.store.read("T", 0, 0, 1, None, "G")[5] == 1
    assert closed_bench.store.lag() == []
    [(*key, reads, count, size, _milliseconds)] = closed_bench.store.group_stats()
    assert (key, reads, count) == (["G", "T", 0], 1, 1)
    assert size == closed_bench.store.max_physical_offset


def test_the_longest_read_is_kept(bench: Bench) -> None:
    bench.append()
    bench.store.read("T", 0, 0, 1, None)
    longest = bench.store.stats()["get_time_max_ms"]
    assert 0 <= longest < 60_000
    for _ in range(20):
        bench.store.read("T", 0, 0, 1, None)
        assert bench.store.stats()["get_time_max_ms"] >= longest
        longest = bench.store.stats()["get_time_max_ms"]
