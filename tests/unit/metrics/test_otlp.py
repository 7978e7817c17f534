"""Metrics sent to an OpenTelemetry collector: what a receiver of the protocol reads."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from prometheus_client.parser import text_string_to_metric_families

from kerolox.broker.broker import Broker
from kerolox.errors import ConfigError
from kerolox.metrics import otlp
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import SECONDS_MAX, until
from tests.unit.broker.test_exposition import HOST, PROM, fetch


class Received:
    """What came, with the headers of the last request."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: dict[str, str] = {}
        self.target = ""

    def metrics(self) -> dict[str, Any]:
        """The metrics of the last request by name."""
        [resource] = self.requests[-1].resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "kerolox"
        return {metric.name: metric for metric in scope.metrics}


@contextmanager
def http_collector(status: int = 200) -> Iterator[Received]:
    received = Received()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            received.headers = {name.lower(): value for name, value in self.headers.items()}
            received.requests.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        received.target = f"http://{HOST}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_collector() -> Iterator[Received]:
    received = Received()

    class Servicer(MetricsServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> ExportMetricsServiceResponse:
            received.headers = {item.key: item.value for item in context.invocation_metadata()}
            received.requests.append(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_MetricsServiceServicer_to_server(Servicer(), server)
    received.target = f"http://{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()


def sending(kind: str, target: str, **more: Any) -> dict[str, Any]:
    return {
        "metrics_exporter_type": kind,
        "metrics_grpc_exporter_target": target,
        "metric_grpc_exporter_interval_in_mills": 100,
        **more,
    }


@asynccontextmanager
async def sender(folder: Path, kind: str, target: str, **more: Any) -> AsyncIterator[Broker]:
    async with Broker(small_config(folder, **sending(kind, target, **more))) as broker:
        yield broker


@pytest.mark.parametrize(
    ("kind", "collector"), [("OTLP_HTTP", http_collector), ("OTLP_GRPC", grpc_collector)]
)
async def test_a_collector_gets_the_metrics_of_a_scrape(
    tmp_path: Path, kind: str, collector: Any
) -> None:
    with collector() as received:
        header = "X-Tenant:a, authorization:Bearer b"
        async with sender(
            tmp_path, kind, received.target, metrics_grpc_exporter_header=header
        ) as broker:
            assert broker.metrics_port == 0
            async with peer_of(broker) as peer:
                await peer.create_topic("T")
                for _ in range(3):
                    assert (await peer.send("T", b"x")).code == 0
            await until(lambda: received.requests and stored(received.metrics()) == 3)
        metrics = received.metrics()
    assert (received.headers["x-tenant"], received.headers["authorization"]) == ("a", "Bearer b")
    assert metrics.keys() == await scraped_names(tmp_path / "scraped")
    [point] = metrics["rocketmq_topic_number"].gauge.data_points
    labels = {item.key: item.value.string_value for item in point.attributes}
    assert labels["node_id"] == "broker-t"
    assert labels["node_type"] == "broker"
    total = metrics["rocketmq_messages_in_total"].sum
    assert (total.is_monotonic, total.aggregation_temporality) == (True, 2)
    [sends] = metrics["kerolox_send_latency_seconds"].histogram.data_points
    assert sends.count == sum(sends.bucket_counts) == 3
    assert len(sends.bucket_counts) == len(sends.explicit_bounds) + 1
    assert sends.start_time_unix_nano < sends.time_unix_nano


def stored(metrics: dict[str, Any]) -> float:
    """Messages of topic ``T``."""
    if "rocketmq_messages_in_total" not in metrics:
        return 0
    points = metrics["rocketmq_messages_in_total"].sum.data_points
    return sum(
        float(point.as_double or point.as_int)
        for point in points
        if any(item.value.string_value == "T" for item in point.attributes)
    )


async def scraped_names(folder: Path) -> set[str]:
    """What such a broker shows at ``/metrics``; a histogram by the name of its family."""
    async with Broker(small_config(folder, **PROM)) as broker:
        async with peer_of(broker) as peer:
            await peer.create_topic("T")
            await peer.send("T", b"x")
        text = (await fetch(broker.metrics_port, "/metrics"))[1]
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }


async def test_a_name_server_sends_its_metrics_too(tmp_path: Path) -> None:
    with http_collector() as received:
        config = NamesrvConfig.load(
            None,
            listen_host=HOST,
            listen_port=0,
            kv_config_path=tmp_path / "kv.json",
            **sending("OTLP_HTTP", received.target),
        )
        async with NameServer(config):
            await until(lambda: received.requests)
        assert "kerolox_namesrv_brokers" in received.metrics()


async def test_a_collector_that_refuses_is_a_warning_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with http_collector(status=400) as received:
        async with sender(tmp_path, "OTLP_HTTP", received.target):
            await until(lambda: len(received.requests) >= 2)
            await until(lambda: "metrics were not taken" in caplog.text)


async def test_a_stop_waits_for_a_silent_collector_no_longer_than_its_limit(tmp_path: Path) -> None:
    connected, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(say_nothing, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        timeout = {"metric_grpc_exporter_time_out_in_mills": 500}
        broker = Broker(
            small_config(tmp_path, **sending("OTLP_HTTP", f"http://{HOST}:{port}", **timeout))
        )
        await broker.start()
        await asyncio.wait_for(connected.wait(), SECONDS_MAX)
        await asyncio.wait_for(broker.stop(), SECONDS_MAX)
        await asyncio.wait_for(left.wait(), SECONDS_MAX)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"metrics_grpc_exporter_target": ""}, "needs metricsGrpcExporterTarget"),
        ({"metrics_grpc_exporter_target": "ftp://h:1"}, "no http or https URL"),
        ({"metrics_grpc_exporter_target": "http://:4317"}, "no http or https URL"),
        ({"metrics_grpc_exporter_target": "http://h:99999"}, "no http or https URL"),
        ({"metrics_grpc_exporter_header": "a:b,secret"}, "part 2 is not name:value"),
    ],
)
async def test_a_start_with_a_wrong_target_or_header_says_so(
    tmp_path: Path, settings: dict[str, str], fault: str
) -> None:
    broker = Broker(small_config(tmp_path, **sending("OTLP_GRPC", "h:4317") | settings))
    with pytest.raises(ConfigError, match=fault) as caught:
        await broker.start()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "target", "url"),
    [
        ("OTLP_GRPC", "c:4317", "https://c:4317"),
        ("otlp_http", "http://c:4318/", "http://c:4318/v1/metrics"),
        ("OTLP_HTTP", "https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
    ],
)
def test_a_target_is_https_unless_it_says_http(
    tmp_path: Path, kind: str, target: str, url: str
) -> None:
    assert otlp.target_of(small_config(tmp_path, **sending(kind, target))) == url


@pytest.mark.parametrize("target", ["http://http://c:4317", "tcp://c:4317", "https://"])
def test_a_target_that_is_no_url_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="is no http or https URL"):
        otlp.target_of(small_config(tmp_path, **sending("OTLP_GRPC", target)))


async def test_without_the_extra_the_start_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kerolox.metrics.otlp", None)
    with pytest.raises(ConfigError, match=r"pip install 'kerolox\[otel\]'"):
        async with sender(tmp_path, "OTLP_GRPC", "c:4317"):
            pass
