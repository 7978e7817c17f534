"""One connection for all kinds of clients, against our broker and against Java's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import kerolox
from kerolox.admin import Admin
from kerolox.client import (
    LitePullConsumerSettings,
    PushConsumerSettings,
    TransactionState,
    create_reply,
)
from kerolox.message import Message, MessageExt
from tests.contract.conftest import FIRST
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Connection, PushConsumer
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

READS = PushConsumerSettings(consume_from_where=FIRST)


def consumer_of(
    connection: Connection, group: str, topic: str
) -> tuple[PushConsumer, list[MessageExt]]:
    got: list[MessageExt] = []
    consumer = connection.push_consumer(group, settings=READS)
    consumer.subscribe_each(topic, "*", got.append)
    return consumer, got


async def test_producers_and_consumers_of_a_connection_work_side_by_side(
    cluster: Cluster, topic: str, group: str
) -> None:
    lite = LitePullConsumerSettings(consume_from_where=FIRST)
    async with kerolox.connect(cluster.name_server) as connection:
        pushed, got = consumer_of(connection, group, topic)
        pulled = connection.lite_pull_consumer(f"{group}-lite", settings=lite)
        pulled.subscribe(topic)
        async with connection.producer(f"{group}-p") as producer, pushed, pulled:
            sent = {b"%d" % n for n in range(40)}
            await asyncio.gather(*(producer.send(Message(topic, body)) for body in sent))
            polled: set[bytes] = set()
            while len(polled) < len(sent):
                polled |= {message.body for message in await pulled.poll(timeout_ms=60_000)}
            await until(lambda: len(got) >= len(sent))
            assert {message.body for message in got} == sent == polled
            cluster_of = connection._open_cluster()
            # One connection to the broker, maybe another to the name server.
            assert set(cluster_of.remoting._connections) <= {cluster.broker, cluster.name_server}
            admin = Admin.on(connection.access)
            for name in (group, f"{group}-lite"):
                assert await cluster_of.members(name, topic) == [connection.client_id]
            assert await admin.list_groups()


async def test_a_member_that_leaves_gives_its_queues_to_the_rest_of_its_group(
    cluster: Cluster, topic: str, group: str
) -> None:
    async with (
        kerolox.connect(cluster.name_server) as one,
        kerolox.connect(cluster.name_server) as other,
    ):
        first, _ = consumer_of(one, group, topic)
        second, got = consumer_of(other, group, topic)
        beside, heard = consumer_of(one, f"{group}-b", topic)
        async with first, beside, one.producer(f"{group}-p") as producer:
            await second.start()

            def owned(consumer: PushConsumer) -> int:
                return len([q for q in consumer.assigned_queues if q.topic == topic])

            # The broker's notice goes to the consumer of this group, which gives up its half.
            await until(lambda: (owned(first), owned(second)) == (2, 2), what="the halves")
            assert owned(beside) == 4
            await first.close()
            await until(lambda: owned(second) == 4, what="all queues")
            sent = {b"%d" % n for n in range(20)}
            await asyncio.gather(*(producer.send(Message(topic, body)) for body in sent))
            await until(lambda: {m.body for m in heard} == sent, what="the other group")
            await until(lambda: sent <= {m.body for m in got}, what="the rest of the group")


async def test_checks_of_transactions_and_replies_find_their_producer(
    cluster: Cluster, topic: str, group: str
) -> None:
    asked: dict[str, str] = {}

    async with kerolox.connect(cluster.name_server) as connection:
        producers = []
        for name in ("a", "b"):

            def check(message: MessageExt, name: str = name) -> TransactionState:
                asked[message.keys] = name
                return TransactionState.COMMIT

            made = connection.transaction_producer(f"{group}-{name}", check=check)
            await made.start()
            producers.append(made)
        consumer = connection.push_consumer(group, settings=READS)
        got: list[str] = []

        async def listen(message: MessageExt) -> None:
            got.append(message.keys)
            if message.properties.get("REPLY_TO_CLIENT"):
                await producers[0].send(create_reply(message, message.body.upper()))

        consumer.subscribe_each(topic, "*", listen)
        await consumer.start()
        for name, made in zip("ab", producers, strict=True):
            await made.send_in_transaction(
                Message(topic, b"x", keys=name), lambda message: TransactionState.UNKNOWN
            )
        reply = await producers[1].request(Message(topic, b"hello", keys="r"), timeout_ms=30_000)
        assert reply.body == b"HELLO"
        await until(lambda: {"a", "b"} <= set(got), what="both transactions")
    assert asked == {"a": "a", "b": "b"}
