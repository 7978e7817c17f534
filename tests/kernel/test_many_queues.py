"""Stores of more queues than are flushed one by one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.stores.bench import Bench

QUEUES = 520
DESCRIPTORS_MAX = 600
"""The Python kernel keeps those of 512 queues, the native one none."""
SMALL_QUEUES = {"mapped_file_size_consume_queue": 2_000}


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_many_queues_are_flushed_and_there_again(closed_bench: Bench, how: str) -> None:
    bench = closed_bench
    bench.open(**SMALL_QUEUES)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2 * QUEUES):
        bench.append(b"%d" % number, queue_id=number % QUEUES)
    assert len(os.listdir("/proc/self/fd")) - before <= DESCRIPTORS_MAX
    bench.store.flush()
    bench.store.close()
    if how == "kill":
        (bench.path / "abort").touch()
    report = bench.open(**SMALL_QUEUES)
    assert report.queues == QUEUES
    assert report.dispatched == 0
    for queue_id in range(QUEUES):
        assert bench.store.queue_bounds("T", queue_id) == (0, 2)
    assert bench.store.read("T", QUEUES - 1, 0, 32, None)[5] == 2
    bench.store.close()
