"""The steps of retention, on each kernel: what is taken out is gone, the rest is whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol.records import decode_records
from tests.support.stores.bench import NOW, Bench, files, send

LOG_FILE = 64 * 1024
BODY = b"x" * 900


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """200 messages in queue 0, then 200 in queue 1: four files of the log, two of each queue."""
    for queue_id in (0, 1):
        for number in range(200):
            key = f"KEYS\x01k{queue_id}-{number}"
            bench.append(b"%d-%d" % (queue_id, number) + BODY, key, queue_id=queue_id)
    bench.store.flush()
    return bench


def drop(bench: Bench) -> str:
    path = bench.store.drop_log_file()
    assert isinstance(path, str)
    os.unlink(path)
    return path


def test_log_files_are_told_oldest_first(filled: Bench) -> None:
    told = filled.store.log_files()
    assert [start for _, start, _ in told] == [LOG_FILE * number for number in range(len(told))]
    assert {size for _, _, size in told} == {LOG_FILE}
    assert [Path(path).name for path, *_ in told] == [f"{start:020d}" for _, start, _ in told]
    assert len(told) >= 6


def test_a_dropped_file_moves_the_minimum_and_its_messages_are_gone(filled: Bench) -> None:
    store = filled.store
    kept = filled.bodies()
    first = store.log_files()[0]
    assert drop(filled) == first[0]
    assert store.min_physical_offset == LOG_FILE
    assert store.lookup(0) is None
    found = store.read("T", 0, 0, 1, None)
    assert decode_records(found[6])[0].queue_offset == found[1] - 1 > 0, "skips what is gone"
    assert store.expire_queue("T", 0, 8) == 0, "its first file has entries that live"
    low, high = store.queue_bounds("T", 0)
    assert 0 < low < 100
    assert high == 200
    assert store.read("T", 0, 0, 32, None)[:2] == (6, low), "OFFSET_TOO_SMALL, go on at the minimum"
    assert filled.bodies() == kept[low:]


def test_the_last_file_stays(filled: Bench) -> None:
    count = len(filled.store.log_files())
    for _ in range(count - 1):
        drop(filled)
    assert filled.store.drop_log_file() is None
    assert len(filled.store.log_files()) == 1
    assert filled.append(b"goes on").status == 0


def test_queue_files_follow_oldest_first_and_in_steps(filled: Bench) -> None:
    store = filled.store
    while len(store.log_files()) > 1:
        drop(filled)
    before = {name: len(data) for name, data in files(filled.path).items() if "consume" in name}
    assert before == {"consumequeue/T/0": 2, "consumequeue/T/1": 2}
    assert store.expire_queue("T", 0, 0) == 0
    assert store.expire_queue("T", 0, 1) == 1
    assert store.expire_queue("T", 0, 1) == 0, "the last one never goes"
    assert store.expire_queue("T", 1, 8) == 1
    assert store.expire_queue("T", 9, 8) == 0
    assert store.expire_queue("none", 0, 8) == 0
    assert [name.name for name in (filled.path / "consumequeue/T/0").iterdir()] == [f"{2_000:020d}"]
    assert store.queue_bounds("T", 0) == (200, 200), "no message of it is left"
    low, high = store.queue_bounds("T", 1)
    assert 100 < low < high == 200
    assert filled.append(b"next", queue_id=0).queue_offset == 200
    assert filled.bodies(queue_id=0) == [b"next"]


def test_the_files_stay_small_in_number_while_it_is_written(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(now=None)
    for number in range(2_000):
        bench.append(b"%d" % number + BODY)
        if len(bench.store.log_files()) > 3:
            drop(bench)
            bench.store.expire_queue("T", 0, 8)
        if number % 500 == 0:
            bench.store.flush()
    held = files(bench.path)
    assert len(held["consumequeue/T/0"]) <= 4
    low, high = bench.store.queue_bounds("T", 0)
    assert high == 2_000
    assert bench.bodies() == [b"%d" % number + BODY for number in range(low, high)]
    bench.wait_indexed()


def test_index_files_follow_and_the_newest_stays(filled: Bench) -> None:
    store = filled.store
    filled.wait_indexed()
    assert len(files(filled.path)["index"]) == 2
    assert store.expire_index() == []
    while len(store.log_files()) > 1:
        drop(filled)
    [gone] = store.expire_index()
    os.unlink(gone)
    assert store.expire_index() == []
    assert store.query_key("T", "k0-3", 10, 0, NOW * 2)[2] == b""
    assert store.query_key("T", "k1-199", 10, 0, NOW * 2)[2] != b""


def test_the_end_of_a_queue_is_that_of_its_last_record(filled: Bench) -> None:
    store = filled.store
    offset, size, _ = store.queue_entry("T", 1, 199)
    assert store.queue_end("T", 1) == offset + size == store.max_physical_offset
    assert store.queue_end("T", 3) == store.queue_end("none", 0) == -1
    while len(store.log_files()) > 1:
        drop(filled)
    assert 0 < store.queue_end("T", 0) < store.min_physical_offset


def test_one_queue_can_be_deleted_and_begins_anew(filled: Bench) -> None:
    store = filled.store
    wire = filled.connect()
    assert store.delete_queue("T", 0)
    assert not store.delete_queue("T", 0)
    assert not store.delete_queue("none", 0)
    assert store.queue_bounds("T", 0) == (0, 0)
    assert store.queue_bounds("T", 1) == (0, 200)
    assert not (filled.path / "consumequeue/T/0").exists()
    [answer] = wire.ask(send(b"again", e=0))
    assert answer.ext_fields["queueOffset"] == "0"
    assert store.delete_queue("T", 0)
    assert store.delete_queue("T", 1)
    assert not (filled.path / "consumequeue/T").exists()


def test_what_is_left_is_whole_after_a_restart_and_in_the_other_kernel(
    filled: Bench, other_kernel: Any, closing: list[Bench]
) -> None:
    for _ in range(4):
        drop(filled)
    for queue_id in (0, 1):
        filled.store.expire_queue("T", queue_id, 8)
    for path in filled.store.expire_index():
        os.unlink(path)
    bounds = [filled.store.queue_bounds("T", queue_id) for queue_id in (0, 1)]
    bodies = [filled.bodies(queue_id=queue_id) for queue_id in (0, 1)]
    filled.store.close()
    again = Bench(other_kernel, filled.path)
    closing.append(again)
    report = again.open()
    assert report.clean
    assert report.min_offset == 4 * LOG_FILE
    assert [again.store.queue_bounds("T", queue_id) for queue_id in (0, 1)] == bounds
    assert [again.bodies(queue_id=queue_id) for queue_id in (0, 1)] == bodies


def test_a_crash_before_the_unlink_brings_the_file_back_and_nothing_else(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    all_bodies = filled.bodies()
    path = filled.store.drop_log_file()
    assert path is not None
    copy = tmp_path / "copy"
    shutil.copytree(filled.path, copy)
    again = Bench(kernel, copy)
    closing.append(again)
    report = again.open()
    assert report.min_offset == 0
    assert again.bodies() == all_bodies
