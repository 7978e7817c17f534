"""Our lite pull consumer against our broker and the Java broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import (
    LitePullConsumer,
    LitePullConsumerSettings,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.client import sync as blocking
from kerolox.message import Message, MessageModel, MessageQueue
from tests.contract.conftest import FIRST
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio


def lite(cluster: Cluster, group: str, **settings: Any) -> LitePullConsumer:
    given = {"consume_from_where": FIRST, "poll_timeout_ms": 500, **settings}
    return LitePullConsumer(group, cluster.name_server, settings=LitePullConsumerSettings(**given))


async def polled(consumer: LitePullConsumer, count: int) -> list[bytes]:
    """The bodies of so many messages, and no more."""
    got: list[bytes] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += [message.body for message in await consumer.poll()]
    assert len(got) == count
    return got


async def send(producer: Producer, topic: str, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%04d" % number for number in range(first, first + count)]
    await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    return bodies


async def send_to(producer: Producer, queue: MessageQueue, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await producer.send(Message(queue.topic, b"%04d" % number), queue=queue)

    async def is_there() -> bool:
        return await producer.max_offset(queue) == first + count

    # A Java broker puts messages into queues a moment after it has answered.
    await until(is_there, what="the end of the queue")


async def test_a_group_reads_all_goes_on_where_it_stopped_and_shares(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    sent = await send(producer, topic, 100)
    async with lite(cluster, group) as one:
        one.subscribe(topic)
        assert sorted(await polled(one, 100)) == sent
        await one.commit_sync()
    more = await send(producer, topic, 40, 100)
    async with lite(cluster, group) as one, lite(cluster, group) as other:
        for member in (one, other):
            member.subscribe(topic)

        def is_shared() -> bool:
            return len(one.assigned_queues) == len(other.assigned_queues) == 2

        got = [m.body for m in await one.poll()]
        await one.commit_sync()
        await until(is_shared, what="two queues for each")
        assert not set(one.assigned_queues) & set(other.assigned_queues)
        both = await asyncio.gather(*(drained(member) for member in (one, other)))
    assert sorted(got + both[0] + both[1]) == more


async def drained(consumer: LitePullConsumer) -> list[bytes]:
    """What comes until nothing comes any more."""
    ends = {queue: await consumer.max_offset(queue) for queue in consumer.assigned_queues}
    got: list[bytes] = []
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            got += [message.body for message in await consumer.poll()]
            await consumer.commit_sync()
            if [await consumer.committed(queue) for queue in ends] == list(ends.values()):
                return got


@pytest.mark.parametrize("expression", ["a || c", "n BETWEEN 0 AND 4 OR n = 7"])
async def test_tags_and_conditions_choose(
    cluster: Cluster, producer: Producer, topic: str, group: str, expression: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    for number in range(12):
        await producer.send(
            Message(topic, b"%d" % number, tags="abc"[number % 3], properties={"n": str(number)}),
            queue=queue,
        )
    wanted = [0, 2, 3, 5, 6, 8, 9, 11] if "||" in expression else [0, 1, 2, 3, 4, 7]
    async with lite(cluster, group) as consumer:
        consumer.subscribe(topic, expression)
        assert await polled(consumer, len(wanted)) == [b"%d" % number for number in wanted]
        await producer.send(Message(topic, b"last", tags="a", properties={"n": "0"}), queue=queue)
        assert await polled(consumer, 1) == [b"last"]
        # What was not wanted counts as consumed, too.
        await consumer.commit_sync()
        assert await consumer.committed(queue) == 13


async def test_assigned_queues_are_sought_paused_and_committed(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    queue, other, *_ = await producer.queues(topic)
    await send_to(producer, queue, 20)
    async with lite(cluster, group, auto_commit=False) as consumer:
        assert (await consumer.fetch_message_queues(topic))[:2] == [queue, other]
        consumer.assign([queue])
        assert await polled(consumer, 20) == [b"%04d" % number for number in range(20)]
        await consumer.seek(queue, 15)
        assert await polled(consumer, 5) == [b"%04d" % number for number in range(15, 20)]
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll())[0].body == b"0000"
        await consumer.seek_to_end(queue)
        consumer.pause([queue])
        await send_to(producer, queue, 1, 20)
        await consumer.commit_sync({queue: 7})
        async with PullConsumer(group, cluster.name_server) as reader:
            assert await reader.committed(queue) == 7
        consumer.resume([queue])
        assert await polled(consumer, 1) == [b"0020"]
        assert await consumer.offset_for_timestamp(queue, 0) == 0
        hour_ago = int(time.time() * 1000) - 3_600_000
        assert await consumer.offset_for_timestamp(queue, hour_ago) == 0
    async with lite(cluster, group) as consumer:
        consumer.assign([queue, other])
        assert await polled(consumer, 14) == [b"%04d" % number for number in range(7, 21)]


async def test_a_member_that_comes_takes_queues_and_nothing_twice_after_a_commit(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    told: list[tuple[str, int]] = []
    async with lite(cluster, group) as one:
        one.subscribe(topic)

        async def revoked(queues: list[MessageQueue]) -> None:
            told.append(("revoked", len(queues)))
            await one.commit_sync(queues)

        one.on_revoked(revoked)
        one.on_assigned(lambda queues: told.append(("assigned", len(queues))))
        await until(lambda: len(one.assigned_queues) == 4)
        sent = await send(producer, topic, 40)
        got = await polled(one, 40)
        # Members do not wait for each other: who comes reads on from what is stored then.
        await one.commit_sync()
        async with lite(cluster, group) as other:
            other.subscribe(topic)
            await until(lambda: len(other.assigned_queues) == 2 == len(one.assigned_queues))
            assert told == [("assigned", 4), ("revoked", 2)]
            more = await send(producer, topic, 40, 40)
            both = await asyncio.gather(polled(one, 20), polled(other, 20))
    assert sorted(got) == sent
    assert sorted(both[0] + both[1]) == more


async def test_lite_and_push_consumers_share_a_group(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    pushed: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> None:
        pushed.extend(message.body for message in messages)

    push = PushConsumer(
        group, cluster.name_server, settings=PushConsumerSettings(consume_from_where=FIRST)
    )
    push.subscribe(topic, "*", listen)
    async with push, lite(cluster, group) as consumer:
        consumer.subscribe(topic)

        def is_shared() -> bool:
            mine = [queue for queue in push.assigned_queues if queue.topic == topic]
            return len(mine) == 2 == len(consumer.assigned_queues)

        await until(is_shared, what="two queues for each")
        sent = await send(producer, topic, 40)
        got = await polled(consumer, 20)
        await until(lambda: len(pushed) >= 20)
        # Who is left gets what the other's last poll returned: so not while one leaves.
        assert sorted(got + pushed) == sent


async def test_broadcasting_members_read_all_and_keep_offsets_in_a_file(
    cluster: Cluster, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    for first in (0, 20):
        sent = await send(producer, topic, 20, first)
        consumer = lite(
            cluster,
            group,
            message_model=MessageModel.BROADCASTING,
            local_offset_folder=tmp_path,
            instance_name="one",
        )
        async with consumer:
            consumer.subscribe(topic)
            assert sorted(await polled(consumer, 20)) == sent
            await consumer.commit_sync()
    assert (tmp_path / consumer.client_id / group / "offsets.json").exists()


async def test_names_are_those_of_the_namespace_and_polls_are_traced(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    await producer.create_topic(f"ns%{topic}", queues=1)
    fetch = producer._open_cluster().fetch_route
    await until(lambda: fetch(f"ns%{topic}"), what="the tenant's topic")
    given = ProducerSettings(namespace="ns")
    async with (
        Producer("tenant", cluster.name_server, settings=given) as tenant,
        lite(cluster, group, namespace="ns", enable_trace=True) as consumer,
    ):
        consumer.subscribe(topic)
        result = await tenant.send(Message(topic, b"inside"))
        [message] = await consumer.poll(int(SECONDS_MAX * 1000))
        assert (message.topic, consumer.assigned_queues) == (topic, [result.queue])
        await consumer.commit_sync({result.queue: 1})

        async def is_traced() -> bool:
            return len(await producer.query_trace(result.message_id)) == 2

        await until(is_traced, what="the traces before and after")
    async with PullConsumer(f"ns%{group}", cluster.name_server) as outside:
        assert await outside.committed(MessageQueue(f"ns%{topic}", result.queue[1], 0)) == 1


async def test_the_blocking_client_does_the_same(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    sent = await send(producer, topic, 30)

    def run() -> list[bytes]:
        given = blocking.LitePullConsumerSettings(consume_from_where=FIRST)
        with blocking.LitePullConsumer(group, cluster.name_server, settings=given) as consumer:
            consumer.subscribe(topic)
            got: list[bytes] = []
            for message in consumer:
                got.append(message.body)
                if len(got) == 30:
                    break
            consumer.commit_sync()
            assert sum(consumer.committed(q) for q in consumer.assigned_queues) == 30
        return got

    assert sorted(await asyncio.to_thread(run)) == sent
