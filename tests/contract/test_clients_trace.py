"""Message traces of our clients, written to and read from our broker and the Java broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kerolox.client import (
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.client import sync as blocking
from kerolox.client.core.hooks import ConsumeReturnType, MessageType
from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
)
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.support.eventually import SECONDS_MAX, until, wait_until

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

TRACED = ProducerSettings(enable_trace=True)


async def traces_of(
    producer: Producer, message_id: str, count: int, **more: str
) -> list[TraceRecord]:
    """The traces of a message, once there are so many."""
    found: list[TraceRecord] = []

    async def enough() -> bool:
        found[:] = [view.trace for view in await producer.query_trace(message_id, **more)]
        return len(found) >= count

    await until(enough, what=f"{count} traces")
    return found


async def test_a_message_can_be_followed_from_send_to_listener(
    cluster: Cluster, inbox: Inbox, topic: str, group: str
) -> None:
    async with Producer("tracing", cluster.name_server, settings=TRACED) as producer:
        _, got = await inbox.consumer(group, topic, enable_trace=True)
        result = await producer.send(Message(topic, b"x" * 10, tags="a", keys=f"k-{topic} other"))
        await until(lambda: got, what="the message")
        pub, before, after = await traces_of(producer, result.message_id, 3)

        async def is_found_by_key() -> bool:
            return bool(await producer.query_by_key("RMQ_SYS_TRACE_TOPIC", f"k-{topic}"))

        await until(is_found_by_key, what="a trace by the message's key")
    assert isinstance(pub, PubTrace)
    assert (pub.group, pub.topic, pub.tags, pub.keys) == ("tracing", topic, "a", f"k-{topic} other")
    assert (pub.store_host, pub.region, pub.body_bytes) == (cluster.broker, "DefaultRegion", 10)
    assert pub.offset_message_id == result.offset_message_id
    assert pub.message_type is MessageType.NORMAL
    assert pub.is_success
    assert isinstance(before, SubBeforeTrace)
    assert (before.group, before.retry_times, before.keys) == (group, 0, f"k-{topic} other")
    assert isinstance(after, SubAfterTrace)
    assert after.request_id == before.request_id
    assert (after.group, after.return_type, after.is_success) == (
        group,
        ConsumeReturnType.SUCCESS,
        True,
    )
    assert after.timestamp_ms >= before.timestamp_ms >= pub.timestamp_ms


async def test_a_listener_that_fails_is_traced_as_failed(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    async def listen(messages: list[MessageExt]) -> None:
        raise RuntimeError("not today")

    given = PushConsumerSettings(enable_trace=True, consume_from_where=FIRST)
    consumer = PushConsumer(group, cluster.name_server, settings=given)
    consumer.subscribe(topic, "*", listen)
    async with consumer:
        result = await producer.send(Message(topic, b"x"))
        _, after = (await traces_of(producer, result.message_id, 2))[:2]
    assert isinstance(after, SubAfterTrace)
    assert (after.is_success, after.return_type) == (False, ConsumeReturnType.EXCEPTION)


async def test_traces_go_to_a_custom_topic_that_creates_itself(
    cluster: Cluster, topic: str
) -> None:
    own = f"traces-{topic}"
    given = ProducerSettings(enable_trace=True, trace_topic=own)
    async with Producer("tracing", cluster.name_server, settings=given) as producer:
        result = await producer.send(Message(topic, b"x", delay_level=1))

        async def known() -> bool:
            return await producer._open_cluster().fetch_route(own) is not None

        await until(known, what="the trace topic")
        [pub] = await traces_of(producer, result.message_id, 1, topic=own)
        assert not await producer.query_trace(result.message_id)
    assert isinstance(pub, PubTrace)
    assert pub.message_type is MessageType.DELAY


async def test_a_transaction_is_traced_to_its_end(cluster: Cluster, topic: str) -> None:
    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.ROLLBACK

    async def execute(message: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    made = TransactionProducer(f"tx-{topic}", cluster.name_server, check=check, settings=TRACED)
    async with made as producer:
        sent = (await producer.send_in_transaction(Message(topic, b"x", keys="k"), execute)).send
        half, unknown, end = (await traces_of(producer, sent.message_id, 3))[:3]
    assert isinstance(half, PubTrace)
    assert half.message_type is MessageType.TRANSACTION_HALF
    assert isinstance(unknown, EndTransactionTrace)
    assert (unknown.state, unknown.is_from_check) == (TransactionState.UNKNOWN, False)
    assert isinstance(end, EndTransactionTrace)
    assert (end.state, end.is_from_check, end.topic, end.keys) == (
        TransactionState.ROLLBACK,
        True,
        topic,
        "k",
    )
    assert end.transaction_id == sent.message_id


async def test_the_blocking_clients_trace_too(cluster: Cluster, topic: str, group: str) -> None:
    def run() -> list[TraceRecord]:
        consumer = blocking.PushConsumer(
            group,
            cluster.name_server,
            settings=blocking.PushConsumerSettings(enable_trace=True, consume_from_where=FIRST),
        )
        got: list[MessageExt] = []
        consumer.subscribe(topic, "*", got.extend)
        given = blocking.ProducerSettings(enable_trace=True)
        with consumer, blocking.Producer("tracing", cluster.name_server, settings=given) as made:
            result = made.send(Message(topic, b"x"))
            wait_until(lambda: len(made.query_trace(result.message_id)) >= 3, what="three traces")
            return [view.trace for view in made.query_trace(result.message_id)]

    async with asyncio.timeout(SECONDS_MAX):
        kinds = [type(trace) for trace in await asyncio.to_thread(run)]
    assert kinds == [PubTrace, SubBeforeTrace, SubAfterTrace]


async def test_thousands_of_traces_arrive_in_few_messages(cluster: Cluster, topic: str) -> None:
    async with Producer("tracing", cluster.name_server, settings=TRACED) as producer:
        results = [
            result
            for _ in range(20)
            for result in await asyncio.gather(
                *(producer.send(Message(topic, b"x")) for _ in range(100))
            )
        ]
        assert producer._tracing is not None
        for result in (results[0], results[-1]):
            [trace] = await traces_of(producer, result.message_id, 1)
            assert trace.message_id == result.message_id
        assert producer._tracing.dropped == 0
