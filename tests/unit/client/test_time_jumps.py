"""The wall clock is set, an hour forth or back, while clients work."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from kerolox import clock
from kerolox.client import Producer, ProducerSettings
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import TRACE_TOPIC
from tests.support.eventually import until
from tests.support.servers.fake_broker import route_body
from tests.unit.client.test_orderly import LockBroker, Orderly
from tests.unit.client.test_push_consumer import Consumer

HOUR_MS = 3_600_000
SEND = RequestCode.SEND_MESSAGE_V2


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[LockBroker]:
    async with LockBroker() as made:
        yield made


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the wall clock forth by so many milliseconds, or back."""

    def set_clock(by_ms: int) -> None:
        now_ns = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + by_ms * 1_000_000)

    return set_clock


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_the_steady_clock_does_not_jump(jump: Callable[[int], None], by_ms: int) -> None:
    before, wall = clock.steady_ms(), clock.now_ms()
    jump(by_ms)
    assert 0 <= clock.steady_ms() - before < HOUR_MS // 2
    assert abs(clock.now_ms() - wall - by_ms) < HOUR_MS // 2


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_a_consumer_keeps_its_queues(
    broker: LockBroker, jump: Callable[[int], None], by_ms: int
) -> None:
    broker.count = 1
    async with Consumer(broker) as consumer:
        await until(lambda: consumer.got)
        before = dict(consumer._assignments)
        jump(by_ms)
        await consumer.rebalance()
        assert consumer._assignments == before
        broker.add(1)
        await until(lambda: len(consumer.got) == 2)
    assert broker.committed["T", 0] == 2


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_a_listener_is_overdue_and_counted_by_the_steady_clock(
    broker: LockBroker, jump: Callable[[int], None], by_ms: int
) -> None:
    broker.count = 1
    async with Consumer(broker, consume_concurrency=2) as consumer:
        consumer.gate.clear()
        await until(lambda: consumer.got)
        jump(by_ms)
        await consumer._clean_expired()
        assert not broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK]
        consumer.gate.set()
        await until(lambda: consumer._running.consuming.stats["T"].consumed.total)
        answer = await broker.ask_client(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g")
        assert b'"consumeOKTPS":0.01' in answer.body
        [rate] = re.findall(rb'"consumeRT":([0-9.E+-]+)', answer.body)
        assert 0 <= float(rate) < HOUR_MS // 2


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_what_is_read_in_order_is_read_on(
    broker: LockBroker, jump: Callable[[int], None], by_ms: int
) -> None:
    broker.count = 1
    async with Orderly(broker) as consumer:
        await until(lambda: consumer.seen)
        jump(by_ms)
        broker.add(1)
        await until(lambda: len(consumer.seen) == 2)
    assert consumer.seen == [(0, 0), (1, 0)]


async def test_a_lock_ends_in_its_time_though_the_clock_is_set_back(
    broker: LockBroker, jump: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Orderly(broker) as consumer:
        [assignment] = [each for each in consumer._assignments.values() if each.queue.topic == "T"]
        orderly = assignment.orderly
        assert orderly is not None
        jump(-HOUR_MS)
        assert orderly.is_locked(clock.steady_ms())
        steady_ms = clock.steady_ms
        monkeypatch.setattr(clock, "steady_ms", lambda: steady_ms() + 31_000)
        assert not orderly.is_locked(clock.steady_ms())
        pulls = len(broker.seen[RequestCode.PULL_MESSAGE])
        broker.is_silent = True
        broker.add(1)
        await asyncio.sleep(0)
        await consumer._renew_locks()
        assert consumer.seen == []
        assert len(broker.seen[RequestCode.PULL_MESSAGE]) <= pulls + 1


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_traces_are_sent_within_half_a_second(
    broker: LockBroker, jump: Callable[[int], None], by_ms: int
) -> None:
    broker.routes[TRACE_TOPIC] = route_body({"a": broker.address})
    settings = ProducerSettings(enable_trace=True)
    async with Producer("p", broker.address, settings=settings) as producer:
        for _ in range(2):  # the second one waits with the clock that was set
            await producer.send(Message("T", b"x"))
            jump(by_ms)
        sent = len([c for c in broker.seen[SEND] if c.ext_fields["b"] == TRACE_TOPIC])
        await until(
            lambda: len([c for c in broker.seen[SEND] if c.ext_fields["b"] == TRACE_TOPIC]) > sent
        )


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS, -60 * 24 * HOUR_MS])
async def test_sends_and_requests_have_their_own_time(
    broker: LockBroker, jump: Callable[[int], None], by_ms: int
) -> None:
    async with Producer("p", broker.address) as producer:
        ids = {(await producer.send(Message("T", b"x"))).message_id}
        gate = asyncio.Event()

        async def later(command: object) -> object:
            await gate.wait()
            return broker.stored(command)  # type: ignore[arg-type]

        broker.answers[SEND] = later  # type: ignore[assignment]
        sending = asyncio.ensure_future(producer.send(Message("T", b"x"), timeout_ms=60_000))
        await until(lambda: len(broker.seen[SEND]) == 2)
        jump(by_ms)
        gate.set()
        ids.add((await sending).message_id)
        ids.add((await producer.send(Message("T", b"x"))).message_id)
        assert len(ids) == 3
