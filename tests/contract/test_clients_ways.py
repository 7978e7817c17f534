"""What the other contract tests leave out, on our broker and on the Java broker.

Where groups start, delays, dead letters of what is read in order, binary headers, automatic
batches, one client for all.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    ConsumeFromWhere,
    ConsumeStatus,
    LitePullConsumer,
    LitePullConsumerSettings,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
    connect,
)
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.contract.test_clients_consume import bodies, owned
from tests.contract.test_clients_outcomes import dead_letters
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

MEMORY_RATIO = "accessMessageInMemoryMaxRatio"


# -- where a group starts -------------------------------------------------------------------------
@pytest_asyncio.fixture
async def cold(cluster: Cluster, tmp_path: Path) -> AsyncIterator[str]:
    """A name server whose broker counts all that is stored as cold: it says that a new group has no
    offset, and its clients decide where it starts."""
    if cluster.kind == "ours":  # which takes this setting with a start
        with Up(tmp_path, settings={MEMORY_RATIO: "0"}) as up:
            yield up.namesrv
        return
    async with Admin(cluster.name_server) as admin:
        before = (await admin.broker_settings(cluster.broker))[MEMORY_RATIO]
        await admin.update_broker_settings({MEMORY_RATIO: "0"}, broker=cluster.broker)
        yield cluster.name_server
        await admin.update_broker_settings({MEMORY_RATIO: before}, broker=cluster.broker)


STARTS = {
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET: [b"new", b"old"],
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET: [b"new"],
    ConsumeFromWhere.CONSUME_FROM_TIMESTAMP: [b"new"],
}


async def test_new_groups_start_where_they_want(cold: str, group: str) -> None:
    topic = f"t-{group}"
    pushed: dict[ConsumeFromWhere, list[bytes]] = {where: [] for where in STARTS}
    lites: dict[ConsumeFromWhere, LitePullConsumer] = {}
    async with (
        Producer("contract-producers", cold) as producer,
        PullConsumer(f"reader-{group}", cold) as reader,
        AsyncExitStack() as stack,
    ):

        async def store(body: bytes) -> int:
            """Send a message; when it was stored."""
            result = await producer.send(Message(topic, body))
            found = await reader.pull(result.queue, result.queue_offset, wait=True)
            return found.messages[0].store_timestamp

        async def begin(where: ConsumeFromWhere, timestamp_ms: int) -> None:
            given: dict[str, Any] = {
                "consume_from_where": where,
                "consume_timestamp_ms": timestamp_ms,
            }
            name = f"{group}-{where.name}"
            push = PushConsumer(f"push-{name}", cold, settings=PushConsumerSettings(**given))
            push.subscribe(topic, "*", lambda found: pushed[where].extend(m.body for m in found))
            await stack.enter_async_context(push)
            await until(lambda: owned(push, topic) == 1)
            settings = LitePullConsumerSettings(**given)
            lites[where] = lite = LitePullConsumer(f"lite-{name}", cold, settings=settings)
            lite.subscribe(topic)
            await stack.enter_async_context(lite)
            items = lite._machine.queues.values()
            await until(lambda: [item.position >= 0 for item in items] == [True])

        await producer.create_topic(topic, queues=1)
        fetch = producer._open_cluster().fetch_route
        await until(lambda: fetch(topic), what="the route")
        old_ms = await store(b"old")
        await until(lambda: time.time() * 1000 > old_ms + 1, what="the next millisecond")
        await begin(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0)
        await begin(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 0)
        # The message nearest to a time counts: so it is that of one.
        await begin(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, await store(b"new"))
        polled = {where: await all_of(lite, len(STARTS[where])) for where, lite in lites.items()}
        await until(lambda: all(len(pushed[where]) >= len(STARTS[where]) for where in STARTS))
        assert {where: sorted(got) for where, got in pushed.items()} == STARTS
        assert polled == STARTS


async def all_of(consumer: LitePullConsumer, count: int) -> list[bytes]:
    """So many messages, sorted."""
    got: list[bytes] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += [message.body for message in await consumer.poll()]
    return sorted(got)


# -- delays, dead letters -------------------------------------------------------------------------
async def test_a_delayed_message_comes_when_it_is_due_and_others_before_it(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic)
    await producer.send(Message(topic, b"one second"), deliver_after=1)
    await producer.send(Message(topic, b"at once"))
    await until(lambda: len(got) == 2)
    assert [m.body for m in got] == [b"at once", b"one second"]
    delayed = got[1]
    assert delayed.store_timestamp - delayed.born_timestamp >= 990
    assert (delayed.topic, delayed.properties["REAL_TOPIC"]) == (topic, topic)


async def test_an_ordered_message_that_fails_too_often_is_a_dead_letter(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    seen: list[tuple[bytes, int]] = []

    async def listen(message: MessageExt) -> ConsumeStatus | None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"bad":
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return None

    for body in (b"before", b"bad", b"after"):
        await producer.send(Message(topic, body), queue=queue)
    settings = PushConsumerSettings(
        consume_from_where=FIRST, max_reconsume_times=2, suspend_current_queue_ms=10
    )
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen, ordered=True)
    async with consumer:
        await until(lambda: (b"after", 0) in seen)
    assert seen == [(b"before", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2), (b"after", 0)]
    if cluster.kind == "ours":
        assert [m.body for m in await dead_letters(cluster, group, 1)] == [b"bad"]


# -- ways to travel -------------------------------------------------------------------------------
async def test_binary_headers_serve_all_clients(cluster: Cluster, topic: str, group: str) -> None:
    name_server, binary = cluster.name_server, {"serialize_type": "ROCKETMQ"}
    got: list[MessageExt] = []
    push = PushConsumer(
        f"push-{group}",
        name_server,
        settings=PushConsumerSettings(consume_from_where=FIRST, **binary),
    )
    push.subscribe(topic, "a", lambda messages: got.extend(messages))
    async with (
        Producer("binary", name_server, settings=ProducerSettings(**binary)) as producer,
        PullConsumer(group, name_server, settings=PullConsumerSettings(**binary)) as pull,
        push,
    ):
        sent = await producer.send(Message(topic, b"x", tags="a", keys=f"k-{topic}"))
        batch = await producer.send_batch([Message(topic, b"y", tags="a") for _ in range(3)])
        await until(lambda: len(got) == 4)
        assert bodies(got) == [b"x", b"y", b"y", b"y"]
        assert (await producer.view_by_id(topic, sent.offset_message_id)).body == b"x"
        [found, *_] = (await pull.pull(batch.queue, batch.queue_offset, wait=True)).messages
        assert found.body == b"y"
        await pull.commit(batch.queue, 3)
        assert await pull.committed(batch.queue) == 3


async def test_sends_that_are_batched_have_results_of_their_own(
    cluster: Cluster, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic)
    settings = ProducerSettings(batching=True)
    async with Producer("batching", cluster.name_server, settings=settings) as producer:
        messages = [Message(topic, b"%04d" % n, keys=f"{n}") for n in range(500)]
        results = await asyncio.gather(*map(producer.send, messages))
    await until(lambda: len(got) == 500)
    assert bodies(got) == [m.body for m in messages]
    placed = {m.message_id: (m.broker_name, m.queue_id, m.queue_offset, m.body) for m in got}
    for message, result in zip(messages, results, strict=True):
        queue = result.queue
        expected = (queue.broker_name, queue.queue_id, result.queue_offset, message.body)
        assert placed[result.message_id] == expected


async def test_messages_of_a_key_are_read_in_the_order_of_their_sends(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    got: dict[str, list[int]] = defaultdict(list)

    async def listen(message: MessageExt) -> None:
        got[str(message.keys)].append(int(message.body))

    settings = PushConsumerSettings(consume_from_where=FIRST)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen, ordered=True)
    keys = [f"key{n}" for n in range(6)]
    async with consumer:
        for number in range(5):
            for key in keys:
                message = Message(topic, b"%d" % number, keys=key)
                await producer.send(message, ordering_key=key)
        await until(lambda: sum(map(len, got.values())) == 30)
    assert got == {key: list(range(5)) for key in keys}


async def test_a_block_of_code_commits_its_message_or_rolls_it_back(
    cluster: Cluster, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic)

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    made = TransactionProducer(f"tx-{topic}", cluster.name_server, check=check)
    async with made as producer:
        async with producer.transaction(Message(topic, b"done")):
            pass
        with pytest.raises(RuntimeError, match="no money"):
            async with producer.transaction(Message(topic, b"failed")):
                raise RuntimeError("no money")
        async with producer.transaction(Message(topic, b"asked")) as transaction:
            transaction.leave_open()
        await until(lambda: len(got) == 2)
    assert bodies(got) == [b"asked", b"done"]


async def test_all_clients_of_one_connection_work_side_by_side(
    cluster: Cluster, topic: str, group: str
) -> None:
    pushed: list[MessageExt] = []
    async with connect(cluster.name_server) as connection:
        push = connection.push_consumer(
            f"push-{group}", settings=PushConsumerSettings(consume_from_where=FIRST)
        )
        push.subscribe(topic, "*", lambda messages: pushed.extend(messages))
        lite = connection.lite_pull_consumer(
            f"lite-{group}", settings=LitePullConsumerSettings(consume_from_where=FIRST)
        )
        lite.subscribe(topic)
        async with (
            push,
            lite,
            connection.pull_consumer(group) as pull,
            connection.producer("shop") as producer,
        ):
            assert len({each.client_id for each in (push, lite, pull, producer)}) == 1
            sent = [await producer.send(Message(topic, b"%d" % n)) for n in range(20)]
            polled = await all_of(lite, 20)
            await until(lambda: len(pushed) == 20)
            assert polled == bodies(pushed) == sorted(b"%d" % n for n in range(20))
            found = (await pull.pull(sent[0].queue, 0, wait=True)).messages
            assert found[0].message_id == sent[0].message_id
