"""Loops over a consumer: each message is settled by hand, and what is not comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kerolox import clock
from kerolox.client import ConsumeContext, ConsumeHook, PushConsumerSettings, sync
from kerolox.errors import ClientClosedError, ConfigError
from kerolox.message import MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import SECONDS_MAX, until
from tests.unit.client.test_orderly import LockBroker
from tests.unit.client.test_push_consumer import RETRY, Consumer, QueueBroker, record

SEND_BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[LockBroker]:
    async with LockBroker() as made:
        yield made


class Looped(Consumer):
    """Topic T has no listener."""

    def __init__(self, broker: QueueBroker, *, ordered: bool = False, **settings: Any) -> None:
        super().__init__(broker, **settings)
        self.subscribe("T", ordered=ordered)

    async def next(self) -> MessageExt:
        async with asyncio.timeout(SECONDS_MAX):
            return await anext(self)

    async def settled(self) -> int:
        """As :meth:`stored`, when this iteration of the event loop has ended."""
        await asyncio.sleep(0)
        return self.stored()

    def stored(self) -> int:
        """Up to where the queue's offset may be stored."""
        assert self._parts is not None
        return self._parts.offsets.table.read(MessageQueue("T", "a", 0))


async def test_messages_are_acked_one_by_one_and_each_once(broker: LockBroker) -> None:
    broker.count = 5
    consumer = Looped(broker)
    async with consumer:
        got = []
        async for message in consumer:
            got.append(message.queue_offset)
            assert await consumer.ack(message)
            assert not await consumer.ack(message)
            assert await consumer.settled() == message.queue_offset + 1
            if len(got) == 5:
                break
    assert got == [0, 1, 2, 3, 4]
    assert broker.committed["T", 0] == 5


async def test_several_messages_are_acked_together_and_each_once(broker: LockBroker) -> None:
    broker.count = 6
    consumer = Looped(broker)
    async with consumer:
        messages = [await consumer.next() for _ in range(6)]
        assert await consumer.ack(each for each in messages[3:5])
        assert await consumer.settled() <= 0
        assert await consumer.ack(messages[:2])
        assert await consumer.settled() == 2
        # One was acked before, and the others count.
        assert not await consumer.ack([messages[2], messages[3]])
        assert await consumer.settled() == 5
        assert await consumer.ack([])
        with pytest.raises(ConfigError, match="messages has one that is of type str"):
            await consumer.ack([messages[5], "x"])  # type: ignore[list-item]
        assert await consumer.ack(messages[5])
        assert await consumer.settled() == 6


async def test_a_loop_that_never_waits_lets_others_run(
    broker: LockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.count = 30
    consumer, others, now_ms = Looped(broker), 0, 1_000_000

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    def steady_ms() -> int:
        nonlocal now_ms
        now_ms += 1
        return now_ms

    async with consumer:
        await until(lambda: len(consumer._stream._waiting) == broker.count)
        task = asyncio.create_task(other())
        monkeypatch.setattr(clock, "steady_ms", steady_ms)
        async for message in consumer:
            assert await consumer.ack(message)
            if message.queue_offset == 29:
                break
        monkeypatch.undo()
        task.cancel()
    assert others > 5


async def test_after_a_break_messages_may_be_settled_and_a_loop_goes_on_behind(
    broker: LockBroker,
) -> None:
    broker.count = 3
    consumer = Looped(broker)
    async with consumer:
        open_ones = []
        async for message in consumer:
            open_ones.append(message)
            break
        [first] = open_ones
        async for second in consumer:
            assert second.queue_offset == 1
            assert await consumer.ack(second)
            break
        assert await consumer.settled() <= 0  # the first one is not done with
        assert await consumer.ack(first)
        assert await consumer.settled() == 2


async def test_what_is_not_acked_at_the_close_is_not_committed_nor_what_is_behind(
    broker: LockBroker,
) -> None:
    broker.count = 3
    consumer = Looped(broker)
    async with consumer:
        messages = [await consumer.next() for _ in range(3)]
        assert await consumer.ack(messages[0])
        assert await consumer.ack(messages[2])
    assert broker.committed["T", 0] == 1
    with pytest.raises(ClientClosedError):
        await consumer.ack(messages[1])


async def test_a_close_ends_loops_that_wait(broker: LockBroker) -> None:
    consumer = Looped(broker)
    got: list[MessageExt] = []

    async def loop() -> str:
        got.extend([message async for message in consumer])
        return "over"

    async with consumer:
        loops = [asyncio.ensure_future(loop()) for _ in range(3)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*loops) == ["over"] * 3
    assert got == []


async def test_a_wait_that_is_cancelled_loses_no_message(broker: LockBroker) -> None:
    consumer = Looped(broker)
    async with consumer:
        waiting = asyncio.ensure_future(consumer.next())
        await asyncio.sleep(0)
        waiting.cancel()
        broker.add(2)
        assert [(await consumer.next()).queue_offset for _ in range(2)] == [0, 1]


async def test_messages_go_back_later_or_to_the_dead_letters(broker: LockBroker) -> None:
    broker.count = 3
    consumer = Looped(broker)
    async with consumer:
        messages = [await consumer.next() for _ in range(3)]
        assert await consumer.nack(messages[0], delay=60)
        assert await consumer.nack(messages[1], delay_level=3)
        assert await consumer.dead_letter(messages[2], "bad")
        assert not await consumer.nack(messages[0])
        with pytest.raises(ConfigError):
            await consumer.nack(messages[0], delay=-1)
    assert [c.ext_fields["delayLevel"] for c in broker.seen[SEND_BACK]] == ["5", "3"]
    assert len(broker.seen[SEND]) == 1
    assert broker.committed["T", 0] == 3


async def test_a_message_of_a_lost_queue_counts_no_more(broker: LockBroker) -> None:
    broker.count = 2
    consumer = Looped(broker)
    async with consumer:
        message = await consumer.next()
        broker.members = ["!", consumer.client_id]
        await consumer.rebalance()
        assert not await consumer.ack(message)
        assert not consumer._stream._given
        # What was pulled of it is not given out any more.
        waiting = asyncio.ensure_future(consumer.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
    assert broker.committed.get(("T", 0), 0) <= 0


async def test_a_message_that_nobody_settles_is_sent_back(
    broker: LockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.count = 1
    consumer = Looped(broker)
    async with consumer:
        message = await consumer.next()
        later_ms = 16 * 60_000
        steady_ms = clock.steady_ms
        monkeypatch.setattr("kerolox.clock.steady_ms", lambda: steady_ms() + later_ms)
        await consumer._clean_expired()
        assert not await consumer.ack(message)
    assert len(broker.seen[SEND_BACK]) == 1


async def test_of_an_ordered_queue_the_next_message_comes_after_the_outcome(
    broker: LockBroker,
) -> None:
    broker.count = 2
    consumer = Looped(broker, ordered=True, suspend_current_queue_ms=10)
    async with consumer:
        first = await consumer.next()
        waiting = asyncio.ensure_future(consumer.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await consumer.nack(first)
        again = await waiting
        assert (again.queue_offset, again.reconsume_times) == (0, 1)
        assert await consumer.ack(again)
        last = await consumer.next()
        assert last.queue_offset == 1
        assert await consumer.ack(last)
        await until(lambda: consumer.stored() == 2)


async def test_hooks_run_around_each_message_of_a_loop(broker: LockBroker) -> None:
    told: list[tuple[str, int, bool]] = []

    class Hook(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            told.append(("before", context.messages[0].queue_offset, context.is_success))

        def after_consume(self, context: ConsumeContext) -> None:
            told.append(("after", context.messages[0].queue_offset, context.is_success))

    broker.count = 2
    consumer = Looped(broker, consume_hooks=(Hook(),))
    async with consumer:
        first, second = await consumer.next(), await consumer.next()
        assert await consumer.nack(second)
        assert await consumer.ack(first)
    assert told == [
        ("before", 0, False),
        ("before", 1, False),
        ("after", 1, False),
        ("after", 0, True),
    ]


async def test_retried_messages_come_to_the_loop_too() -> None:
    class Retrying(LockBroker):
        async def pull(self, command: RemotingCommand) -> RemotingCommand | None:
            if command.ext_fields["topic"] != RETRY or command.ext_fields["queueOffset"] != "0":
                return await super().pull(command)
            body = record(0, b"again", "RETRY_TOPIC\x01T\x02", tries=2, topic=RETRY)
            return self.answer(command, 0, 1, 1, body)

    async with Retrying() as broker:
        broker.routes[RETRY] = broker.routes["T"]
        async with Looped(broker) as consumer:
            message = await consumer.next()
            assert (message.topic, message.reconsume_times) == ("T", 2)
            assert await consumer.ack(message)
        assert broker.committed[RETRY, 0] == 1


async def test_a_consumer_whose_topics_all_have_listeners_cannot_be_looped_over(
    broker: LockBroker,
) -> None:
    consumer = Consumer(broker)
    with pytest.raises(ClientClosedError):
        await anext(consumer)
    async with consumer:
        with pytest.raises(ConfigError, match="every topic has a listener"):
            await anext(consumer)


async def test_a_blocking_consumer_is_looped_over_by_a_plain_for(broker: LockBroker) -> None:
    broker.count = 3

    def run() -> list[int]:
        settings = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
        consumer = sync.PushConsumer("g", broker.address, settings=settings)
        broker.members = [consumer.client_id]
        consumer.subscribe("T")
        got = []
        with consumer:
            for message in consumer:
                got.append(message.queue_offset)
                assert consumer.ack(message)
                if len(got) == 3:
                    break
        assert list(consumer) == []  # it is closed
        return got

    assert await asyncio.to_thread(run) == [0, 1, 2]
    assert broker.committed["T", 0] == 3
