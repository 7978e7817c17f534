"""Our consumers at a broker of RocketMQ 5.3.3 (Maven): messages that they pop."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    Outcome,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    SimpleConsumer,
    SimpleConsumerSettings,
)
from kerolox.message import Message
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import SECONDS_MAX, until
from tests.support.programs import build_broker_53
from tests.support.servers.clusters import JavaPeer
from tests.unit.client.test_simple_consumer import Counting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kerolox.message import MessageExt

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(600),
    pytest.mark.asyncio,
    pytest.mark.xdist_group("java53"),
]

LATE_SECONDS = 3.5
"""So much after its time a message comes again at the latest, where the machine has time."""


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with JavaPeer(tmp_path_factory.mktemp("java53"), built=build_broker_53) as peer:
        yield f"127.0.0.1:{peer.namesrv_port}"


@pytest_asyncio.fixture
async def producer(name_server: str) -> AsyncIterator[Producer]:
    settings = ProducerSettings(api_timeout_ms=60_000)
    async with Producer("p", name_server, settings=settings) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def topic(name_server: str, producer: Producer, group: str) -> str:
    """A topic of two queues; its group is known, too."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    await producer.create_topic(name, queues=2)
    cluster = producer._open_cluster()
    await until(lambda: cluster.fetch_route(name), what="the route")
    async with Admin(name_server, timeout_seconds=60) as admin:
        await admin.put_group(SubscriptionGroupConfig(group_name=group))
    return name


async def send(producer: Producer, topic: str, count: int) -> list[bytes]:
    bodies = [b"%04d" % number for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic, body, tags="a")) for body in bodies))
    return bodies


async def received(consumer: SimpleConsumer, count: int) -> list[MessageExt]:
    got: list[MessageExt] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += await consumer.receive(min(32, count - len(got)), wait=5)
    return got


async def test_a_simple_consumer_settles_each_message(
    name_server: str, producer: Producer, topic: str, group: str
) -> None:
    sent = await send(producer, topic, 12)
    hook = Counting()
    settings = SimpleConsumerSettings(
        from_first=True, invisible_ms=3_000, api_timeout_ms=60_000, rpc_hook=hook
    )
    consumer = SimpleConsumer(group, name_server, settings=settings)
    consumer.subscribe(topic, "a || b")
    async with consumer:
        got = await received(consumer, 12)
        assert sorted(each.body for each in got) == sent
        done, (one, kept, back, forgotten) = got[:8], got[8:]
        await consumer.ack(done)
        await consumer.ack(one)
        assert hook.codes[RequestCode.BATCH_ACK_MESSAGE] == hook.codes[RequestCode.ACK_MESSAGE] == 1
        await consumer.nack(back, after=1)
        with consumer.keep(kept):
            again: list[MessageExt] = []
            while len(again) < 2:
                again += (some := await received(consumer, 1))
                await consumer.ack(some)  # the other one may come after the time of this one
            assert sorted(each.body for each in again) == sorted([back.body, forgotten.body])
            assert [(each.topic, each.reconsume_times) for each in again] == [(topic, 1)] * 2
            # Nothing of what is done or kept comes meanwhile.
            assert await consumer.receive(wait=LATE_SECONDS) == []
            await consumer.ack(kept)
        assert await consumer.receive(wait=3 + LATE_SECONDS) == []


async def test_an_ordered_consumer_gets_a_queue_in_order(
    name_server: str, producer: Producer, topic: str, group: str
) -> None:
    queue = (await producer.queues(topic))[0]
    for number in range(4):
        await producer.send(Message(topic, b"%d" % number), queue=queue)
    settings = SimpleConsumerSettings(from_first=True, is_ordered=True, api_timeout_ms=60_000)
    consumer = SimpleConsumer(group, name_server, settings=settings)
    consumer.subscribe(topic)
    async with consumer:
        first = await consumer.receive(2, wait=5)
        assert [each.body for each in first] == [b"0", b"1"]
        assert await consumer.receive(wait=0) == []
        await consumer.ack(first)
        assert [each.body for each in await received(consumer, 2)] == [b"2", b"3"]


async def test_push_consumers_pop_and_retry(
    name_server: str, producer: Producer, topic: str, group: str
) -> None:
    async with Admin(name_server, timeout_seconds=60) as admin:
        await admin.set_request_mode(group, topic, "POP")
    tries: dict[bytes, list[int]] = {}

    async def listen(message: MessageExt) -> Outcome | None:
        tries.setdefault(message.body, []).append(message.reconsume_times)
        if message.body == b"0000":
            return Outcome.dead_letter()
        is_first = message.body == b"0001" and not message.reconsume_times
        return Outcome.nack(delay=1) if is_first else None

    settings = PushConsumerSettings(
        client_rebalance=False,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        pop_invisible_ms=5_000,
        api_timeout_ms=60_000,
    )
    # More members than queues.
    members = [PushConsumer(group, name_server, settings=settings) for _ in range(3)]
    for member in members:
        member.subscribe_each(topic, "*", listen)
        await member.start()
    await until(lambda: all(len(m._running.popping.assignments) == 1 for m in members))
    sent = await send(producer, topic, 30)
    await until(lambda: tries.keys() == set(sent) and len(tries[b"0001"]) == 2)
    for member in members:
        await member.close()
    assert tries == {body: [0, 1] if body == b"0001" else [0] for body in sent}
    async with Admin(name_server, timeout_seconds=60) as admin:

        async def has_dead_letters() -> bool:
            return f"%DLQ%{group}" in await admin.list_topics()

        await until(has_dead_letters)
