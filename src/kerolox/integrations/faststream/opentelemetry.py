"""Spans and metrics of OpenTelemetry by FastStream's middleware; it needs ``kerolox[otel]``.

::

    broker = KeroloxBroker(middlewares=[KeroloxTelemetryMiddleware(tracer_provider=provider)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from kerolox.integrations.faststream.message import RawMessage
from kerolox.integrations.faststream.parser import bytes_of, first_of
from kerolox.integrations.faststream.response import KeroloxPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["KeroloxTelemetryMiddleware"]


class KeroloxTelemetryProvider(TelemetrySettingsProvider[RawMessage, KeroloxPublishCommand]):
    """The attributes of spans."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[RawMessage]) -> dict[str, Any]:
        """Of the span of a handler."""
        raw = msg.raw_message
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: bytes_of(msg),
            MESSAGING_DESTINATION_PUBLISH_NAME: first_of(raw).topic,
        }
        if isinstance(raw, tuple):
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[RawMessage]) -> str:
        """The topic."""
        return first_of(msg.raw_message).topic

    def get_publish_attrs_from_cmd(self, cmd: KeroloxPublishCommand) -> dict[str, Any]:
        """Of the span of a publish."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: KeroloxPublishCommand) -> str:
        """The topic."""
        return cmd.destination


class KeroloxTelemetryMiddleware(TelemetryMiddleware[KeroloxPublishCommand]):
    """Traces publishes and handlers, and counts messages. The context travels in headers."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        """One for a broker.

        Args:
            tracer_provider: None: the global one.
            meter_provider: None: the global one.
            meter: None: one of the provider's.
            include_messages_counters: count messages too.
        """
        super().__init__(
            settings_provider_factory=lambda _: KeroloxTelemetryProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
