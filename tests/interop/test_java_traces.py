"""Traces and namespaces across languages, through our broker: what Java 4.9 clients write is read
here, what ours write is read by mqadmin."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionState,
)
from kerolox.client.core.hooks import MessageType
from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
)
from kerolox.message import ConsumeFromWhere, Message
from tests.interop.mqadmin import MqAdmin
from tests.interop.traces import traces_of
from tests.support.eventually import until
from tests.support.programs import java_command
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.message import MessageExt

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("java"),
    pytest.mark.asyncio,
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    settings = {"traceTopicEnable": "true"}
    with Up(tmp_path_factory.mktemp("java-traces"), settings=settings) as server:
        yield server


@pytest.fixture(scope="module")
def message_ids(up: Up) -> Iterator[dict[str, str]]:
    """Kind to id of the messages that Java clients sent; the clients live as long as the tests."""
    command = java_command("interop.Traces", up.namesrv)
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            lines = (line.rstrip("\n").split("\t") for line in process.stdout)
            messages = (line[1:] for line in lines if line[0] == "message")
            ids = dict(itertools.islice(messages, 4))
            assert len(ids) == 4, ids
            yield ids
        finally:
            # Those that close would wait for seconds to tell more traces.
            process.kill()


async def test_traces_of_a_java_producer_and_consumer_are_read(
    up: Up, message_ids: dict[str, str]
) -> None:
    pub, before, after = await traces_of(up, message_ids["plain"], 3)
    assert isinstance(pub, PubTrace)
    assert (pub.group, pub.topic, pub.tags, pub.keys) == (
        "java-traced",
        "JavaTraced",
        "tag",
        "key1 key2",
    )
    assert (pub.store_host, pub.body_bytes, pub.is_success) == (up.broker, 6, True)
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert before.group == after.group == "java-traced-group"
    assert before.request_id == after.request_id
    assert after.is_success


async def test_traces_of_java_in_a_custom_topic_are_read(
    up: Up, message_ids: dict[str, str]
) -> None:
    [pub] = await traces_of(up, message_ids["custom"], 1, topic="JavaTraces")
    assert isinstance(pub, PubTrace)
    assert pub.group == "java-custom"


async def test_the_trace_of_a_java_transaction_is_read(up: Up, message_ids: dict[str, str]) -> None:
    half, end = await traces_of(up, message_ids["transaction"], 2)
    assert isinstance(half, PubTrace)
    assert half.message_type is MessageType.TRANSACTION_HALF
    assert isinstance(end, EndTransactionTrace)
    assert (end.state, end.is_from_check) == (TransactionState.COMMIT, False)


async def test_mqadmin_shows_the_traces_of_our_clients(up: Up, mqadmin: MqAdmin) -> None:
    topic = "OurTraced"
    got: list[MessageExt] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(messages)

    given = PushConsumerSettings(
        enable_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer = PushConsumer("our-traced-group", up.namesrv, settings=given)
    consumer.subscribe(topic, "*", listen)
    traced = ProducerSettings(enable_trace=True)
    async with Producer("our-traced", up.namesrv, settings=traced) as producer:
        sent = await producer.send(Message(topic, b"x"))
        async with consumer:
            await until(lambda: got)
            # A client that closes has a second to tell the rest: a machine may pause for longer.
            await traces_of(up, sent.message_id, 3)
    text = await asyncio.to_thread(mqadmin, "queryMsgTraceById", "-i", sent.message_id)
    assert re.search(r"^Pub +our-traced +127\.0\.0\.1 .* success", text, re.MULTILINE), text
    assert re.search(r"^Sub +our-traced-group +127\.0\.0\.1 .* success", text, re.MULTILINE), text


async def test_what_a_java_tenant_sends_is_read_in_its_namespace(
    up: Up, message_ids: dict[str, str]
) -> None:
    given = PullConsumerSettings(namespace="java-ns")
    async with PullConsumer("reader", up.namesrv, settings=given) as consumer:
        message = await consumer.view_by_id("JavaTenant", message_ids["namespace"])
        raw = await consumer.queues("java-ns%JavaTenant")
    assert (message.topic, message.body) == ("JavaTenant", b"traced")
    assert message.properties["INSTANCE_ID"] == "java-ns"
    assert {queue.topic for queue in raw} == {"java-ns%JavaTenant"}
