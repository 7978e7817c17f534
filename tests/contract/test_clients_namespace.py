"""Namespaces of our clients: two tenants of one cluster, with the same names for what they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.client import (
    ConsumeStatus,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PullStatus,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.client.core.tracing.trace import PubTrace
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.support.eventually import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.client import TraceView
    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def tenant(cluster: Cluster, topic: str, producer: Producer) -> AsyncIterator[Producer]:
    """A producer in namespace ``ns``, whose topic of the same name exists."""
    await producer.create_topic(f"ns%{topic}", queues=2)

    async def known() -> bool:
        return await producer._open_cluster().fetch_route(f"ns%{topic}") is not None

    await until(known, what="the tenant's topic")
    given = ProducerSettings(namespace="ns")
    async with Producer("tenant", cluster.name_server, settings=given) as made:
        yield made


async def test_a_tenant_sees_its_own_messages_under_the_names_it_gave(
    cluster: Cluster, producer: Producer, tenant: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, outside = await inbox.consumer(group, topic)
    consumer, inside = await inbox.consumer(group, topic, namespace="ns")
    _, raw = await inbox.consumer(f"raw-{group}", f"ns%{topic}")
    await producer.send(Message(topic, b"outside"))
    result = await tenant.send(Message(topic, b"inside", keys=f"key-{topic}"))
    await until(lambda: outside and inside and raw, what="the messages")
    assert [(m.topic, m.body) for m in outside] == [(topic, b"outside")]
    assert [(m.topic, m.body) for m in inside] == [(topic, b"inside")]
    assert [(m.topic, m.body) for m in raw] == [(f"ns%{topic}", b"inside")]
    assert raw[0].properties["INSTANCE_ID"] == "ns"
    assert (tenant.group, consumer.group) == ("ns%tenant", f"ns%{group}")
    assert result.queue.topic == topic
    assert topic in {queue.topic for queue in consumer.assigned_queues}
    by_key: list[MessageExt] = []

    async def indexed() -> bool:
        by_key[:] = await tenant.query_by_key(topic, f"key-{topic}")
        return bool(by_key)

    await until(indexed, what="the message in the index")
    assert [(found.topic, found.body) for found in by_key] == [(topic, b"inside")]
    assert (await tenant.view_by_id(topic, result.message_id)).topic == topic
    assert await tenant.max_offset(result.queue) == result.queue_offset + 1


async def test_a_tenant_s_messages_are_retried_in_its_namespace(
    cluster: Cluster, tenant: Producer, topic: str, group: str
) -> None:
    got: list[tuple[str, int]] = []

    async def listen(messages: list[MessageExt]) -> ConsumeStatus | None:
        got.extend((message.topic, message.reconsume_times) for message in messages)
        return ConsumeStatus.RECONSUME_LATER if len(got) == 1 else None

    given = PushConsumerSettings(
        namespace="ns", consume_from_where=FIRST, delay_level_when_next_consume=1
    )
    consumer = PushConsumer(group, cluster.name_server, settings=given)
    consumer.subscribe(topic, "*", listen)
    async with consumer:
        await tenant.send(Message(topic, b"x"))
        await until(lambda: len(got) == 2, what="the retry")
        assert f"%RETRY%ns%{group}" in consumer._open_cluster().routes
    assert got == [(topic, 0), (topic, 1)]


async def test_a_tenant_pulls_commits_batches_and_selects(
    cluster: Cluster, tenant: Producer, topic: str, group: str
) -> None:
    [first, second] = await tenant.queues(topic)
    batch = [Message(topic, b"%d" % n) for n in range(3)]
    sent = await tenant.send_batch(batch, queue=first)
    chosen = await tenant.send(Message(topic, b"chosen"), selector=lambda queues, _: queues[1])
    assert {sent.queue.topic, chosen.queue.topic} == {topic}
    given = PullConsumerSettings(namespace="ns")
    async with PullConsumer(group, cluster.name_server, settings=given) as consumer:
        queue = chosen.queue
        pulled = [await consumer.pull(each, 0, wait=True) for each in (sent.queue, queue)]
        assert [r.status for r in pulled] == [PullStatus.FOUND] * 2
        assert {m.topic for result in pulled for m in result.messages} == {topic}
        await consumer.commit(queue, 1)
        assert await consumer.committed(queue) == 1
    async with PullConsumer(f"ns%{group}", cluster.name_server) as outside:
        assert await outside.committed(queue._replace(topic=f"ns%{topic}")) == 1
    assert first.queue_id != second.queue_id


async def test_a_tenant_s_traces_show_the_names_that_it_knows(
    cluster: Cluster, tenant: Producer, topic: str
) -> None:
    """The trace topic is the same for all tenants."""
    own = f"traces-{topic}"
    given = ProducerSettings(namespace="ns", enable_trace=True, trace_topic=own)
    async with Producer("tenant", cluster.name_server, settings=given) as traced:
        result = await traced.send(Message(topic, b"x"))
        route = tenant._open_cluster().fetch_route

        async def known() -> bool:
            return await route(own) is not None

        await until(known, what="the trace topic")
        found: list[TraceView] = []

        async def told() -> bool:
            found[:] = await traced.query_trace(result.message_id, topic=own)
            return bool(found)

        await until(told, what="the trace")
    [view] = found
    assert isinstance(view.trace, PubTrace)
    assert (view.trace.group, view.trace.topic) == ("tenant", topic)


async def test_a_tenant_s_transactions_are_checked(
    cluster: Cluster, tenant: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    asked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.topic)
        return TransactionState.COMMIT

    async def execute(message: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    _, got = await inbox.consumer(group, topic, namespace="ns")
    given = ProducerSettings(namespace="ns")
    made = TransactionProducer(f"tx-{group}", cluster.name_server, check=check, settings=given)
    async with made as producer:
        await producer.send_in_transaction(Message(topic, b"x"), execute)
        await until(lambda: got, what="the message")
    assert set(asked) == {topic}
    assert [message.topic for message in got] == [topic]
