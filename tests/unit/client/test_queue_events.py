"""What users learn of their queues, and stores of offsets that they bring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from kerolox.client import PushConsumerSettings, QueueChange, sync
from kerolox.client.aio.consumers import queue_events
from kerolox.client.aio.consumers.push.ownership import ownership
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

FIRST = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
T0 = MessageQueue("T", "a", 0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


async def test_queues_that_come_and_go_are_told_before_pulls_and_before_offsets_are_stored(
    broker: QueueBroker,
) -> None:
    broker.count = 1
    consumer = Consumer(broker, persist_interval_ms=600_000)
    told: list[object] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        told.append(("assigned", queues, len(broker.seen[RequestCode.PULL_MESSAGE])))

    def revoked(queues: list[MessageQueue]) -> None:
        stored = len(broker.seen[RequestCode.UPDATE_CONSUMER_OFFSET])
        told.append(("revoked", queues, stored))

    consumer.on_assigned(assigned)
    consumer.on_revoked(revoked)
    consumer.on_queues_changed(told.append)
    async with consumer:
        await until(lambda: consumer.got)
        broker.members = ["!", consumer.client_id]
        await consumer.rebalance()
        broker.members = [consumer.client_id]
        await consumer.rebalance()
    assert told[:4] == [
        ("assigned", [T0], 0),
        QueueChange("T", [T0], [T0]),
        ("revoked", [T0], 0),
        QueueChange("T", [T0], []),
    ]
    assert [each[0] for each in told if isinstance(each, tuple)][-1] != "assigned"
    assert isinstance(told[-1], tuple)
    assert told[-1][0] == "revoked"  # by the close


async def test_callbacks_that_fail_or_hang_hold_nothing_up(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_events, "CALLBACK_SECONDS_MAX", 0.01)
    broker.count = 1
    consumer = Consumer(broker)

    async def hang(_: list[MessageQueue]) -> None:
        await asyncio.Event().wait()

    consumer.on_assigned(lambda queues: queues[99:100][0] and None)
    consumer.on_assigned(hang)
    async with consumer:
        await until(lambda: consumer.got)
    assert "takes more than" in caplog.text
    assert "IndexError" in caplog.text


async def test_a_callback_that_hangs_keeps_no_offset_from_being_stored_by_a_close(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "CALLBACK_SECONDS_AT_CLOSE", 0.01)
    broker.count = 1
    consumer = Consumer(broker, persist_interval_ms=600_000)

    async def hang(_: list[MessageQueue]) -> None:
        await asyncio.Event().wait()

    consumer.on_revoked(hang)
    async with consumer:
        await until(lambda: consumer.got)
    assert broker.committed["T", 0] == 1


async def test_the_blocking_client_calls_back_in_its_listener_threads(broker: QueueBroker) -> None:
    told: list[list[MessageQueue]] = []

    def run() -> None:
        consumer = sync.PushConsumer("g", broker.address, settings=FIRST)
        broker.members = [consumer.client_id]
        consumer.on_assigned(told.append)
        consumer.subscribe("T", "*", lambda _: None)
        with consumer:
            assert told == [[T0]]

    await asyncio.to_thread(run)


class Store:
    """Offsets in memory; plain or async."""

    def __init__(self, offsets: dict[MessageQueue, int]) -> None:
        self.offsets = offsets

    def load(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.offsets.update(offsets)


class AsyncStore(Store):
    async def load(self, queue: MessageQueue) -> int | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.offsets.get(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.offsets.update(offsets)


@pytest.mark.parametrize("kind", [Store, AsyncStore])
async def test_offsets_may_be_kept_by_a_store_of_the_users(
    broker: QueueBroker, kind: type[Store]
) -> None:
    broker.count = 5
    store = kind({T0: 2})
    async with Consumer(broker, offset_store=store) as consumer:
        await until(lambda: len(consumer.got) == 3)
    assert [m.queue_offset for m in consumer.got] == [2, 3, 4]
    assert store.offsets == {T0: 5}
    assert broker.seen[RequestCode.QUERY_CONSUMER_OFFSET] == []


async def test_a_store_that_fails_keeps_its_queue_waiting(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Store):
        failures = 1

        def load(self, queue: MessageQueue) -> int | None:
            if self.failures:
                self.failures -= 1
                raise OSError("no disk")
            return None

    broker.count = 1
    async with Consumer(broker, offset_store=Failing({})) as consumer:
        await until(lambda: consumer.got)
    assert "load of the offset store failed: OSError('no disk')" in caplog.text
