"""Push consumers that leave it to the broker what they read, and pop what it has them pop."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    SimpleConsumer,
    SimpleConsumerSettings,
)
from kerolox.client import sync as blocking
from kerolox.client.aio.consumers.push.ownership.broker_shares import parse_share
from kerolox.errors import ClientError, ConfigError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.testing import LocalBroker
from tests.support.eventually import SECONDS_MAX, until, wait_until
from tests.unit.client.test_simple_consumer import CHANGE, Counting, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kerolox.message import MessageExt

PULL = RequestCode.PULL_MESSAGE


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


@pytest.fixture
def group() -> str:
    return uuid.uuid4().hex


async def set_mode(broker: LocalBroker, topic: str, group: str, mode: str = "POP") -> None:
    """As mqadmin does (``setConsumeMode``)."""
    async with Admin(broker.name_server) as admin:
        await admin.set_request_mode(group, topic, mode)


def settings(**more: Any) -> PushConsumerSettings:
    given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "client_rebalance": False, **more}
    return PushConsumerSettings(**given)


def pushed(
    broker: LocalBroker, topic: str, group: str, listener: Callable[..., Any], **more: Any
) -> PushConsumer:
    made = PushConsumer(group, broker.name_server, settings=settings(**more))
    made.subscribe_each(topic, "*", listener)
    return made


async def test_all_members_pop_and_each_message_is_consumed_once(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    got: list[bytes] = []
    hook = Counting()

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    # More members than queues, and each of them gets messages.
    members = [pushed(broker, topic, group, listen, rpc_hook=hook) for _ in range(3)]
    for member in members:
        await member.start()
        assert MessageQueue(topic, "broker-test", -1) in member.assigned_queues
    await send(producer, topic, 60)
    await until(lambda: len(got) >= 60)
    for member in members:
        await member.close()
    assert len(got) == len(set(got)) == 60
    simple = SimpleConsumer(group, broker.name_server)
    simple.subscribe(topic)
    async with simple:
        assert await simple.receive(wait=0) == []


async def test_a_message_that_fails_comes_again_after_its_delay(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    tries: list[tuple[str, int]] = []

    async def listen(message: MessageExt) -> Outcome | None:
        tries.append((message.topic, message.reconsume_times))
        return Outcome.nack() if len(tries) == 1 else None

    async with pushed(broker, topic, group, listen) as consumer:
        await send(producer, topic, 1)
        await until(lambda: tries)
        await until(
            lambda: (
                not len(
                    consumer._running.popping.assignments[
                        MessageQueue(topic, "broker-test", -1)
                    ].process_queue
                )
            )
        )
        broker.advance(seconds=9)
        assert len(tries) == 1
        broker.advance(seconds=2)
        await until(lambda: len(tries) == 2)
    assert tries == [(topic, 0), (topic, 1)]


async def test_a_message_that_fails_as_often_as_it_may_is_a_dead_letter(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    tries: list[int] = []

    async def listen(message: MessageExt) -> Outcome:
        tries.append(message.reconsume_times)
        return Outcome.nack(delay=0.01)

    async with pushed(broker, topic, group, listen, max_reconsume_times=2):
        await send(producer, topic, 1)
        (dead,) = await asyncio.to_thread(broker.messages, f"%DLQ%{group}", count=1)
    assert tries == [0, 1, 2]
    assert dead.body == b"0000"


async def test_a_listener_that_wants_a_dead_letter_gives_its_reason(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)

    async def listen(message: MessageExt) -> Outcome:
        return Outcome.dead_letter("no such order")

    async with pushed(broker, topic, group, listen):
        await send(producer, topic, 1)
        (dead,) = await asyncio.to_thread(broker.messages, f"%DLQ%{group}", count=1)
    assert dead.properties["DEAD_LETTER_REASON"] == "no such order"


async def test_a_listener_that_takes_long_keeps_its_message(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    hook, over, got = Counting(), asyncio.Event(), []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)
        await over.wait()

    async with pushed(broker, topic, group, listen, pop_invisible_ms=900, rpc_hook=hook):
        await send(producer, topic, 1)
        await until(lambda: hook.codes[CHANGE] >= 2)
        over.set()
    assert got == [b"0000"]
    simple = SimpleConsumer(group, broker.name_server)
    simple.subscribe(topic)
    async with simple:
        assert await simple.receive(wait=1) == []


async def test_as_many_listeners_run_as_may_at_the_same_time(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    running, most, over = 0, 0, asyncio.Event()

    async def listen(message: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await over.wait()
        running -= 1

    async with pushed(broker, topic, group, listen, consume_concurrency=3, popped_messages_max=4):
        await send(producer, topic, 10)
        await until(lambda: running == 3)
        over.set()
        await until(lambda: not running)
    assert most == 3


async def test_messages_of_a_loop_are_popped_and_settled(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    consumer = PushConsumer(group, broker.name_server, settings=settings())
    consumer.subscribe(topic)
    await send(producer, topic, 3)
    async with consumer, asyncio.timeout(SECONDS_MAX):
        one, two, three = [await anext(consumer) for _ in range(3)]
        assert await consumer.ack(one)
        assert await consumer.nack(two, delay=0.01)
        again = await anext(consumer)
        assert (again.body, again.reconsume_times) == (two.body, 1)
        await consumer.ack(again)
    # What was not settled goes to others when the consumer closes.
    simple = SimpleConsumer(group, broker.name_server)
    simple.subscribe(topic)
    async with simple:
        assert [each.body for each in await simple.receive(wait=5)] == [three.body]


async def test_a_mode_that_is_changed_changes_how_members_read(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    got: list[bytes] = []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    def queue_ids(consumer: PushConsumer) -> list[int]:
        return [each.queue_id for each in consumer.assigned_queues if each.topic == topic]

    more = {"rebalance_interval_ms": 50, "suspend_timeout_ms": 200}
    async with pushed(broker, topic, group, listen, **more) as consumer:
        assert queue_ids(consumer) == [0, 1]
        for mode, ids in (("POP", [-1]), ("PULL", [0, 1])):
            await set_mode(broker, topic, group, mode)
            await until(lambda ids=ids: queue_ids(consumer) == ids)  # type: ignore[misc]
            got.clear()
            await send(producer, topic, 4)
            await until(lambda: len(got) >= 4)
            assert len(got) == 4


async def test_ordered_queues_are_shared_by_members(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    got = []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    consumer = PushConsumer(group, broker.name_server, settings=settings())
    consumer.subscribe_each(topic, "*", listen, ordered=True)
    async with consumer:
        await send(producer, topic, 3)
        await until(lambda: len(got) == 3)
        assert MessageQueue(topic, "broker-test", -1) not in consumer.assigned_queues


async def test_a_broker_that_shares_no_queues_has_members_share_them(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    got = []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    hook = Counting(RequestCode.QUERY_ASSIGNMENT)
    async with pushed(broker, topic, group, listen, rpc_hook=hook):
        await send(producer, topic, 3)
        await until(lambda: len(got) == 3)


async def test_a_topic_that_is_unsubscribed_is_popped_no_more(
    broker: LocalBroker, producer: Producer, topic: str, group: str
) -> None:
    await set_mode(broker, topic, group)
    other = broker.create_topic(queues=1)
    got = []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    async with pushed(broker, topic, group, listen, suspend_timeout_ms=100) as consumer:
        consumer.subscribe_each(other, "*", listen)
        consumer.unsubscribe(topic)
        await consumer.rebalance()
        await send(producer, topic, 1)
        assert topic not in {each.topic for each in consumer.assigned_queues}
    simple = SimpleConsumer(
        group, broker.name_server, settings=SimpleConsumerSettings(from_first=True)
    )
    simple.subscribe(topic)
    async with simple:
        assert len(await simple.receive(wait=5)) == 1
    assert not got


async def test_members_go_on_when_their_broker_starts_again(group: str) -> None:
    got = []

    async def listen(message: MessageExt) -> None:
        got.append(message.body)

    with LocalBroker() as broker:
        topic = broker.create_topic(queues=1)
        await set_mode(broker, topic, group)
        async with (
            Producer("p", broker.name_server) as producer,
            pushed(broker, topic, group, listen, pull_error_delay_ms=50),
        ):
            await asyncio.to_thread(broker.restart)
            await producer.send(Message(topic, b"after"))
            await until(lambda: got == [b"after"])


def test_a_blocking_consumer_pops(broker: LocalBroker, topic: str, group: str) -> None:
    asyncio.run(set_mode(broker, topic, group))
    got = []

    def listen(message: MessageExt) -> Outcome | None:
        got.append(message.reconsume_times)
        return None if message.reconsume_times else Outcome.nack(delay=0.01)

    with blocking.Producer("p", broker.name_server) as producer:
        producer.send(Message(topic, b"x"))
    consumer = blocking.PushConsumer(group, broker.name_server, settings=settings())
    consumer.subscribe_each(topic, "*", listen)
    with consumer:
        wait_until(lambda: got == [0, 1])


def test_brokers_share_by_their_own_strategies() -> None:
    with pytest.raises(ConfigError, match="AVG or AVG_BY_CIRCLE"):
        settings(allocation="CONSISTENT_HASH")


@pytest.mark.parametrize(
    "body",
    [b"7", b'{"messageQueueAssignments":7}', b'{"messageQueueAssignments":[{"mode":"POP"}]}'],
)
def test_an_assignment_that_is_unreadable_is_named(body: bytes) -> None:
    with pytest.raises(ClientError, match="assignment of b:1 is unreadable"):
        parse_share(body, "b:1")
    assert parse_share(b"{}", "b:1") is None
