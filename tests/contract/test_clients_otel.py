"""Spans of OpenTelemetry: who sends, who reads, and that one leads to the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kerolox
from kerolox import ConsumeStatus, Message, MessageExt, PullConsumerSettings, PushConsumerSettings
from kerolox.client import ProducerSettings, sync
from kerolox.client.core.hooks import SendContext
from kerolox.client.core.sending.send import outgoing_batch, outgoing_message
from kerolox.errors import ConfigError, KeroloxError, MessageRejectedError
from kerolox.message import MessageQueue, decode_properties
from kerolox.otel import ProcessSpans, ReceiveSpans, SendSpans, traced
from kerolox.protocol.records import decode_batch
from kerolox.testing import LocalBroker
from tests.support.eventually import until, wait_until

pytestmark = pytest.mark.xdist_group("otel")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded:
    """A tracer provider, and the spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as started:
        yield started


def producing(spans: Recorded) -> ProducerSettings:
    return traced(ProducerSettings(), tracer_provider=spans.provider)


def consuming(spans: Recorded, **more: Any) -> PushConsumerSettings:
    first = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET", **more)
    return traced(first, tracer_provider=spans.provider)


async def test_a_trace_leads_from_the_caller_through_the_send_to_the_listener(
    broker: LocalBroker, spans: Recorded
) -> None:
    topic, tracer = broker.create_topic(), spans.provider.get_tracer("test")

    async def listen(messages: list[MessageExt]) -> None:
        tracer.start_span("work").end()

    consumer = kerolox.PushConsumer("otel-readers", broker.name_server, settings=consuming(spans))
    consumer.subscribe(topic, "*", listen)
    producer = kerolox.Producer("shop", broker.name_server, settings=producing(spans))
    async with producer, consumer:
        with tracer.start_as_current_span("order"):
            sent = await producer.send(Message(topic, b"hello", tags="new", keys=["a", "b"]))
        await until(lambda: spans.named(f"process {topic}"), what="the listener's span")
    [order], [send] = spans.named("order"), spans.named(f"send {topic}")
    [process], [work] = spans.named(f"process {topic}"), spans.named("work")
    assert {span.context.trace_id for span in (send, process, work)} == {order.context.trace_id}
    parents = [span.parent.span_id for span in (send, process, work)]
    assert parents == [span.context.span_id for span in (order, send, process)]
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    host, port = broker.address.split(":")
    both = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"broker-test:{sent.queue.queue_id}",
        "messaging.message.id": sent.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("a", "b"),
    }
    assert dict(send.attributes) == both | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.message.type": "normal",
        "server.address": host,
        "server.port": int(port),
    }
    assert dict(process.attributes) == both | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "otel-readers",
    }
    assert send.status.is_ok or send.status.is_unset
    assert process.status.is_unset


def test_blocking_clients_make_the_same_spans(broker: LocalBroker, spans: Recorded) -> None:
    topic, tracer = broker.create_topic(), spans.provider.get_tracer("test")
    seen: list[Any] = []

    def listen(messages: list[MessageExt]) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    consumer = sync.PushConsumer("otel-blocking", broker.name_server, settings=consuming(spans))
    consumer.subscribe(topic, "*", listen)
    with (
        consumer,
        sync.Producer("shop", broker.name_server, settings=producing(spans)) as producer,
    ):
        with tracer.start_as_current_span("order") as order:
            producer.send(Message(topic, b"hello"))
        wait_until(lambda: spans.named(f"process {topic}"), what="the listener's span")
    [send], [process] = spans.named(f"send {topic}"), spans.named(f"process {topic}")
    assert send.parent.span_id == order.get_span_context().span_id
    assert process.parent.span_id == send.context.span_id
    assert seen == [process.context.span_id]


def test_a_pull_has_a_span_with_links_to_each_send(broker: LocalBroker, spans: Recorded) -> None:
    topic = broker.create_topic(queues=1)
    with sync.Producer("shop", broker.name_server, settings=producing(spans)) as producer:
        for _ in range(3):
            producer.send(Message(topic, b"hello"))
    settings = traced(PullConsumerSettings(), tracer_provider=spans.provider)
    with sync.PullConsumer("otel-pull", broker.name_server, settings=settings) as consumer:
        [queue] = consumer.queues(topic)
        assert len(consumer.pull(queue, 0).messages) == 3
    [receive] = spans.named(f"receive {topic}")
    sends = [span.context.span_id for span in spans.named(f"send {topic}")]
    assert [link.context.span_id for link in receive.links] == sends
    assert receive.kind is trace.SpanKind.CLIENT
    assert receive.attributes["messaging.batch.message_count"] == 3


def test_each_message_of_a_batch_carries_the_context(broker: LocalBroker, spans: Recorded) -> None:
    topic = broker.create_topic(queues=1)
    with sync.Producer("shop", broker.name_server, settings=producing(spans)) as producer:
        producer.send_batch([Message(topic, b"a", tags="x"), Message(topic, b"b")])
    [send] = spans.named(f"send {topic}")
    assert send.attributes["messaging.batch.message_count"] == 2
    first, second = broker.messages(topic)
    parent = f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-"
    assert first.properties["traceparent"] == second.properties["traceparent"]
    assert first.properties["traceparent"].startswith(parent)
    assert (first.tags, first.body, second.body) == ("x", b"a", b"b")


def test_a_list_for_one_listener_has_one_span_with_links() -> None:
    spans = Recorded()
    hook = ProcessSpans(spans.provider)
    messages = [
        MessageExt(
            topic="T",
            body=b"x",
            queue_id=0,
            queue_offset=number,
            commit_log_offset=number,
            properties={"traceparent": TRACEPARENT} if number else {},
        )
        for number in range(3)
    ]
    context = kerolox.ConsumeContext("g", "", MessageQueue("T", "b", 0), messages)
    hook.before_consume(context)
    assert trace.get_current_span().get_span_context().is_valid
    context.is_success = True
    hook.after_consume(context)
    assert not trace.get_current_span().get_span_context().is_valid
    [process] = spans.named("process T")
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [0xB7AD6B7169203331]


def test_a_listener_that_fails_is_an_error_of_its_span(
    broker: LocalBroker, spans: Recorded
) -> None:
    topic = broker.create_topic()
    consumer = sync.PushConsumer("otel-failing", broker.name_server, settings=consuming(spans))
    consumer.subscribe(topic, "*", lambda messages: ConsumeStatus.RECONSUME_LATER)
    with consumer, sync.Producer("shop", broker.name_server) as producer:
        producer.send(Message(topic, b"hello"))
        wait_until(lambda: spans.named(f"process {topic}"), what="the listener's span")
    process = spans.named(f"process {topic}")[0]
    assert not process.status.is_ok
    assert process.attributes["error.type"] == "FAILED"


def test_a_send_that_fails_is_an_error_of_its_span(broker: LocalBroker, spans: Recorded) -> None:
    topic = broker.create_topic()
    settings = producing(spans)
    with (
        sync.Producer("shop", broker.name_server, settings=settings) as producer,
        pytest.raises(KeroloxError),
    ):
        producer.send(Message(topic, b"hello"), queue=MessageQueue(topic, "broker-test", 99))
    [send] = spans.named(f"send {topic}")
    assert not send.status.is_ok
    assert send.attributes["error.type"] == "BrokerSystemError"
    assert [event.name for event in send.events] == ["exception"]


def test_without_room_a_message_travels_without_context() -> None:
    spans, full = Recorded(), {"x": "y" * 32_700}
    long = Message("T", b"x", properties=full)
    for message in (
        outgoing_message(long, "id", compress_bytes_min=9, compress_level=5),
        outgoing_batch([Message("T", b"y"), long], ["1", "2"]),
    ):
        context = SendContext("g", "", message, MessageQueue("T", "b", 0), "127.0.0.1:1")
        with pytest.raises(MessageRejectedError, match="32767"):
            context.add_property("long", "z" * 200)
        hook = SendSpans(spans.provider)
        hook.before_send(context)
        hook.after_send(context)
        assert context.message == message
    assert len(spans.named("send T")) == 2


def test_a_hook_adds_a_property_to_each_message_of_a_batch() -> None:
    batch = outgoing_batch([Message("T", b"x", tags="a"), Message("T", b"y")], ["1", "2"])
    context = SendContext("g", "", batch, MessageQueue("T", "b", 0), "127.0.0.1:1")
    context.add_property("colour", "red")
    items, _ = decode_batch(context.message.body)
    properties = [decode_properties(text.decode()) for _, _, text in items]
    assert [each["colour"] for each in properties] == ["red", "red"]
    assert properties[0]["TAGS"] == "a"
    assert context.message.properties == batch.properties


def test_settings_get_the_hook_that_fits() -> None:
    assert isinstance(traced(ProducerSettings()).send_hooks[0], SendSpans)
    assert isinstance(traced(PushConsumerSettings()).consume_hooks[0], ProcessSpans)
    assert isinstance(traced(PullConsumerSettings()).consume_hooks[0], ReceiveSpans)
    assert not ProducerSettings().send_hooks
    with pytest.raises(ConfigError, match="no hooks"):
        traced(object())  # type: ignore[type-var]


OLD, NEW = "messaging.rocketmq.message.", "rocketmq.message."


@pytest.mark.parametrize(
    ("opted", "prefixes"),
    [
        (None, {OLD}),
        ("", {OLD}),
        ("http, database/dup", {OLD}),
        ("messaging", {NEW}),
        ("http, Messaging", {NEW}),
        ("messaging/dup", {OLD, NEW}),
        ("messaging,messaging/dup", {OLD, NEW}),
    ],
)
def test_names_follow_the_conventions_that_are_wanted(
    broker: LocalBroker,
    spans: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    opted: str | None,
    prefixes: set[str],
) -> None:
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN", raising=False)
    if opted is not None:
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opted)
    topic = broker.create_topic(queues=1)
    message = Message(topic, b"hello", tags="new", keys="a")
    with sync.Producer("shop", broker.name_server, settings=producing(spans)) as producer:
        producer.send(message)
    settings = traced(PullConsumerSettings(), tracer_provider=spans.provider)
    with sync.PullConsumer("names", broker.name_server, settings=settings) as consumer:
        [queue] = consumer.queues(topic)
        consumer.pull(queue, 0)
    [send], [receive] = spans.named(f"send {topic}"), spans.named(f"receive {topic}")
    for span, own in ((send, {"type", "tag", "keys"}), (receive, {"tag", "keys"})):
        ours = {name for name in span.attributes if "rocketmq." in name}
        assert ours == {prefix + name for prefix in prefixes for name in own}
        assert span.attributes["messaging.operation.name"] in ("send", "receive")


def test_a_moment_is_an_attribute_of_the_send(broker: LocalBroker, spans: Recorded) -> None:
    topic = broker.create_topic()
    with sync.Producer("shop", broker.name_server, settings=producing(spans)) as producer:
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        producer.send(Message(topic, b"later"), deliver_at=moment)
    [send] = spans.named(f"send {topic}")
    assert send.attributes[f"{OLD}delivery_timestamp"] == moment.timestamp() * 1_000
