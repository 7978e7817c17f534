"""The log as raw bytes: a slave's files are its master's, however the bytes were cut."""

from __future__ import annotations

import random
import resource
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from kerolox.kernel.status import GetMessageStatus as Status
from tests.kernel.test_same_store import SETTINGS, append, append_batch, check
from tests.support.stores.bench import NOW, Bench, files, holding_pull

FILE_SIZE = 64 * 1024
Pair = tuple[Bench, Bench]


@pytest.fixture
def pair(kernel: Any, tmp_path: Path, closing: list[Bench]) -> Pair:
    """Two open stores: a master's, and a slave's that is empty."""
    benches = Bench(reference, tmp_path / "master"), Bench(kernel, tmp_path / "slave")
    for bench in benches:
        closing.append(bench)
        bench.open(**SETTINGS)
    return benches


def raw(master: Bench, begin: int = 0) -> bytes:
    """The log from an offset on."""
    data = b""
    while part := master.store.read_log(begin + len(data), 1 << 20):
        data += part
    return data


def copy(master: Bench, slave: Bench, source: random.Random, most: int = 9_000) -> None:
    """Bring a slave up to its master in pieces of any size."""
    at = slave.store.max_physical_offset
    while part := master.store.read_log(at, source.choice((1, 7, 50, 300, most))):
        slave.store.append_log(at, memoryview(part))
        at += len(part)
    assert slave.store.max_physical_offset == master.store.max_physical_offset


def fill(master: Bench, source: random.Random, steps: int) -> None:
    for step in range(steps):
        (append if source.random() < 0.9 else append_batch)(master, source, step, NOW)


def reopened(bench: Bench, kernel: Any, folder: Path) -> Bench:
    """The store as a kill leaves it, opened again elsewhere."""
    shutil.copytree(bench.path, folder)
    again = Bench(kernel, folder)
    again.open(**SETTINGS)
    return again


@pytest.mark.parametrize("seed", range(2))
def test_a_slaves_files_are_its_masters_however_bytes_are_cut(pair: Pair, seed: int) -> None:
    master, slave = pair
    source = random.Random(seed)
    for _ in range(4):
        fill(master, source, 60)
        copy(master, slave, source)
    for bench in pair:
        bench.wait_indexed()
        bench.store.close()
    assert files(slave.path) == files(master.path)
    assert len(files(slave.path)["commitlog"]) > 10
    assert check(slave.path).findings.kept == []


def test_units_beside_queue_entries_are_written_for_a_slave(
    kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    settings = {"enable_consume_queue_ext": True, "bit_map_length_consume_queue_ext": 64}
    master, slave = Bench(kernel, tmp_path / "master"), Bench(kernel, tmp_path / "slave")
    for bench in (master, slave):
        closing.append(bench)
        bench.open(**settings)
    for number in range(20):
        master.append(b"x", f"TAGS\x01{number % 3}")
    copy(master, slave, random.Random(1))
    for number in range(20):
        assert (
            slave.store.queue_entry("T", 0, number)[2]
            == master.store.queue_entry("T", 0, number)[2]
        )
        assert (
            slave.store.queue_unit("T", 0, number)[:2]
            == master.store.queue_unit("T", 0, number)[:2]
        )


def test_a_read_of_the_log_ends_at_files_and_at_the_end(bench: Bench) -> None:
    for _ in range(40):
        bench.append(b"x" * 2_000)
    end = bench.store.max_physical_offset
    assert FILE_SIZE < end < 2 * FILE_SIZE
    assert len(bench.store.read_log(100, 1 << 20)) == FILE_SIZE - 100
    assert len(bench.store.read_log(FILE_SIZE, 1 << 20)) == end - FILE_SIZE
    assert len(bench.store.read_log(end - 1, 5)) == 1
    for outside in (end, end + 1, 1 << 62, -1):
        assert bench.store.read_log(outside, 5) == b""


def test_half_a_record_is_seen_by_nobody_and_gone_after_a_kill(
    pair: Pair, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    master, slave = pair
    for number in range(3):
        master.append(b"body %d" % number)
    data = raw(master)
    size = len(data) // 3
    assert slave.store.append_log(0, data[: 2 * size + size // 2]) == 2 * size
    assert slave.bodies() == [b"body 0", b"body 1"]
    assert slave.store.read_log(0, 1 << 20) == data[: 2 * size]
    again = reopened(slave, kernel, tmp_path / "killed")
    closing.append(again)
    assert again.store.max_physical_offset == 2 * size
    slave.store.close()
    slave = Bench(kernel, slave.path)
    closing.append(slave)
    assert slave.open(**SETTINGS).truncated_bytes == 0
    for bench in (again, slave):
        assert bench.store.append_log(2 * size, data[2 * size :]) == 3 * size
        assert bench.bodies() == [b"body 0", b"body 1", b"body 2"]


def test_a_slave_that_was_killed_goes_on_where_its_records_end(
    pair: Pair, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    master, slave = pair
    source = random.Random(7)
    fill(master, source, 80)
    data = raw(master)
    slave.store.append_log(0, data[: len(data) * 2 // 3])
    again = reopened(slave, kernel, tmp_path / "killed")
    closing.append(again)
    copy(master, again, source)
    for bench in (master, again):
        bench.wait_indexed()
        bench.store.close()
    assert files(again.path) == files(master.path)


def test_a_slave_may_begin_at_any_file_of_its_master(
    pair: Pair, kernel: Any, closing: list[Bench]
) -> None:
    master, slave = pair
    for number in range(100):
        master.append(b"x" * 1_000 + b"%d" % number, "KEYS\x01k")
    begin = FILE_SIZE
    assert slave.store.append_log(begin, raw(master, begin)) == master.store.max_physical_offset
    low, high = slave.store.queue_bounds("T", 0)
    assert 0 < low < high == 100
    assert slave.bodies() == master.bodies()[low:]
    slave.store.close()
    again = Bench(kernel, slave.path)
    closing.append(again)
    assert again.open(**SETTINGS).clean
    assert again.store.min_physical_offset == begin
    assert again.store.queue_bounds("T", 0) == (low, high)
    assert again.append(b"own").queue_offset == 100


def test_a_topic_made_anew_begins_anew_on_a_slave(pair: Pair) -> None:
    master, slave = pair
    source = random.Random(3)
    for number in range(6):
        master.append(b"old %d" % number, queue_id=number % 2)
    copy(master, slave, source)
    master.store.delete_queues("T")
    # A queue that the earlier life did not have comes first.
    for queue_id in (2, 0, 2, 1):
        master.append(b"new", queue_id=queue_id)
    copy(master, slave, source)
    assert [slave.bodies(each) for each in range(3)] == [[b"new"], [b"new"], [b"new", b"new"]]
    # Who read the earlier life here, while the master was away, has seen nothing of the new one.
    behind = [slave.store.read("T", queue_id, 3, 32, None)[:2] for queue_id in range(3)]
    assert behind == [(Status.OFFSET_OVERFLOW_BADLY, start) for start in (0, 0, 2)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"\0" * 8, "no record stands at 0"),
        (lambda data: struct.pack(">iI", 1 << 30, 0xDAA320A7), "no record"),
        (lambda data: struct.pack(">iI", -1, 0xDAA320A7), "no record"),
        (lambda data: struct.pack(">iI", 100, 0xCBD43194), "a blank that does not end"),
        (lambda data: data[:28] + struct.pack(">q", 8) + data[36:], "offset"),
        (lambda data: data[:20] + struct.pack(">q", 1 << 60) + data[28:], "is entry 11529215"),
        (lambda data: data[:12] + struct.pack(">i", -3) + data[16:], "topic or queue|a queue that"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_record_are_refused_and_change_nothing(
    pair: Pair, change: Any, words: str
) -> None:
    master, slave = pair
    master.append(b"one")
    data = raw(master)
    with pytest.raises(ValueError, match=words):
        slave.store.append_log(0, change(data))
    assert slave.store.max_physical_offset == 0
    assert slave.store.append_log(0, data) == len(data)
    assert slave.bodies() == [b"one"]


def test_a_record_that_came_in_part_may_come_again_from_its_begin(pair: Pair) -> None:
    master, slave = pair
    append(master, random.Random(1), 0, NOW)
    first = master.store.max_physical_offset
    append(master, random.Random(2), 1, NOW)
    data = raw(master)
    for size in (1, 50, len(data) - first - 1):
        at = slave.store.max_physical_offset
        slave.store.append_log(at, data[at : first + size])
        assert slave.store.max_physical_offset == first
    slave.store.append_log(first, data[first:])
    assert raw(slave) == data


def test_a_log_that_ends_in_part_of_a_record_takes_records_of_its_own(pair: Pair) -> None:
    master, slave = pair
    source = random.Random(1)
    append(master, source, 0, NOW)
    data = raw(master)
    slave.store.append_log(0, data[:-1])
    assert slave.store.append_log(0, b"") == 0
    log = next(slave.path.glob("commitlog/*"))
    assert log.read_bytes().count(b"\0") == log.stat().st_size
    slave.store.append_log(0, data)
    append(slave, source, 1, NOW)
    assert raw(slave).startswith(data)
    slave.store.close()
    assert check(slave.path).findings.kept == []


def test_bytes_that_the_disk_takes_in_part_are_dropped_and_may_come_again(pair: Pair) -> None:
    master, slave = pair
    for _ in range(20):
        master.append(b"x" * 1_000)
    data = raw(master)
    begin = slave.store.append_log(0, data[:3_000])
    assert 0 < begin < 3_000
    # Files may not grow over this size, nor be written beyond it.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="commitlog"):
            slave.store.append_log(3_000, data[3_000:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    end = slave.store.max_physical_offset
    assert data.startswith(raw(slave))
    assert slave.store.append_log(end, data[end:]) == len(data)
    assert raw(slave) == data
    slave.append(b"y")
    assert slave.bodies()[20:] == [b"y"]
    for bench in pair:
        bench.store.close()
    assert check(slave.path).findings.kept == []


def test_bytes_of_another_place_are_refused(pair: Pair) -> None:
    master, slave = pair
    master.append(b"one")
    data = raw(master)
    with pytest.raises(ValueError, match="mappedFileSizeCommitLog has to be the master's"):
        slave.store.append_log(100, data)
    slave.store.append_log(0, data)
    for offset in (0, len(data) - 1, len(data) + 1, 1 << 62, -1):
        with pytest.raises(ValueError, match=f"goes on at {len(data)}, not at {offset}"):
            slave.store.append_log(offset, data)
    assert slave.bodies() == [b"one"]


def test_records_before_a_bad_one_are_kept(pair: Pair) -> None:
    master, slave = pair
    master.append(b"one")
    data = raw(master)
    with pytest.raises(ValueError, match=f"at {len(data)}"):
        slave.store.append_log(0, data + b"garbage that is no record")
    assert slave.store.max_physical_offset == len(data)
    assert slave.append(b"two").queue_offset == 1
    assert slave.bodies() == [b"one", b"two"]


def test_a_queue_that_lacks_an_entry_is_refused(pair: Pair) -> None:
    master, slave = pair
    for body in (b"one", b"two"):
        master.append(body)
    data = raw(master)
    size = len(data) // 2
    slave.store.append_log(0, data[:size])
    gap = data[size : size + 20] + struct.pack(">q", 2) + data[size + 28 :]
    with pytest.raises(ValueError, match="is entry 2 of the queue 0 of T, where 1 comes next"):
        slave.store.append_log(size, gap)
    assert slave.bodies() == [b"one"]


def test_held_pulls_are_woken_by_a_masters_bytes(pair: Pair) -> None:
    master, slave = pair
    wire = slave.connect()
    assert wire.ask(holding_pull()) == []
    master.append(b"one")
    slave.store.append_log(0, raw(master))
    (answer,) = slave.wait_ready()[wire.connection_id]
    assert (answer.code, b"one" in answer.body) == (0, True)
