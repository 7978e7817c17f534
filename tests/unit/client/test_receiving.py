"""A receive waits for what it asked for, whatever the clock says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from kerolox.client.aio.consumer_settings import SimpleConsumerSettings
from kerolox.client.aio.consumers.popping.receiving import Pace, ReceiveLimits, Receiver
from kerolox.protocol.codes import Perm
from tests.support.eventually import until


class _Loop:
    """The loop, whose timers are counted."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.timers = 0

    def call_at(self, *args: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return self._loop.call_at(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_after_a_pause_a_receive_waits_for_its_pop_without_a_busy_loop() -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def pop(*_: object) -> Any:
        return await answer

    async def route(_: str) -> None:
        pass

    queue = SimpleNamespace(broker_name="broker-a", perm=Perm.READ)
    cluster = SimpleNamespace(
        timeout_seconds=1.0, routes={"T": SimpleNamespace(queues=[queue])}, route=route
    )
    held = SimpleNamespace(capacity=lambda now: 1, next_end=None, add=lambda leases, now: None)
    receiver = Receiver(
        cast("Any", cluster),
        cast("Any", SimpleNamespace(pop=pop)),
        SimpleConsumerSettings(),
        cast("Any", {"T": None}),
        cast("Any", held),
    )
    loop = _Loop()
    receiver._loop = cast("Any", loop)
    # The process stood still for longer than the pop was to take.
    limits = ReceiveLimits(1, 60_000, asyncio.get_running_loop().time() - 100)
    receiving = asyncio.create_task(receiver.receive(limits))
    await until(lambda: receiver.polls, what="the pop")
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.timers == 1
    answer.set_result(SimpleNamespace(leases=[], pulled=SimpleNamespace(messages=[])))
    assert await receiving == []


def test_a_pace_is_that_of_the_loop_alone_and_follows_it() -> None:
    pace = Pace()
    assert pace.most(32) is None
    for number in range(16):
        pace.took(number / 1000)
    pace.waits(0.016)
    assert pace.most(32) == 32
    assert pace.most(4) == 4
    # What it waits for messages does not count, and what it does with one does.
    pace.took(1_000.0)
    pace.waits(1_000.001)
    assert pace.most(32) == 32
    for number in range(8):
        pace.took(2_000.0 + number)
    pace.waits(2_008.0)
    assert pace.most(32) == 0
    for number in range(2_000):
        pace.took(3_000.0 + number / 1_000)
        pace.most(32)
    assert pace.most(32) == 32
