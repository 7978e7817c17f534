"""Simple consumers: what they hold, keep, acknowledge together, and how they outlive brokers."""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    Producer,
    SimpleConsumer,
    SimpleConsumerSettings,
    connect,
)
from kerolox.client import sync as blocking
from kerolox.client.aio.consumers.popping import receiving
from kerolox.client.core.hooks import RpcHook
from kerolox.errors import BrokerError, ConfigError, TopicRouteNotFoundError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.testing import LocalBroker
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kerolox.message import MessageExt
    from kerolox.protocol.command import RemotingCommand

ACK, BATCH, CHANGE = (
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
KEPT_MS = 900
"""An invisible time that is over soon, and is renewed every 600 ms."""


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as made:
        yield made


@pytest_asyncio.fixture
async def producer(broker: LocalBroker) -> AsyncIterator[Producer]:
    async with Producer("p", broker.name_server) as made:
        yield made


@pytest.fixture
def topic(broker: LocalBroker) -> str:
    return broker.create_topic(queues=2)


class Counting(RpcHook):
    """Counts requests; answers those of some codes as a broker does that knows none such."""

    def __init__(self, *unknown: int) -> None:
        self.codes: Counter[int] = Counter()
        self._unknown = unknown

    def before_request(self, address: str, request: RemotingCommand) -> None:
        self.codes[request.code] += 1

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        if request.code in self._unknown:
            response.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def simple(broker: LocalBroker, topic: str, group: str = "", **settings: Any) -> SimpleConsumer:
    given = SimpleConsumerSettings(**{"from_first": True, **settings})
    made = SimpleConsumer(group or uuid.uuid4().hex, broker.name_server, settings=given)
    made.subscribe(topic)
    return made


async def send(producer: Producer, topic: str, count: int, size: int = 4) -> None:
    bodies = [b"%0*d" % (size, number) for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))


async def received(consumer: SimpleConsumer, count: int, **more: Any) -> list[MessageExt]:
    got: list[MessageExt] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += await consumer.receive(min(32, count - len(got)), wait=5, **more)
    return got


# -- acknowledgements -----------------------------------------------------------------------------
async def test_messages_of_a_list_are_acknowledged_by_one_request(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 40)
    hook = Counting()
    async with simple(broker, topic, rpc_hook=hook) as consumer:
        await consumer.ack(await received(consumer, 40))
        assert (hook.codes[BATCH], hook.codes[ACK]) == (1, 0)
        assert await consumer.receive(wait=0) == []


async def test_messages_of_many_callers_are_acknowledged_by_one_request(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 20)
    hook = Counting()
    async with simple(broker, topic, rpc_hook=hook) as consumer:
        got = await received(consumer, 20)
        done = [consumer.submit_ack(each) for each in got]
        await asyncio.wait(done)
        assert all(each.exception() is None for each in done)
        assert (hook.codes[BATCH], hook.codes[ACK]) == (1, 0)


async def test_a_broker_without_batches_gets_one_request_for_each(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 6)
    hook = Counting(BATCH)
    async with simple(broker, topic, rpc_hook=hook) as consumer:
        for number in (1, 2):
            await consumer.ack(await received(consumer, 3))
            # The refusal is remembered.
            assert (hook.codes[BATCH], hook.codes[ACK]) == (1, 3 * number)


async def test_a_copy_of_a_message_is_as_good_as_the_message(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 3)
    async with simple(broker, topic, held_messages_max=3) as consumer:
        one, two, three = [copy.copy(each) for each in await received(consumer, 3)]
        assert one.properties["POP_CK"].endswith(f" {one.queue_offset}")
        await consumer.ack([one, two])
        await consumer.extend(three, 30)
        await consumer.ack(three)
        assert await consumer.receive(wait=0) == []


async def test_a_caller_that_is_cancelled_has_its_message_acknowledged(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 1)
    group = uuid.uuid4().hex
    async with simple(broker, topic, group) as consumer:
        caller = asyncio.create_task(consumer.ack(await received(consumer, 1, invisible=0.3)))
        await asyncio.sleep(0)
        caller.cancel()
        assert isinstance((await asyncio.gather(caller, return_exceptions=True))[0], BaseException)
    async with simple(broker, topic, group) as later:
        assert await later.receive(wait=0.6) == []


async def test_what_is_no_message_is_named(broker: LocalBroker, topic: str) -> None:
    async with simple(broker, topic) as consumer:
        for wrong in (7, [7], [Message(topic, b"")]):
            for way in (consumer.submit_ack, consumer.keep):
                with pytest.raises(ConfigError, match="MessageExt"):
                    way(wrong)  # type: ignore[arg-type]


async def test_a_receipt_that_was_changed_starts_at_its_message(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    queue = (await producer.queues(topic))[0]
    for number in range(3):
        await producer.send(Message(topic, b"%d" % number), queue=queue)
    async with simple(broker, topic) as consumer:
        message = (await received(consumer, 3))[2]
        assert message.properties["POP_CK"].split()[0] == "0"
        await consumer.extend(message, 30)
        # A broker of RocketMQ finds the acknowledgement's checkpoint by it.
        assert message.properties["POP_CK"].split()[0] == str(message.queue_offset) == "2"


# -- bounds ---------------------------------------------------------------------------------------
async def test_no_more_is_received_than_may_be_held(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 12)
    async with simple(broker, topic, held_messages_max=5) as consumer:
        held = await received(consumer, 5)
        assert await consumer.receive(wait=0.05) == []
        waiting = asyncio.create_task(consumer.receive(4, wait=20))
        await until(lambda: consumer._receiver._without_capacity)
        await consumer.ack(held[:2])
        more = await waiting
        assert 1 <= len(more) <= 2
        # Whoever holds all that may be held gets the next one for one that is given back.
        more += await received(consumer, 2 - len(more)) if len(more) < 2 else []
        assert await consumer.receive(wait=0.05) == []
        await consumer.nack(more[0], after=60)
        assert len(await received(consumer, 1)) == 1


async def test_bodies_that_are_held_have_a_bound(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 4, size=600_000)
    async with simple(broker, topic, held_mib_max=1) as consumer:
        held = await received(consumer, 2)
        assert await consumer.receive(wait=0.05) == []
        await consumer.ack(held)
        assert await received(consumer, 1)


async def test_what_others_may_get_is_held_no_more(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 2)
    async with simple(broker, topic, held_messages_max=2) as consumer:
        await received(consumer, 2, invisible=0.2)
        again = await received(consumer, 2)
        assert [each.reconsume_times for each in again] == [1, 1]


# -- leases ---------------------------------------------------------------------------------------
async def test_a_message_is_kept_while_somebody_works_on_it(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 2)
    hook = Counting()
    async with simple(broker, topic, invisible_ms=KEPT_MS, rpc_hook=hook) as consumer:
        got = await received(consumer, 2)
        with consumer.keep(got) as keeping:
            async with asyncio.timeout(SECONDS_MAX):
                assert await consumer.receive(wait=3 * KEPT_MS / 1000) == []
            assert hook.codes[CHANGE] >= 4
            await consumer.ack(got[0])
            await consumer.nack(got[1])
            assert not keeping.lost
        (again,) = await received(consumer, 1)
        assert (again.body, again.reconsume_times) == (got[1].body, 1)
        await consumer.ack(again)
        assert await consumer.receive(wait=2 * KEPT_MS / 1000) == []


async def test_a_message_is_kept_until_its_block_ends_or_its_time(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 2)
    async with simple(broker, topic, invisible_ms=KEPT_MS) as consumer:
        one, two = await received(consumer, 2)
        with pytest.raises(TimeoutError), consumer.keep(one):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        start = time.monotonic()
        consumer.keep(two, up_to=2.5 * KEPT_MS / 1000)
        again = await received(consumer, 2, invisible=60)
        assert [each.body for each in again] == [one.body, two.body]
        assert time.monotonic() - start >= 2.4 * KEPT_MS / 1000


async def test_a_consumer_that_closes_keeps_nothing(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 1)
    group = uuid.uuid4().hex
    async with connect(broker.name_server) as connection:
        settings = SimpleConsumerSettings(from_first=True, invisible_ms=KEPT_MS)
        async with connection.simple_consumer(group, settings=settings) as consumer:
            consumer.subscribe(topic)
            consumer.keep(await received(consumer, 1))
        async with simple(broker, topic, group) as other:
            assert (await received(other, 1))[0].reconsume_times == 1


async def test_a_lease_that_is_lost_is_named(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 1)
    failures: list[Exception] = []
    settings = {"invisible_ms": KEPT_MS, "on_failure": lambda _, error: failures.append(error)}
    async with simple(broker, topic, **settings) as consumer:
        (message,) = await received(consumer, 1)
        with consumer.keep(message) as keeping:
            other = copy.copy(message)
            async with simple(broker, topic, consumer.group) as tool:
                await tool.ack(other)
            await until(lambda: keeping.lost)
        assert keeping.lost == [message]
        assert isinstance(failures[0], BrokerError)


async def test_what_was_received_is_there_again_when_its_time_was_turned_over(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 1)
    async with simple(broker, topic) as consumer:
        await received(consumer, 1)
        await asyncio.to_thread(broker.advance, seconds=61)
        (again,) = await consumer.receive(wait=0)
        assert again.reconsume_times == 1


# -- ends -----------------------------------------------------------------------------------------
async def test_what_comes_after_a_close_is_given_back(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    group = uuid.uuid4().hex
    async with connect(broker.name_server) as connection:
        settings = SimpleConsumerSettings(from_first=True)
        async with connection.simple_consumer(group, settings=settings) as consumer:
            consumer.subscribe(topic)
            waiting = asyncio.create_task(consumer.receive(wait=60))
            await until(lambda: consumer._receiver.polls)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        # The connection is open, so the broker holds the pop on.
        await send(producer, topic, 1)
        async with simple(broker, topic, group) as other:
            assert len(await received(other, 1)) == 1


async def test_messages_are_received_ahead_where_that_is_wanted(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    await send(producer, topic, 10)
    settings = {"receive_ahead": 4, "receive_batch_size": 4}
    async with simple(broker, topic, **settings) as consumer:
        assert len(await received(consumer, 4)) == 4
        await until(lambda: consumer._receiver.ready_count)
        got = [await anext(consumer) for _ in range(6)]
        assert len({each.body for each in got}) == 6


async def test_a_loop_gets_as_many_at_once_and_ahead_as_it_is_quick(
    broker: LocalBroker, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(producer, topic, 100)
    async with simple(broker, topic, receive_ahead=None) as consumer:
        receiver, got = consumer._receiver, []
        monkeypatch.setattr(receiving, "PACE_SECONDS", 60.0)
        got += [await anext(consumer) for _ in range(40)]
        assert receiver.batch_size == 32
        await until(lambda: receiver.ready_count >= 32 - 8)
        monkeypatch.setattr(receiving, "PACE_SECONDS", 1e-9)
        got += [await anext(consumer) for _ in range(60)]
        assert receiver.batch_size == 1
        assert len({each.body for each in got}) == 100


async def test_all_loops_that_wait_get_messages_of_one_pop(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    async with simple(broker, topic, wait_ms=600_000) as consumer:
        loops = [asyncio.ensure_future(anext(consumer)) for _ in range(3)]
        await until(lambda: len(consumer._receiver._waiting) == 3)
        await producer.send_batch([Message(topic, b"%d" % number) for number in range(3)])
        async with asyncio.timeout(SECONDS_MAX):
            assert {message.body for message in await asyncio.gather(*loops)} == {b"0", b"1", b"2"}


async def test_a_loop_outlives_a_broker_that_starts_again() -> None:
    with LocalBroker() as broker:
        topic = broker.create_topic(queues=1)
        async with Producer("p", broker.name_server) as producer, simple(broker, topic) as consumer:
            await send(producer, topic, 1)
            first = await anext(consumer)
            await consumer.ack(first)
            await until(lambda: not consumer._pops.acks._requests)
            following = asyncio.ensure_future(anext(consumer))
            await until(lambda: consumer._receiver.polls)
            await asyncio.to_thread(broker.restart)
            await producer.send(Message(topic, b"after"))
            async with asyncio.timeout(SECONDS_MAX):
                assert (await following).body == b"after"


async def test_a_topic_that_is_made_again_is_received_again(
    broker: LocalBroker, producer: Producer
) -> None:
    topic = broker.create_topic(queues=1)
    await send(producer, topic, 2)
    async with simple(broker, topic) as consumer, Admin(broker.name_server) as admin:
        old, _ = await received(consumer, 2)
        await admin.delete_topic(topic)
        with pytest.raises(BrokerError) as raised:
            await consumer.receive(wait=0)
        assert raised.value.code == ResponseCode.TOPIC_NOT_EXIST
        await asyncio.to_thread(broker.create_topic, topic, queues=1)
        await producer.send(Message(topic, b"new"))
        # A receipt of the topic that is gone does nothing to that of the same name.
        await consumer.ack(old)
        (new,) = await received(consumer, 1)
        assert new.body == b"new"


async def test_a_topic_that_is_gone_keeps_no_message_of_another_back(
    broker: LocalBroker, producer: Producer, topic: str
) -> None:
    noted: list[tuple[str, BaseException]] = []
    gone = broker.create_topic(queues=1)
    settings = {"on_failure": lambda *failure: noted.append(failure)}
    async with simple(broker, topic, **settings) as consumer, Admin(broker.name_server) as admin:
        consumer.subscribe(gone)
        await admin.delete_topic(gone)
        await send(producer, topic, 2)
        assert len(await received(consumer, 1)) == 1
        assert len(await received(consumer, 1)) == 1
        ((what, error),) = noted
        assert what == f"nothing is received from topic {gone}, and from others as before"
        assert isinstance(error, TopicRouteNotFoundError)
        await asyncio.to_thread(broker.create_topic, gone, queues=1)
        await send(producer, gone, 1)
        assert (await received(consumer, 1))[0].topic == gone


def test_a_blocking_consumer_keeps_and_acknowledges_without_waiting(broker: LocalBroker) -> None:
    topic = broker.create_topic(queues=1)
    settings = SimpleConsumerSettings(from_first=True, invisible_ms=KEPT_MS)
    with blocking.Producer("p", broker.name_server) as producer:
        producer.send(Message(topic, b"x"))
    consumer = blocking.SimpleConsumer(uuid.uuid4().hex, broker.name_server, settings=settings)
    consumer.subscribe(topic)
    with consumer:
        got = consumer.receive(wait=5)
        with consumer.keep(got, up_to=60):
            assert consumer.receive(wait=2 * KEPT_MS / 1000) == []
            consumer.submit_ack(got).result(SECONDS_MAX)
        assert consumer.receive(wait=0) == []
