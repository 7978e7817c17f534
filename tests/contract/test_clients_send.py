"""What our producer sends, a broker stores, be it ours or Java's."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin
from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    PullStatus,
    RpcHook,
    SendStatus,
    split_batches,
)
from kerolox.errors import MessageIllegalError, NotFoundError, TopicRouteNotFoundError
from kerolox.message import Message, MessageId, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster


async def stored(cluster: Cluster, queue: MessageQueue, offset: int = 0) -> list[MessageExt]:
    """All messages of a queue from an offset, once there is one."""
    async with PullConsumer("contract-readers", cluster.name_server) as consumer:
        result = await consumer.pull(queue, offset, wait=True, max_messages=1024)
        assert result.status is PullStatus.FOUND
        return result.messages


async def found_by_key(producer: Producer, topic: str, key: str, count: int) -> list[MessageExt]:
    """Indexing is asynchronous: ask until all are found."""
    found: list[MessageExt] = []

    async def complete() -> bool:
        found[:] = await producer.query_by_key(topic, key)
        return len(found) == count

    await until(complete, what=f"{count} messages with key {key}")
    return found


async def until_max_offset(producer: Producer, queue: MessageQueue, expected: int) -> None:
    """The Java broker puts messages into queues a moment after it has answered."""

    async def reached() -> bool:
        return await producer.max_offset(queue) == expected

    await until(reached, what=f"the end {expected} of {queue}")


async def test_a_sent_message_is_stored_with_all_its_parts(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    sent = Message(
        topic, b"body \x00\xff", tags="paid", keys=["k1", "k2"], flag=7, properties={"a": "ü=1"}
    )
    result = await producer.send(sent)
    assert result.status is SendStatus.SEND_OK
    assert result.queue.topic == topic
    assert result.queue_offset == 0
    [message] = await stored(cluster, result.queue)
    assert (message.topic, message.body, message.tags) == (topic, sent.body, "paid")
    assert (message.keys, message.flag) == ("k1 k2", 7)
    assert message.properties["a"] == "ü=1"
    assert "WAIT" not in message.properties
    assert message.unique_key == result.message_id
    assert message.offset_message_id == result.offset_message_id
    assert abs(message.born_timestamp - time.time() * 1000) < 60_000


async def test_a_message_is_found_by_key_and_by_both_ids(producer: Producer, topic: str) -> None:
    results = [await producer.send(Message(topic, b"%d" % i, keys=["k", str(i)])) for i in (0, 1)]
    assert [m.body for m in await found_by_key(producer, topic, "k", 2)] == [b"0", b"1"]
    assert [m.body for m in await found_by_key(producer, topic, "1", 1)] == [b"1"]
    assert (await producer.view_by_id(topic, results[1].offset_message_id)).body == b"1"
    assert (await producer.view_by_id(topic, results[1].message_id)).body == b"1"
    unknown = MessageId("127.0.0.1", 1, 0).text
    with pytest.raises(NotFoundError):
        await producer.view_by_id(topic, unknown)


async def test_messages_go_round_all_queues(producer: Producer, topic: str) -> None:
    results = [await producer.send(Message(topic, b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_queue_can_be_given_or_selected(producer: Producer, topic: str) -> None:
    queues = await producer.queues(topic)
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
    given = await producer.send(Message(topic, b"x"), queue=queues[2])
    selected = await producer.send(
        Message(topic, b"x", keys="9"), selector=lambda all_, m: all_[int(str(m.keys)) % len(all_)]
    )
    assert (given.queue.queue_id, selected.queue.queue_id) == (2, 1)


async def test_a_batch_is_stored_side_by_side(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    batch = [Message(topic, b"m%d" % i, tags="t", keys=f"key{i}") for i in range(20)]
    result = await producer.send_batch(batch)
    await until_max_offset(producer, result.queue, len(batch))
    messages = await stored(cluster, result.queue)
    assert [m.body for m in messages] == [m.body for m in batch]
    assert [m.queue_offset for m in messages] == list(range(20))
    assert [m.unique_key for m in messages] == result.message_id.split(",")
    assert [m.offset_message_id for m in messages] == result.offset_message_id.split(",")
    assert [m.keys for m in messages] == [m.keys for m in batch]
    assert {m.tags for m in messages} == {"t"}


class _Codes(RpcHook):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def before_request(self, address: str, request: RemotingCommand) -> None:
        self.seen.append(request.code)

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        pass


async def test_a_batch_is_one_request_with_a_code_of_its_own(cluster: Cluster, topic: str) -> None:
    codes = _Codes()
    settings = ProducerSettings(rpc_hook=codes)
    async with Producer("contract-batches", cluster.name_server, settings=settings) as producer:
        result = await producer.send_batch([Message(topic, b"m%d" % i) for i in range(3)])
        await until_max_offset(producer, result.queue, 3)
    assert codes.seen.count(RequestCode.SEND_BATCH_MESSAGE) == 1
    assert RequestCode.SEND_MESSAGE_V2 not in codes.seen


async def test_a_long_list_goes_in_several_batches(producer: Producer, topic: str) -> None:
    messages = [Message(topic, b"x" * 1000) for _ in range(300)]
    batches = list(split_batches(messages, bytes_max=100_000))
    assert len(batches) == 4
    [queue, *_] = await producer.queues(topic)
    for batch in batches:
        await producer.send_batch(batch, queue=queue)
    await until_max_offset(producer, queue, 300)


async def test_a_oneway_message_arrives(cluster: Cluster, producer: Producer, topic: str) -> None:
    [queue, *_] = await producer.queues(topic)
    await producer.send_oneway(Message(topic, b"no answer"), queue=queue)
    assert [m.body for m in await stored(cluster, queue)] == [b"no answer"]


async def test_a_large_body_is_stored_compressed_and_read_inflated(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    body = b"0123456789" * 1000
    result = await producer.send(Message(topic, body))
    [message] = await stored(cluster, result.queue)
    assert message.body == body
    assert message.sys_flag & 1
    assert message.store_size < 1000


async def test_a_new_topic_is_created_by_its_first_message(producer: Producer) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    results = await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(16)))
    assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
    assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_many_sends_at_once_are_all_stored(producer: Producer, topic: str) -> None:
    results = await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(500)))
    assert len({result.message_id for result in results}) == 500
    assert len({(result.queue, result.queue_offset) for result in results}) == 500


async def test_a_burst_beyond_what_a_connection_holds_is_stored(
    cluster: Cluster, topic: str
) -> None:
    settings = ProducerSettings(compress_bytes_min=2**31, send_timeout_ms=60_000)
    async with Producer("contract-producers", cluster.name_server, settings=settings) as producer:
        bodies = (b"%03d" % number + bytes(100 * 1024) for number in range(800))
        results = await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    assert all(result.is_ok for result in results)
    assert len({(result.queue, result.queue_offset) for result in results}) == 800


async def test_a_body_over_the_brokers_limit_is_refused_by_it(cluster: Cluster) -> None:
    settings = ProducerSettings(message_bytes_max=8 * 1024 * 1024, compress_bytes_min=2**31)
    async with Producer("contract-producers", cluster.name_server, settings=settings) as producer:
        with pytest.raises(MessageIllegalError):
            await producer.send(Message(f"t-{uuid.uuid4().hex[:12]}", bytes(5 * 1024 * 1024)))


async def test_queues_of_an_unknown_topic_are_an_error(producer: Producer) -> None:
    with pytest.raises(TopicRouteNotFoundError, match="create the topic"):
        await producer.queues("t-unknown")


async def test_offsets_are_told_by_time(producer: Producer, topic: str) -> None:
    [queue, *_] = await producer.queues(topic)
    assert await producer.offset_by_time(queue, 0) == 0
    for _ in range(3):
        await producer.send(Message(topic, b"x"), queue=queue)
    await until_max_offset(producer, queue, 3)
    assert await producer.min_offset(queue) == 0
    now_ms = int(time.time() * 1000)
    assert await producer.offset_by_time(queue, now_ms - 60_000) == 0
    earliest = await producer.earliest_store_time(queue)
    assert abs(earliest - now_ms) < 60_000


async def test_a_pull_consumer_reads_filters_and_commits(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    for index in range(10):
        tags, given = "ab"[index % 2], {"n": str(index)}
        message = Message(topic, b"%d" % index, tags=tags, properties=given)
        await producer.send(message, queue=queue)
    async with PullConsumer(group, cluster.name_server) as consumer:
        # The Java broker dispatches behind the answer, and refuses an offset beyond what it has.

        async def dispatched() -> bool:
            return await consumer.max_offset(queue) == 10

        await until(dispatched)
        result = await consumer.pull(queue, 2, expression="a", max_messages=3)
        assert [m.body for m in result.messages] == [b"2", b"4", b"6"]
        assert (result.min_offset, result.max_offset) == (0, 10)
        assert [m.queue.broker_name for m in result.messages] == [queue.broker_name] * 3
        found = await consumer.pull(queue, 0, expression="n BETWEEN 3 AND 5 OR n IS NULL")
        assert [m.body for m in found.messages] == [b"3", b"4", b"5"]
        await consumer.commit(queue, result.next_offset)
        assert await consumer.committed(queue) == result.next_offset
        end = await consumer.pull(queue, 10)
        assert (end.status, end.next_offset) == (PullStatus.NO_NEW_MSG, 10)
        beyond = await consumer.pull(queue, 99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)


async def test_a_held_pull_is_answered_when_a_message_arrives(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    async with PullConsumer(group, cluster.name_server) as consumer:
        held = asyncio.ensure_future(consumer.pull(queue, 0, wait=True))
        await until(lambda: consumer._cluster and consumer._cluster.remoting._connections)
        await producer.send(Message(topic, b"wake"), queue=queue)
        assert [m.body for m in (await held).messages] == [b"wake"]


async def test_sends_that_wait_together_are_stored_as_a_batch_each_under_its_own_id(
    cluster: Cluster, topic: str
) -> None:
    settings = ProducerSettings(send_timeout_ms=60_000, batching=True)
    async with Producer("contract-batching", cluster.name_server, settings=settings) as producer:
        first = await producer.send(Message(topic, b"first"))
        many = [Message(topic, b"%d" % index, keys=f"k{index}") for index in range(30)]
        results = await asyncio.gather(*(producer.send(m, queue=first.queue) for m in many))
        await until_max_offset(producer, first.queue, results[-1].queue_offset + 1)
        messages = await stored(cluster, first.queue, results[0].queue_offset)
        assert [each.body for each in messages] == [each.body for each in many]
        for message, result in zip(messages, results, strict=True):
            assert message.unique_key == result.message_id
            assert message.offset_message_id == result.offset_message_id
            assert message.queue_offset == result.queue_offset


async def test_sends_go_on_when_their_topic_gets_fewer_queues(cluster: Cluster, topic: str) -> None:
    async with Admin(cluster.name_server) as admin, Producer("narrowed", cluster.name_server) as p:
        await p.create_topic(topic, queues=8)
        await asyncio.gather(*(p.send(Message(topic, b"before")) for _ in range(8)))
        await admin.update_topic(topic, queues=1, shrink_read_queues=True)
        plain = await asyncio.gather(*(p.send(Message(topic, b"after")) for _ in range(16)))
        keyed = [await p.send(Message(topic, b"after", keys=("k",))) for _ in range(4)]
        assert {result.queue.queue_id for result in (*plain, *keyed)} == {0}
