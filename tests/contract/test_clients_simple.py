"""Our simple consumer against our broker, and at a broker of RocketMQ 4.9, which has no pops."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    SimpleConsumer,
    SimpleConsumerSettings,
    connect,
)
from kerolox.client import sync as blocking
from kerolox.errors import BrokerError, ClientError, ConfigError
from kerolox.message import Message
from kerolox.protocol.codes import SerializeType
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def producer(our_cluster: Cluster) -> AsyncIterator[Producer]:
    settings = ProducerSettings(api_timeout_ms=60_000)
    async with Producer("simple-producers", our_cluster.name_server, settings=settings) as made:
        yield made


def simple(cluster: Cluster, group: str, topic: str, expression: str = "*", **settings: Any) -> Any:
    given = {"from_first": True, "api_timeout_ms": 60_000, **settings}
    made = SimpleConsumer(group, cluster.name_server, settings=SimpleConsumerSettings(**given))
    made.subscribe(topic, expression)
    return made


async def send(producer: Producer, topic: str, count: int, **more: Any) -> list[bytes]:
    bodies = [b"%04d" % number for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic, body, **more)) for body in bodies))
    return bodies


async def received(
    consumer: SimpleConsumer, count: int, *, wait: float = 20, **more: Any
) -> list[MessageExt]:
    """So many messages."""
    got: list[MessageExt] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += await consumer.receive(32, wait=wait, **more)
    assert len(got) == count
    return got


async def test_members_share_messages_and_each_is_done_once(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    sent = await send(producer, topic, 100)
    async with simple(our_cluster, group, topic) as one, simple(our_cluster, group, topic) as two:
        got: list[MessageExt] = []
        while len(got) < 100:
            for consumer in (one, two):
                messages = await consumer.receive(8, wait=1)
                await asyncio.gather(*(consumer.ack(each) for each in messages))
                got += messages
        assert sorted(each.body for each in got) == sent
        assert await one.receive(wait=0) == []
    async with simple(our_cluster, group, topic) as later:
        assert await later.receive(wait=0) == []


async def test_a_message_that_is_given_back_comes_again(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 1)
    async with simple(our_cluster, group, topic) as consumer:
        (first,) = await received(consumer, 1)
        assert first.reconsume_times == 0
        await consumer.nack(first)
        (again,) = await received(consumer, 1)
        assert (again.body, again.topic, again.reconsume_times) == (b"0000", topic, 1)
        await consumer.ack(again)
        assert await consumer.receive(wait=0) == []


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_becomes_a_dead_letter_at_once_with_its_reason(
    our_cluster: Cluster, topic: str, group: str, namespace: str
):
    settings = ProducerSettings(namespace=namespace, api_timeout_ms=60_000)
    async with (
        Producer("simple-producers", our_cluster.name_server, settings=settings) as producer,
        simple(our_cluster, group, topic, namespace=namespace) as consumer,
    ):
        await send(producer, topic, 1, tags="new", properties={"number": "7"})
        (message,) = await received(consumer, 1)
        with pytest.raises(ConfigError, match="reason"):
            await consumer.dead_letter(message, 7)
        await consumer.dead_letter(message, "no such customer")
        assert await consumer.receive(wait=0) == []
    dead_topic = f"%DLQ%{namespace and namespace + '%'}{group}"
    async with PullConsumer("simple-readers", our_cluster.name_server) as reader:
        (queue,) = await reader.queues(dead_topic)
        (dead,) = (await reader.pull(queue, 0)).messages
        assert (dead.body, dead.tags) == (b"0000", "new")
        assert dead.properties["DEAD_LETTER_REASON"] == "no such customer"
        assert dead.properties["number"] == "7"
        assert await reader.max_offset(queue) == 1


@pytest.mark.parametrize("is_retried", [False, True])
async def test_a_dead_letter_that_is_sent_again_is_popped_again(
    our_cluster: Cluster, producer: Producer, topic: str, group: str, is_retried: bool
):
    await send(producer, topic, 1)
    async with (
        Admin(our_cluster.name_server) as admin,
        simple(our_cluster, group, topic) as consumer,
    ):
        (message,) = await received(consumer, 1)
        if is_retried:
            await consumer.nack(message)
            (message,) = await received(consumer, 1)
        for _ in range(2):
            await consumer.dead_letter(message)
            [letter] = [each async for each in admin.resend_dead_letters(group)]
            assert (letter.state, letter.error) == ("sent", "")
            assert "POP_CK" not in letter.message.properties
            (message,) = await received(consumer, 1, wait=1)
            assert (message.body, message.topic) == (b"0000", topic)
        await consumer.ack(message)
        assert await consumer.receive(wait=0) == []


async def test_a_message_is_kept_for_longer_by_its_new_receipt(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 1)
    async with simple(our_cluster, group, topic) as consumer:
        (message,) = await received(consumer, 1, invisible=timedelta(seconds=30))
        before = message.properties["POP_CK"]
        await consumer.extend(message, timedelta(minutes=5))
        assert message.properties["POP_CK"] != before
        await consumer.ack(message)
        with pytest.raises(BrokerError) as raised:
            await consumer.extend(message, 60)
        assert raised.value.code == 208


async def test_a_message_that_was_forgotten_comes_again(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 1)
    async with simple(our_cluster, group, topic) as consumer:
        await received(consumer, 1, invisible=0.2)
        (again,) = await received(consumer, 1)
        assert again.reconsume_times == 1


async def test_a_receive_waits_for_the_first_message(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    async with simple(our_cluster, group, topic) as consumer:
        waiting = asyncio.create_task(received(consumer, 1))
        await until(lambda: consumer._receiver.polls)
        await send(producer, topic, 1)
        (message,) = await waiting
        assert message.body == b"0000"


async def test_a_cancelled_receive_loses_nothing(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    async with simple(our_cluster, group, topic) as consumer:
        waiting = asyncio.create_task(consumer.receive(wait=60))
        await until(lambda: consumer._receiver.polls)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(producer, topic, 1)
        (message,) = await received(consumer, 1)
        assert message.reconsume_times == 0


async def test_a_consumer_that_closes_gives_back_what_nobody_took(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    sent = await send(producer, topic, 8)
    async with simple(our_cluster, group, topic, receive_batch_size=32) as consumer:
        first = await anext(aiter(consumer))
        await consumer.ack(first)
    async with simple(our_cluster, group, topic) as other:
        got = await received(other, 7)
        assert sorted([first.body, *(each.body for each in got)]) == sent


async def test_a_loop_gets_all_messages(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    sent = await send(producer, topic, 40)
    got: list[bytes] = []
    async with simple(our_cluster, group, topic) as consumer, asyncio.timeout(SECONDS_MAX):
        async for message in consumer:
            got.append(message.body)
            await consumer.ack(message)
            if len(got) == 40:
                break
    assert sorted(got) == sent


async def test_tags_and_conditions_choose_messages(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 3, tags="a")
    wanted = await producer.send(Message(topic, b"b", tags="b", properties={"n": "7"}))
    for expression in ("b || c", "n > 5"):
        async with simple(our_cluster, f"{group}{len(expression)}", topic, expression) as consumer:
            (message,) = await received(consumer, 1)
            assert message.message_id == wanted.message_id
            await consumer.ack(message)
            assert await consumer.receive(wait=0) == []


async def test_ordered_messages_wait_for_those_before_them(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    queue = (await producer.queues(topic))[0]
    for number in range(4):
        await producer.send(Message(topic, b"%d" % number), queue=queue)
    async with simple(our_cluster, group, topic, is_ordered=True) as consumer:
        first = await consumer.receive(2)
        assert [each.body for each in first] == [b"0", b"1"]
        assert await consumer.receive(wait=0) == []
        await asyncio.gather(*(consumer.ack(each) for each in first))
        assert [each.body for each in await received(consumer, 2)] == [b"2", b"3"]


async def test_binary_headers_are_for_other_requests(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 2)
    encoding = SerializeType.ROCKETMQ
    async with simple(our_cluster, group, topic, serialize_type=encoding) as consumer:
        got = await received(consumer, 2)
        await asyncio.gather(*(consumer.ack(each) for each in got))
        assert await consumer.receive(wait=0) == []


async def test_a_connection_makes_one(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    await send(producer, topic, 1)
    async with connect(our_cluster.name_server) as connection:
        settings = SimpleConsumerSettings(from_first=True)
        async with connection.simple_consumer(group, settings=settings) as consumer:
            consumer.subscribe(topic)
            (message,) = await received(consumer, 1)
            await consumer.ack(message)


async def test_a_blocking_one_receives_and_acknowledges(
    our_cluster: Cluster, producer: Producer, topic: str, group: str
):
    sent = await send(producer, topic, 3)

    def work() -> list[bytes]:
        settings = SimpleConsumerSettings(from_first=True)
        got: list[bytes] = []
        consumer = blocking.SimpleConsumer(group, our_cluster.name_server, settings=settings)
        consumer.subscribe(topic)
        with consumer:
            while len(got) < 3:
                for message in consumer.receive(wait=5):
                    got.append(message.body)
                    consumer.ack(message)
            assert consumer.receive(wait=0) == []
        return sorted(got)

    assert await asyncio.to_thread(work) == sent


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
async def test_leases_are_kept_while_the_wall_clock_is_set(
    our_cluster: Cluster,
    producer: Producer,
    topic: str,
    group: str,
    by_ms: int,
    monkeypatch: pytest.MonkeyPatch,
):
    await send(producer, topic, 2)
    async with simple(our_cluster, group, topic, invisible_ms=1_500) as consumer:
        got = await received(consumer, 2)
        with consumer.keep(got):
            now_ns = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: now_ns() + by_ms * 1_000_000)
            assert await consumer.receive(wait=2) == []
            await consumer.ack(got)
        assert await consumer.receive(wait=0) == []


async def test_wrong_arguments_are_named(our_cluster: Cluster, group: str):
    async with simple(our_cluster, group, "T") as consumer:
        for wrong in ({"max_messages": 33}, {"invisible": 0}, {"invisible": 10**9}, {"wait": -1}):
            with pytest.raises(ConfigError):
                await consumer.receive(**wrong)
        message = Message("T", b"")
        with pytest.raises(ConfigError):
            await consumer.ack(message)  # type: ignore[arg-type]
    async with SimpleConsumer(group, our_cluster.name_server) as consumer:
        with pytest.raises(ConfigError, match="no topic is subscribed"):
            await consumer.receive()


@pytest.mark.software
async def test_a_broker_without_pops_is_named(java_cluster: Cluster, group: str):
    topic = f"t-{uuid.uuid4().hex[:12]}"
    async with Producer("p", java_cluster.name_server) as producer:
        await producer.create_topic(topic, queues=1)
        await until(lambda: producer._open_cluster().fetch_route(topic), what="the route")
    async with simple(java_cluster, group, topic) as consumer:
        with pytest.raises(ClientError, match="serves no pops, which came with RocketMQ 5"):
            await consumer.receive()
