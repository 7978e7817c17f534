"""A lite pull consumer that is cancelled at each await of what it does: it loses nothing, leaves
nothing behind, and works on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import LitePullConsumer
from kerolox.errors import ClientError
from kerolox.message import MessageQueue
from tests.support.eventually import SECONDS_MAX, until
from tests.support.faults.cancelling import each_await
from tests.unit.client.test_life import nothing_is_left
from tests.unit.client.test_lite_pull_consumer import (
    QUEUE,
    Broker,
    consumer_of,
    polled,
    subscribed,
)

Attempt = tuple[Coroutine[Any, Any, Any], Callable[[], Awaitable[None]]]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(5) as made:
        yield made


async def wait_a_moment(queues: list[MessageQueue]) -> None:
    await asyncio.sleep(0)


async def works_on(consumer: LitePullConsumer, first: int, count: int = 5) -> None:
    """All from ``first`` on is returned, in order, once."""
    assert await polled(consumer, count - first) == list(range(first, count))
    assert await consumer.poll(0) == []


async def test_a_start_may_be_cancelled_anywhere_and_repeated(broker: Broker) -> None:
    async def attempt() -> Attempt:
        consumer = subscribed(broker, auto_commit=False)
        consumer.on_assigned(wait_a_moment)

        async def check() -> None:
            await consumer.start()
            await works_on(consumer, 0)
            await consumer.close()

        return consumer.start(), check

    assert await each_await(attempt) > 3
    await nothing_is_left(broker)


async def test_a_close_may_be_cancelled_anywhere(broker: Broker) -> None:
    async def attempt() -> Attempt:
        broker.committed.clear()
        consumer = subscribed(broker)
        consumer.on_revoked(wait_a_moment)
        await consumer.start()
        await works_on(consumer, 0)

        async def check() -> None:
            await consumer.close()
            assert broker.committed["T", 0] == 5

        return consumer.close(), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_rebalance_may_be_cancelled_anywhere(broker: Broker, is_lost: bool) -> None:
    async def attempt() -> Attempt:
        broker.committed.clear()
        consumer = subscribed(broker, auto_commit=False, rebalance_interval_ms=3_600_000)
        consumer.on_assigned(wait_a_moment)
        consumer.on_revoked(wait_a_moment)
        mine, other = [consumer.client_id], ["!", consumer.client_id]
        broker.members = mine if is_lost else other
        await consumer.start()
        assert len(consumer.assigned_queues) == is_lost
        broker.members = other if is_lost else mine

        async def check() -> None:
            # It makes up for it by itself.
            await until(lambda: len(consumer.assigned_queues) == (not is_lost))
            broker.members = mine
            if is_lost:
                await consumer.rebalance()
            await works_on(consumer, 0)
            await consumer.close()

        return consumer.rebalance(), check

    assert await each_await(attempt) >= 2
    await nothing_is_left(broker)


OPERATIONS: dict[str, Callable[[LitePullConsumer], Coroutine[Any, Any, Any]]] = {
    "poll": lambda consumer: consumer.poll(1),
    "seek": lambda consumer: consumer.seek(QUEUE, 2),
    "seek_to_begin": lambda consumer: consumer.seek_to_begin(QUEUE),
    "commit": lambda consumer: consumer.commit(),
    "commit_sync": lambda consumer: consumer.commit_sync(),
    "committed": lambda consumer: consumer.committed(QUEUE),
}


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_what_a_caller_asks_may_be_cancelled_anywhere(broker: Broker, kind: str) -> None:
    async def attempt() -> Attempt:
        broker.count = 5
        consumer = subscribed(broker, auto_commit=False)
        await consumer.start()
        if kind in ("poll", "commit", "commit_sync"):
            await works_on(consumer, 0)

        async def check() -> None:
            if kind == "poll":
                await consumer.seek_to_begin(QUEUE)
            item = consumer._machine.queues[QUEUE]
            await until(lambda: item.position >= 0)
            await works_on(consumer, item.position)
            await consumer.commit_sync()
            assert broker.committed["T", 0] == 5
            await consumer.close()
            broker.committed.clear()

        return OPERATIONS[kind](consumer), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


async def test_a_close_is_bounded_while_the_broker_says_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("consumers.lite.member.OFFSETS", "network.instance.UNREGISTER"):
        monkeypatch.setattr(f"kerolox.client.aio.{bound}_SECONDS_MAX", 0.05)
    consumer = subscribed(broker)
    await consumer.start()
    await works_on(consumer, 0)
    silent = asyncio.Event()

    async def say_nothing(command: object) -> None:
        await silent.wait()

    for code in (15, 35):  # offsets, farewell
        broker.answers[code] = say_nothing  # type: ignore[assignment]
    async with asyncio.timeout(SECONDS_MAX):
        await consumer.close()
    silent.set()
    await nothing_is_left(broker)


async def test_assigning_again_and_again_keeps_one_pull_for_each_queue(broker: Broker) -> None:
    other = QUEUE._replace(queue_id=1)
    consumer = consumer_of(broker, auto_commit=False)
    async with consumer:
        for _ in range(20):
            consumer.assign([QUEUE])
            consumer.assign([QUEUE, other])
            await asyncio.sleep(0)
        assert await polled(consumer, 5) == list(range(5))
        pulls = [t for t in asyncio.all_tasks() if "_pull_always" in repr(t.get_coro())]
        assert len(pulls) == 2
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(QUEUE._replace(queue_id=2), 0)
    await nothing_is_left(broker)
