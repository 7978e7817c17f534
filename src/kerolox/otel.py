"""Spans of OpenTelemetry, and W3C trace context in messages (``pip install 'kerolox[otel]'``).

::

    settings = traced(ProducerSettings())
    async with Producer("shop", "127.0.0.1:9876", settings=settings) as producer:
        await producer.send(Message("Orders", b"hello"))

:func:`traced` adds the hook that fits to any settings, of asyncio and of blocking clients. The
context of a send travels in the user properties ``traceparent`` and ``tracestate``, or whatever the
global propagator writes. Clients in other languages read them as well. Spans have the names and
attributes of OpenTelemetry's conventions for messaging (``messaging.system`` is ``rocketmq``).
Only the API is needed: without an SDK nothing is recorded, but the context still travels.

What is RocketMQ's own is called ``messaging.rocketmq.…``. The conventions call it ``rocketmq.…``
now: ``OTEL_SEMCONV_STABILITY_OPT_IN`` with ``messaging`` in its list takes the new names, with
``messaging/dup`` both. Clients read it when their settings are made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from kerolox.addresses import split_address
from kerolox.client import (
    ConsumeContext,
    ConsumeHook,
    ProducerSettings,
    PushConsumerSettings,
    SendContext,
    SendHook,
)
from kerolox.client.core.hooks import MessageType
from kerolox.client.core.namespaces import without_namespace
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.message import MessageExt, MessageQueue, PropertyKey

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ConfigError(
        f"OpenTelemetry can't be imported ({error}); install kerolox[otel] or opentelemetry-api"
    ) from error

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from kerolox.client.aio.settings import ClientSettings

__all__ = ["ProcessSpans", "ReceiveSpans", "SendSpans", "traced"]

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""The variable of OpenTelemetry with the conventions that are wanted, joined by commas."""

_OLD, _NEW = "messaging.rocketmq.", "rocketmq."
"""How names of what is RocketMQ's own begin, until version 1.44 of the conventions and since."""

_SPAN = "kerolox.otel.span"
_TOKEN = "kerolox.otel.token"

_MESSAGE_TYPES = {
    MessageType.NORMAL: "normal",
    MessageType.DELAY: "delay",
    MessageType.TRANSACTION_HALF: "transaction",
    MessageType.TRANSACTION_COMMIT: "transaction",
}

_Settings = TypeVar("_Settings", bound="ClientSettings")


def traced(settings: _Settings, *, tracer_provider: TracerProvider | None = None) -> _Settings:
    """A copy of settings whose client makes spans.

    Args:
        settings: of a producer or a consumer of any kind.
        tracer_provider: makes the tracer; None: the global one.

    Raises:
        ConfigError: these settings have no hooks.
    """
    if isinstance(settings, ProducerSettings):
        return settings.changed(send_hooks=(*settings.send_hooks, SendSpans(tracer_provider)))
    consume_hooks = getattr(settings, "consume_hooks", None)
    if consume_hooks is None:
        raise ConfigError(f"{type(settings).__name__} has no hooks; give a client's settings")
    is_push = isinstance(settings, PushConsumerSettings)
    spans = ProcessSpans(tracer_provider) if is_push else ReceiveSpans(tracer_provider)
    return settings.changed(consume_hooks=(*consume_hooks, spans))


def _tracer(tracer_provider: TracerProvider | None) -> Tracer:
    from kerolox import __version__

    return trace.get_tracer("kerolox", __version__, tracer_provider)


class _Names:
    """Names of attributes, by the conventions that are wanted."""

    def __init__(self) -> None:
        wanted = {each.strip() for each in os.environ.get(OPT_IN, "").lower().split(",")}
        self._prefixes: tuple[str, ...] = (_OLD,)
        if "messaging/dup" in wanted:
            self._prefixes = (_OLD, _NEW)
        elif "messaging" in wanted:
            self._prefixes = (_NEW,)

    def of(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """The same attributes; old names are given."""
        found: dict[str, AttributeValue] = {}
        for name, value in attributes.items():
            own = name.removeprefix(_OLD)
            if own == name:
                found[name] = value
            else:
                found |= {prefix + own: value for prefix in self._prefixes}
        return found


class SendSpans(SendHook):
    """A span ``send TOPIC`` (of kind PRODUCER) around each try of a send; a retry has its own.

    Its context travels in the message, in each one of a batch. A message whose properties have no
    room for it (32,767 bytes) travels without.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """``tracer_provider``: makes the tracer; None: the global one."""
        self._tracer = _tracer(tracer_provider)
        self._names = _Names()

    def before_send(self, context: SendContext) -> None:
        """Start the span, as a child of the caller's, and put its context into the message."""
        topic = without_namespace(context.namespace, context.message.topic)
        span = self._tracer.start_span(
            f"send {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=self._names.of(_attributes("send", topic, context.namespace, context.queue)),
        )
        context.notes[_SPAN] = span
        if span.is_recording():
            span.set_attributes(self._names.of(_sent(context)))
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        for name, value in carrier.items():
            try:
                context.add_property(name, value)
            except MessageRejectedError:
                break  # there is no room

    def after_send(self, context: SendContext) -> None:
        """End the span with what the broker said."""
        span = context.notes.pop(_SPAN, None)
        if not isinstance(span, trace.Span):
            return
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.message_id)
        if context.error is not None:
            span.record_exception(context.error)
            _fail(span, type(context.error).__qualname__, str(context.error))
        span.end()


class ProcessSpans(ConsumeHook):
    """A span ``process TOPIC`` (of kind CONSUMER) around each call of a listener.

    It is the current one in the listener. Of a single message it is a child of the send's span. Of
    several it is a span of its own with a link to each send.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """``tracer_provider``: makes the tracer; None: the global one."""
        self._tracer = _tracer(tracer_provider)
        self._names = _Names()

    def before_consume(self, context: ConsumeContext) -> None:
        """Start the span and make it the current one."""
        parent = None
        if len(context.messages) == 1:
            parent = propagate.extract(context.messages[0].properties)
        span = _start(
            self._tracer, self._names, "process", trace.SpanKind.CONSUMER, context, parent
        )
        context.notes[_SPAN] = span
        context.notes[_TOKEN] = otel_context.attach(trace.set_span_in_context(span, parent))

    def after_consume(self, context: ConsumeContext) -> None:
        """End the span with how the listener ended."""
        span, token = context.notes.pop(_SPAN, None), context.notes.pop(_TOKEN, None)
        if not isinstance(span, trace.Span):
            return
        otel_context.detach(cast("Token[Context]", token))
        if not context.is_success:
            _fail(span, context.return_type.name, "")
        span.end()


class ReceiveSpans(ConsumeHook):
    """A span ``receive TOPIC`` (of kind CLIENT) for each pull that found messages, with a link to
    each send. It has no length: the hook runs when the messages are there."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """``tracer_provider``: makes the tracer; None: the global one."""
        self._tracer = _tracer(tracer_provider)
        self._names = _Names()

    def before_consume(self, context: ConsumeContext) -> None:
        """Make the span, as a child of the caller's."""
        _start(self._tracer, self._names, "receive", trace.SpanKind.CLIENT, context, None).end()


def _start(
    tracer: Tracer,
    names: _Names,
    operation: str,
    kind: trace.SpanKind,
    context: ConsumeContext,
    parent: Context | None,
) -> Span:
    """The span of messages that were read."""
    topic = context.messages[0].topic
    attributes = _attributes(operation, topic, context.namespace, context.queue)
    attributes["messaging.consumer.group.name"] = without_namespace(
        context.namespace, context.group
    )
    links: list[trace.Link] = []
    if len(context.messages) > 1:
        attributes["messaging.batch.message_count"] = len(context.messages)
    else:
        attributes |= _read(context.messages[0])
    if parent is None:
        links = _links(context.messages)
    return tracer.start_span(
        f"{operation} {topic}",
        context=parent,
        kind=kind,
        attributes=names.of(attributes),
        links=links,
    )


def _links(messages: list[MessageExt]) -> list[trace.Link]:
    """To the spans that sent these messages, each once."""
    nowhere = otel_context.Context()
    found = {}
    for message in messages:
        carried = propagate.extract(message.properties, nowhere)
        sent = trace.get_current_span(carried).get_span_context()
        if sent.is_valid:
            found[sent.trace_id, sent.span_id] = sent
    return [trace.Link(each) for each in found.values()]


def _attributes(
    operation: str, topic: str, namespace: str, queue: MessageQueue
) -> dict[str, AttributeValue]:
    """What all spans have."""
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"{queue.broker_name}:{queue.queue_id}",
    }
    if namespace:
        attributes["messaging.rocketmq.namespace"] = namespace
    return attributes


def _sent(context: SendContext) -> dict[str, AttributeValue]:
    """What is known of messages that are sent."""
    message = context.message
    host, port = split_address(context.broker_address)
    attributes: dict[str, AttributeValue] = {"server.address": host, "server.port": port}
    if message.is_batch:
        attributes["messaging.batch.message_count"] = message.message_id.count(",") + 1
        return attributes
    attributes["messaging.message.body.size"] = len(message.body)
    attributes["messaging.rocketmq.message.type"] = _MESSAGE_TYPES[context.message_type]
    return attributes | _named(context.properties)


def _read(message: MessageExt) -> dict[str, AttributeValue]:
    """What is known of one message that was read."""
    attributes: dict[str, AttributeValue] = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.body),
    }
    return attributes | _named(message.properties)


def _named(properties: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Tags, keys, delay and moment of a message."""
    attributes: dict[str, AttributeValue] = {}
    if tags := properties.get(PropertyKey.TAGS):
        attributes["messaging.rocketmq.message.tag"] = tags
    if keys := properties.get(PropertyKey.KEYS):
        attributes["messaging.rocketmq.message.keys"] = keys.split()
    level = properties.get(PropertyKey.DELAY, "")
    if level.isascii() and level.isdigit():
        attributes["messaging.rocketmq.message.delay_time_level"] = int(level[:9])
    moment = properties.get(PropertyKey.TIMER_DELIVER, "")
    if moment.isascii() and moment.isdigit():
        attributes["messaging.rocketmq.message.delivery_timestamp"] = int(moment[:18])
    return attributes


def _fail(span: Span, kind: str, text: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(trace.StatusCode.ERROR, text)
