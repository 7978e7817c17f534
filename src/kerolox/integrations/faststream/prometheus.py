"""Metrics for Prometheus by FastStream's middleware.

::

    broker = KeroloxBroker(middlewares=[KeroloxPrometheusMiddleware(registry=registry)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from kerolox.integrations.faststream.message import RawMessage
from kerolox.integrations.faststream.parser import bytes_of, first_of
from kerolox.integrations.faststream.response import KeroloxPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from prometheus_client import CollectorRegistry

__all__ = ["KeroloxPrometheusMiddleware"]


class KeroloxMetricsProvider(MetricsSettingsProvider[RawMessage, KeroloxPublishCommand]):
    """The labels of metrics."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[RawMessage]) -> ConsumeAttrs:
        """Of a message that is handled, or a batch."""
        raw = msg.raw_message
        return {
            "destination_name": first_of(raw).topic,
            "message_size": bytes_of(msg),
            "messages_count": len(raw) if isinstance(raw, tuple) else 1,
        }

    def get_publish_destination_name_from_cmd(self, cmd: KeroloxPublishCommand) -> str:
        """The topic."""
        return cmd.destination


class KeroloxPrometheusMiddleware(PrometheusMiddleware[RawMessage, KeroloxPublishCommand]):
    """Counts messages, their sizes, outcomes and times, by topic."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        """One for a broker.

        Args:
            registry: where the metrics are.
            app_name: of a label; left out: ``metrics_prefix``.
            metrics_prefix: begins their names.
            received_messages_size_buckets: of the histogram of bodies, bytes.
            custom_labels: further labels: texts, or functions of a message.
        """
        super().__init__(
            settings_provider_factory=lambda _: KeroloxMetricsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
