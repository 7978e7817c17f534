"""One page of several brokers: families are there once, with the series of all that answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain

from kerolox.metrics import merging
from kerolox.metrics.families import Families
from kerolox.metrics.http import HttpAnswer, HttpHandler, HttpRequest, HttpServer
from kerolox.metrics.merging import MergedMetricsServer, MetricsSource, merged

from .test_text import PARSERS, encode


def of(broker: str, *topics: str) -> Families:
    families = Families({"node_id": broker}, 1000)
    for topic in topics:
        families.counter("a_total", "of topics", 1, {"topic": topic})
    families.histogram("c_seconds", "times", (0.001, 5.0), (1, 2, 3), 7.5)
    return families


@PARSERS
def test_the_series_of_all_stand_in_one_family(accept: str, parse: object) -> None:
    texts = [
        encode(of("x", "t", "u"), accept),
        encode(of("y"), accept),
        encode(of("z", "t"), accept),
    ]
    text = b"".join(merged(texts)).decode()
    found = {family.name: family for family in parse(text)}  # type: ignore[operator]
    assert text.count("# TYPE ") == len(found) == 2
    topics = [
        (sample.labels["node_id"], sample.labels["topic"])
        for sample in found["a"].samples
        if sample.name == "a_total"
    ]
    assert topics == [("x", "t"), ("x", "u"), ("z", "t")]
    sums = [each.labels for each in found["c_seconds"].samples if each.name == "c_seconds_sum"]
    assert sums == [{"node_id": "x"}, {"node_id": "y"}, {"node_id": "z"}]


def test_nothing_gives_nothing() -> None:
    assert list(merged([])) == list(merged([b""])) == []


@asynccontextmanager
async def page_of(metrics: HttpHandler, ready: HttpHandler) -> AsyncIterator[MergedMetricsServer]:
    """That of two brokers, of which the second one does not run."""
    broker = HttpServer({"/metrics": metrics, "/health/ready": ready})
    await broker.open("127.0.0.1", 0, "metricsPromExporterPort")
    sources = {"x": MetricsSource(broker.port, 3), "y": MetricsSource(0, 1)}
    page = MergedMetricsServer("127.0.0.1", "c", lambda: sources)
    await page.start("127.0.0.1", 0)
    try:
        yield page
    finally:
        await page.stop()
        await broker.close()


async def metrics_of_x(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(encode(of("x", "t"), request.accept))


async def endless(request: HttpRequest) -> HttpAnswer:
    await asyncio.Event().wait()
    raise AssertionError


async def unready(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(b"not ready\nits disk is full\n", status=503)


async def read(page: MergedMetricsServer, path: str) -> tuple[int, str]:
    status, body = await merging._get("127.0.0.1", page.port, path, "")
    return status, body.decode()


@pytest.mark.asyncio
async def test_the_page_says_who_answers_and_how_often_each_was_started_again() -> None:
    async with page_of(metrics_of_x, unready) as page:
        status, text = await read(page, "/metrics")
    assert status == 200
    found = {
        (sample.name, sample.labels["node_id"]): sample.value
        for family in plain(text)
        for sample in family.samples
    }
    assert found["kerolox_broker_up", "x"] == 1
    assert found["kerolox_broker_up", "y"] == 0
    assert found["kerolox_broker_restarts_total", "x"] == 3
    assert found["a_total", "x"] == 1


@pytest.mark.asyncio
async def test_one_that_does_not_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ANSWER_SECONDS_MAX", 0.1)
    async with page_of(endless, endless) as page:
        assert await page._asked(page._sources(), "/metrics", "") == {}


@pytest.mark.asyncio
async def test_more_than_a_broker_can_have_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ANSWER_BYTES_MAX", 10)
    async with page_of(metrics_of_x, unready) as page:
        assert await page._asked(page._sources(), "/metrics", "") == {}


@pytest.mark.asyncio
async def test_all_are_ready_when_each_is() -> None:
    async with page_of(metrics_of_x, unready) as page:
        reasons = "not ready\nx: its disk is full\ny: it does not answer\n"
        assert await read(page, "/health/ready") == (503, reasons)
        assert await read(page, "/health/live") == (200, "live\n")
