"""Our pull consumer as a member of its group, against our broker and the Java broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kerolox.client import PullConsumer, PullConsumerSettings, PullStatus
from kerolox.client import sync as blocking
from kerolox.message import Message
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Producer
    from kerolox.message import MessageExt, MessageQueue
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio


async def first_of(consumer: PullConsumer, queue: MessageQueue) -> MessageExt:
    found: list[MessageExt] = []

    async def is_there() -> bool:
        found[:] = (await consumer.pull(queue, 0, wait=True)).messages
        return bool(found)

    await until(is_there, what=f"a message of {queue}")
    return found[0]


async def test_members_share_a_topic_when_they_ask(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    name_server = cluster.name_server
    async with PullConsumer(group, name_server) as one, PullConsumer(group, name_server) as other:
        share: list[set[MessageQueue]] = []

        async def is_shared() -> bool:
            share[:] = [
                set(await member.fetch_message_queues_in_balance(topic)) for member in (one, other)
            ]
            return [len(each) for each in share] == [2, 2]

        await until(is_shared, what="two queues for each")
        assert share[0] | share[1] == set(await producer.queues(topic))


async def test_a_message_that_is_given_back_comes_in_the_retry_topic(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    async with PullConsumer(group, cluster.name_server) as consumer:
        sent = await producer.send(Message(topic, b"again", tags="t", keys="k"))
        message = await first_of(consumer, sent.queue)
        await consumer.send_message_back(message, delay_level=1)
        retry = f"%RETRY%{group}"
        fetch = consumer._open_cluster().fetch_route
        await until(lambda: fetch(retry), what="the retry topic")
        [queue] = await consumer.queues(retry)
        again = await first_of(consumer, queue)
    assert (again.body, again.tags, again.keys) == (b"again", "t", "k")
    assert again.reconsume_times == 1
    assert again.properties["RETRY_TOPIC"] == topic


async def test_noted_offsets_are_there_for_the_next_member(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    given = PullConsumerSettings(persist_interval_ms=60_000)
    sent = await producer.send(Message(topic, b"x"))
    async with PullConsumer(group, cluster.name_server, settings=given) as consumer:
        await first_of(consumer, sent.queue)
        consumer.update_consume_offset(sent.queue, 1)
        assert await consumer.fetch_consume_offset(sent.queue) == 1
        assert await consumer.fetch_consume_offset(sent.queue, from_store=True) in (-1, 0)
    async with PullConsumer(group, cluster.name_server) as consumer:
        assert await consumer.fetch_consume_offset(sent.queue) == 1


async def test_the_blocking_client_does_the_same(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    sent = await producer.send(Message(topic, b"x"))

    def run() -> None:
        with blocking.PullConsumer(group, cluster.name_server) as consumer:
            assert len(consumer.fetch_message_queues_in_balance(topic)) == 4
            assert consumer.pull(sent.queue, 0, wait=True).status is PullStatus.FOUND
            consumer.update_consume_offset(sent.queue, 1)
            assert consumer.fetch_consume_offset(sent.queue) == 1

    await asyncio.to_thread(run)
