"""Waiting for the flushed position, without a store."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.broker.services.writer import FlushWaits

pytestmark = pytest.mark.asyncio


class FlushingStore:
    def __init__(self) -> None:
        self.flushed_offset = 0
        self.has_failed = False
        self.requested: list[int] = []

    def request_flush(self, physical_offset: int) -> None:
        self.requested.append(physical_offset)


async def test_one_wake_up_releases_all_that_the_flush_covers():
    store = FlushingStore()
    waits = FlushWaits(store, 10.0)
    tasks = [asyncio.create_task(waits.wait(offset)) for offset in (300, 100, 200)]
    await asyncio.sleep(0)
    assert store.requested == [300, 100, 200]
    store.flushed_offset = 200
    waits.wake()
    assert await tasks[1]
    assert await tasks[2]
    assert not tasks[0].done()
    store.flushed_offset = 300
    waits.wake()
    assert await tasks[0]


async def test_what_is_on_disk_already_does_not_wait():
    store = FlushingStore()
    store.flushed_offset = 100
    assert await FlushWaits(store, 10.0).wait(100)
    assert store.requested == []


async def test_a_wait_ends_at_its_limit_and_leaves_nothing_behind():
    waits = FlushWaits(FlushingStore(), 0.01)
    assert not await waits.wait(100)
    waits.wake()
    assert waits._waits == []


async def test_nobody_waits_for_a_flush_that_will_not_come():
    store = FlushingStore()
    waits = FlushWaits(store, 10.0)
    covered, lost = (asyncio.create_task(waits.wait(offset)) for offset in (100, 200))
    await asyncio.sleep(0)
    store.flushed_offset, store.has_failed = 100, True
    waits.wake()
    assert await covered
    assert not await lost
    assert waits._waits == []
    assert not await waits.wait(300)
    assert store.requested == [100, 200]
