"""FastStream's base tests of its middlewares for OpenTelemetry and Prometheus."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.integrations.faststream.opentelemetry import KeroloxTelemetryMiddleware
from kerolox.integrations.faststream.prometheus import (
    KeroloxMetricsProvider,
    KeroloxPrometheusMiddleware,
)
from tests.integrations.faststream.brokers import OnServer

from faststream_tests.opentelemetry import basic as opentelemetry  # isort: skip
from faststream_tests.prometheus import basic as prometheus  # isort: skip

pytestmark = [
    pytest.mark.xdist_group("faststream"),
    pytest.mark.filterwarnings("default"),
]


class TestTelemetry(OnServer, opentelemetry.LocalTelemetryTestcase):
    messaging_system = "rocketmq"
    include_messages_counters = True
    telemetry_middleware_class = KeroloxTelemetryMiddleware


class TestPrometheus(
    OnServer, prometheus.LocalPrometheusTestcase, prometheus.LocalRPCPrometheusTestcase
):
    messaging_system = "rocketmq"

    def get_middleware(self, **options: Any) -> KeroloxPrometheusMiddleware:
        return KeroloxPrometheusMiddleware(**options)

    def get_settings_provider(self) -> KeroloxMetricsProvider:
        return KeroloxMetricsProvider()
