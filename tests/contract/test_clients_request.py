"""Requests that wait for a reply, by our clients, against our broker and the Java broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    create_reply,
)
from kerolox.client import sync as blocking
from kerolox.errors import BrokerBusyError, BrokerSystemError, RequestTimeoutError
from kerolox.message import Message
from tests.contract.conftest import FIRST, eventually

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.support.clusters import Cluster

pytestmark = pytest.mark.asyncio

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"

Serve = Callable[[Callable[[bytes], bytes]], Awaitable[None]]


@pytest_asyncio.fixture
async def serve(cluster: Cluster, topic: str, producer: Producer) -> AsyncIterator[Serve]:
    """Starts a consumer of the topic that replies what a function makes of a request's body."""
    consumers: list[PushConsumer] = []

    async def start(answer: Callable[[bytes], bytes]) -> None:
        async def listen(messages: list[MessageExt]) -> None:
            for message in messages:
                await producer.send(create_reply(message, answer(message.body)))

        settings = PushConsumerSettings(consume_from_where=FIRST)
        consumer = PushConsumer(f"servers-{topic}", cluster.name_server, settings=settings)
        consumer.subscribe(topic, "*", listen)
        consumers.append(consumer)
        await consumer.start()

    yield start
    for consumer in consumers:
        await consumer.close()


async def test_each_request_gets_its_own_reply(cluster: Cluster, topic: str, serve: Serve) -> None:
    """Forty at once; large ones travel compressed, both ways."""
    await serve(lambda body: b"reply to " + body)
    bodies = [b"%d " % number * (3_000 if number % 10 == 0 else 1) for number in range(40)]
    async with Producer(f"askers-{topic}", cluster.name_server) as asker:

        async def ask(body: bytes) -> MessageExt:
            while True:
                try:
                    return await asker.request(Message(topic, body), timeout_ms=20_000)
                except BrokerBusyError:  # a Java broker that has just started is so at once
                    await asyncio.sleep(0.2)

        replies = await asyncio.gather(*map(ask, bodies))
        assert [reply.body for reply in replies] == [b"reply to " + body for body in bodies]
        first = replies[0]
        assert first.topic == REPLY_TOPIC
        assert first.properties["REPLY_TO_CLIENT"] == asker.client_id
        assert first.properties["MSG_TYPE"] == "reply"
        assert first.properties["TTL"] == "20000"
        sent, pushed, arrived = (
            int(first.properties["PUSH_REPLY_TIME"]),
            first.store_timestamp,
            int(first.properties["ARRIVE_TIME"]),
        )
        assert sent - 1_000 <= pushed <= arrived + 1_000
        assert not asker._requests


async def test_a_request_that_nobody_answers_ends_when_its_time_is_over(
    cluster: Cluster, topic: str
) -> None:
    async with Producer(f"askers-{topic}", cluster.name_server) as asker:
        await asker.send(Message(topic, b"the route is known"))
        start = time.monotonic()
        with pytest.raises(RequestTimeoutError, match=f"no reply in time to .* topic {topic}"):
            await asker.request(Message(topic, b"anyone?"), timeout_ms=300)
        assert 0.29 < time.monotonic() - start < 2
        assert not asker._requests


async def test_a_reply_to_a_client_that_is_gone_is_refused_but_kept(
    cluster: Cluster, topic: str, producer: Producer
) -> None:
    async with PullConsumer(f"group-{topic}", cluster.name_server) as reader:
        async with Producer(f"askers-{topic}", cluster.name_server) as asker:
            with pytest.raises(RequestTimeoutError):
                await asker.request(Message(topic, b"in vain"), timeout_ms=100)
            gone = asker.client_id
        found: list[MessageExt] = []

        async def read() -> bool:
            for queue in await reader.queues(topic):
                found.extend((await reader.pull(queue, 0)).messages)
            return bool(found)

        await eventually(read, what="the request")
        queue = (await reader.queues(REPLY_TOPIC))[0]
        end = await reader.max_offset(queue)
        late = create_reply(found[0], b"too late")
        with pytest.raises(BrokerSystemError, match=f"channel of <{gone}> not found"):
            await producer.send(late)
        kept = (await reader.pull(queue, end)).messages
    # The send was tried three times, and each try was kept.
    assert {message.body for message in kept} == {b"too late"}
    assert kept[0].properties["CORRELATION_ID"] == found[0].properties["CORRELATION_ID"]


async def test_the_blocking_producer_does_the_same(
    cluster: Cluster, topic: str, serve: Serve
) -> None:
    await serve(bytes.upper)

    def run() -> bytes:
        with blocking.Producer(f"askers-{topic}", cluster.name_server) as asker:
            return asker.request(Message(topic, b"hello"), timeout_ms=20_000).body

    assert await asyncio.to_thread(run) == b"HELLO"
