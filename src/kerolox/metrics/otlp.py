"""The metrics of one role sent to an OpenTelemetry collector, over gRPC or HTTP.

The same families as at ``/metrics``, under the same names, cumulative. What certificates, proxies
and compression the connection has is for OpenTelemetry's own variables
(``OTEL_EXPORTER_OTLP_...``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcExporter,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpExporter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kerolox.errors import ConfigError
from kerolox.metrics.snapshots import Snapshots
from kerolox.tasks import end_tasks
from kerolox.text import printable

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.samples import Sample

    from kerolox.metrics.families import Families
    from kerolox.metrics.role import MeasuredRole
    from kerolox.role_settings import MetricsSettings

POINTS_PER_REQUEST_MAX = 5_000
"""Series in one request: collectors take 4 MiB."""
HTTP_PATH = "/v1/metrics"
"""Where collectors take metrics, unless the target has a path."""

_log = logging.getLogger(__name__)


class MetricsExporter:
    """Sends the metrics of one role at an interval."""

    def __init__(self, settings: MetricsSettings, role: MeasuredRole) -> None:
        """Nothing is sent before :meth:`start`.

        Raises:
            ConfigError: the target or the headers are none.
        """
        self._target = target_of(settings)
        self._interval = settings.metric_grpc_exporter_interval_in_mills / 1000
        self._snapshots = Snapshots(settings, role)
        self._exporter = _exporter(settings, self._target)
        self._began_ns = time.time_ns()
        self._sending: asyncio.Task[None] | None = None
        self._request: asyncio.Future[MetricExportResult] | None = None

    async def start(self) -> None:
        """Send from now on; whether the collector is there does not matter."""
        self._snapshots.start()
        self._sending = asyncio.get_running_loop().create_task(self._send_always())
        _log.info("metrics go to %s every %g s", self._target, self._interval)

    async def stop(self) -> None:
        """Send no more; waits for a request under way. Idempotent."""
        if self._sending is None:
            return
        await end_tasks(self._sending)
        self._sending = None
        await self._snapshots.stop()
        # It ends the wait before another try; a request under way has its time limit.
        await asyncio.to_thread(self._exporter.shutdown)
        if self._request is not None:
            await asyncio.wait([self._request])

    async def _send_always(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._send()
            except Exception:
                _log.exception("metrics could not be sent to %s", self._target)

    async def _send(self) -> None:
        families = await self._snapshots.take()
        loop = asyncio.get_running_loop()
        self._request = loop.run_in_executor(None, self._export, families)
        # Who is cancelled here leaves the thread to itself.
        result = await asyncio.shield(self._request)
        if result is not MetricExportResult.SUCCESS:
            _log.warning("metrics were not taken by %s; the next ones will be tried", self._target)

    def _export(self, families: Families) -> MetricExportResult:
        return self._exporter.export(metrics_data(families, self._began_ns, time.time_ns()))


def target_of(settings: MetricsSettings) -> str:
    """``metricsGrpcExporterTarget`` as a URL; https unless it says otherwise, as in RocketMQ.

    Raises:
        ConfigError: it is none.
    """
    target = settings.metrics_grpc_exporter_target.strip()
    if not target:
        raise ConfigError(
            f"metricsExporterType={settings.metrics_exporter_type} needs "
            "metricsGrpcExporterTarget, such as http://collector:4317"
        )
    if "://" not in target:
        target = f"https://{target}"
    with contextlib.suppress(ValueError):
        parts = urlsplit(target)
        is_port_fine = parts.port is None or parts.port > 0
        # Of http://http://host the host would be "http".
        is_one = target.count("://") == 1
        if is_one and parts.scheme in ("http", "https") and parts.hostname and is_port_fine:
            is_path_open = settings.is_exported_by_http and parts.path in ("", "/")
            return target.rstrip("/") + HTTP_PATH if is_path_open else target
    raise ConfigError(f"metricsGrpcExporterTarget: {printable(target)!r} is no http or https URL")


def headers_of(settings: MetricsSettings) -> dict[str, str]:
    """``metricsGrpcExporterHeader`` by name.

    Raises:
        ConfigError: a part of it is no ``name:value``; the text does not show it.
    """
    headers = {}
    for number, part in enumerate(settings.metrics_grpc_exporter_header.split(","), 1):
        name, separator, value = (text.strip() for text in part.partition(":"))
        if part.strip():
            if not (name and separator and value and part.isprintable() and part.isascii()):
                raise ConfigError(
                    f"metricsGrpcExporterHeader: part {number} is not name:value in ASCII"
                )
            headers[name.lower()] = value
    return headers


def _exporter(settings: MetricsSettings, target: str) -> MetricExporter:
    kind = HttpExporter if settings.is_exported_by_http else GrpcExporter
    return kind(
        endpoint=target,
        headers=headers_of(settings),
        timeout=settings.metric_grpc_exporter_time_out_in_mills / 1000,
        max_export_batch_size=POINTS_PER_REQUEST_MAX,
    )


def metrics_data(families: Families, began_ns: int, now_ns: int) -> MetricsData:
    """Families as OpenTelemetry has them, of one resource without attributes: the labels of all
    series stand with each, as RocketMQ 5 sends them."""
    metrics = [metric for each in families.collect() for metric in _metrics(each, began_ns, now_ns)]
    scope = ScopeMetrics(InstrumentationScope("kerolox"), metrics, "")
    return MetricsData([ResourceMetrics(Resource.get_empty(), [scope], "")])


def _metrics(family: Family, began_ns: int, now_ns: int) -> Iterable[Metric]:
    if family.type == "histogram":
        data: Histogram | Sum | Gauge = Histogram(
            list(_histogram_points(family, began_ns, now_ns)), AggregationTemporality.CUMULATIVE
        )
        yield Metric(family.name, family.documentation, "", data)
        return
    points = [
        NumberDataPoint(sample.labels, began_ns, now_ns, sample.value) for sample in family.samples
    ]
    if family.type == "counter":
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    yield Metric(family.samples[0].name, family.documentation, "", data)


def _histogram_points(family: Family, began_ns: int, now_ns: int) -> Iterable[HistogramDataPoint]:
    """Those of a family (:meth:`~kerolox.metrics.families.Families.histogram`)."""
    samples: list[Sample] = []
    for sample in family.samples:
        samples.append(sample)
        if sample.name.endswith("_sum"):
            yield _histogram_point(samples, began_ns, now_ns)
            samples = []


def _histogram_point(samples: Sequence[Sample], began_ns: int, now_ns: int) -> HistogramDataPoint:
    *buckets, count, total = samples
    seen = [int(bucket.value) for bucket in buckets]
    return HistogramDataPoint(
        attributes=count.labels,
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=int(count.value),
        sum=total.value,
        bucket_counts=[now - before for before, now in zip([0, *seen], seen, strict=False)],
        explicit_bounds=[float(bucket.labels["le"]) for bucket in buckets[:-1]],
        # Not known: the encoding leaves them out.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )
