"""``kerolox spark trace``: what clients' traces tell of paths, latency and failures."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kerolox.client.core.tracing.trace import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_traces,
)
from kerolox.errors import RemoteProtocolError
from kerolox.protocol.names import TRACE_TOPIC
from kerolox.spark.jobs.frame.errors import clear_errors
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary
from kerolox.spark.jobs.frame.lazy import arrow, sql
from kerolox.spark.jobs.frame.messages import SpanOptions, read_messages, values_of
from kerolox.spark.jobs.frame.options import option
from kerolox.spark.jobs.frame.tasks import arrow_schema
from kerolox.spark.jobs.report import Bars, Cell, KeyNumbers, Report, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyspark.sql import Column, DataFrame, Row, SparkSession

TOP_DEFAULT, TOP_MAX = 50, 1000

_SENT, _BEGUN, _DONE, _UNREADABLE = "sent", "begun", "done", "unreadable"

_SCHEMA = (
    "kind string, time long, team string, topic string, messageId string, requestId string, "
    "cost long, isGood boolean, tries int"
)
"""One row for each message that a record reports; ``team`` is the group."""

_Event = tuple[str, int, str, str, str, str, int, bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions(SpanOptions):
    """Options of ``trace``."""

    trace_topic: str = option("topic that clients write traces to", default=TRACE_TOPIC)
    top: int = option("most lines of each table", default=TOP_DEFAULT, minimum=1, maximum=TOP_MAX)

    def check(self) -> None:
        """A topic to read."""
        SpanOptions.check(self)
        if not self.trace_topic.strip():
            raise self.error("trace_topic", f"is blank; clients write to {TRACE_TOPIC}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What a producer group sent to a topic. Times in ms, from the call to the answer."""

    group: str
    topic: str
    messages: int
    failed: int
    p50_ms: int
    p99_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """What a consumer group did with the messages of a topic; an empty topic: their sends are not
    traced. Times in ms; ``latency`` is from the send's answer to the first call of a listener, None
    where no send is traced."""

    group: str
    topic: str
    calls: int
    failed: int
    retried: int
    unfinished: int
    """Calls whose end nobody told of."""
    listener_p50_ms: int | None
    listener_p99_ms: int | None
    latency_p50_ms: int | None
    latency_p99_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePath:
    """A way that messages went. An empty consumer group: nobody told of consuming them."""

    producer_group: str
    topic: str
    consumer_group: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary(Summary):
    """The result of ``trace``; the lists are the largest, at most ``top`` of each."""

    job: ClassVar[str] = "trace"

    sent: int
    consumed: int
    """Calls of listeners, those that were tried again too."""
    failed_sends: int
    failed_calls: int
    unreadable: int
    """Trace messages that could not be read."""
    sending: tuple[Sending, ...]
    consuming: tuple[Consuming, ...]
    paths: tuple[TracePath, ...]


@clear_errors("reading traces stopped")
def trace(spark: SparkSession, options: TraceOptions, progress: Progress) -> TraceSummary:
    """Read traces and hold sends and consuming together by message id."""
    started = time.monotonic()
    progress(Step("reading traces"))
    bodies = read_messages(spark, options, ("body",), (options.trace_topic,))
    events = bodies.mapInArrow(_events, _SCHEMA).persist()
    try:
        kinds = events.groupBy("kind").agg(
            sql.count("*").alias("count"), sql.count_if(~sql.col("isGood")).alias("failed")
        )
        found = {row["kind"]: row for row in kinds.collect()}
        sends, calls = _sends(events), _calls(events)
        progress(Step("holding sends and consuming together"))
        return TraceSummary(
            seconds=time.monotonic() - started,
            sent=_number(found, _SENT, "count"),
            consumed=_number(found, _BEGUN, "count"),
            failed_sends=_number(found, _SENT, "failed"),
            failed_calls=_number(found, _DONE, "failed"),
            unreadable=_number(found, _UNREADABLE, "count"),
            sending=_sending(sends, options.top),
            consuming=_consuming(sends, calls, options.top),
            paths=_paths(sends, calls, options.top),
        )
    finally:
        events.unpersist()


# -- rows from traces ---------------------------------------------------------------------------
def _events(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """In a worker: the records of trace messages as rows of ``_SCHEMA``."""
    schema = arrow_schema(_SCHEMA)
    for batch in batches:
        rows = [event for body in batch.column(0).to_pylist() for event in _events_of(body)]
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [
            arrow.array(values, each.type) for values, each in zip(columns, schema, strict=True)
        ]
        yield arrow.RecordBatch.from_arrays(arrays, schema=schema)


def _events_of(body: bytes | None) -> list[_Event]:
    try:
        records = decode_traces((body or b"").decode("utf-8", "replace"))
    except RemoteProtocolError:
        return [(_UNREADABLE, 0, "", "", "", "", 0, True, 0)]
    return [
        event
        for record in records
        # A batch has one record for all its messages.
        for message_id in record.message_id.split(",")
        if (event := _event_of(record, message_id)) is not None
    ]


def _event_of(record: TraceRecord, message_id: str) -> _Event | None:
    match record:
        case PubTrace(timestamp_ms=at, group=group, topic=topic, cost_ms=cost, is_success=good):
            return _SENT, at, group, topic, message_id, "", cost, good, 0
        case SubBeforeTrace(timestamp_ms=at, group=group, request_id=request, retry_times=tries):
            return _BEGUN, at, group, "", message_id, request, 0, True, tries
        case SubAfterTrace(
            timestamp_ms=at, group=group, request_id=request, cost_ms=cost, is_success=good
        ):
            return _DONE, at, group, "", message_id, request, cost, good, 0
    return None


# -- tables -------------------------------------------------------------------------------------
def _sends(events: DataFrame) -> DataFrame:
    """A row for each send."""
    return events.where(sql.col("kind") == _SENT).select(
        sql.col("team").alias("group"), "topic", "messageId", "time", "cost", "isGood"
    )


def _calls(events: DataFrame) -> DataFrame:
    """A row for each message that a listener got; ``wasGood`` is null where no end is known."""
    begun = events.where(sql.col("kind") == _BEGUN).select(
        sql.col("team").alias("group"),
        "messageId",
        "requestId",
        sql.col("time").alias("begun"),
        "tries",
    )
    done = events.where(sql.col("kind") == _DONE).select(
        "messageId",
        "requestId",
        sql.col("cost").alias("listener"),
        sql.col("isGood").alias("wasGood"),
    )
    done = done.dropDuplicates(["messageId", "requestId"])
    return begun.join(done, ["messageId", "requestId"], "left")


def _percentiles(of: str, prefix: str = "") -> list[Column]:
    return [
        sql.percentile_approx(of, part / 100, 10_000).alias(f"{prefix}p{part}_ms")
        for part in (50, 99)
    ]


def _sending(sends: DataFrame, top: int) -> tuple[Sending, ...]:
    table = sends.groupBy("group", "topic").agg(
        sql.count("*").alias("messages"),
        sql.count_if(~sql.col("isGood")).alias("failed"),
        *_percentiles("cost"),
    )
    return values_of(Sending, table.orderBy(sql.desc("messages"), "group", "topic").limit(top))


def _consuming(sends: DataFrame, calls: DataFrame, top: int) -> tuple[Consuming, ...]:
    known = sends.groupBy("messageId").agg(
        sql.max("topic").alias("topic"),
        sql.min(sql.col("time") + sql.col("cost")).alias("answered"),
    )
    latency = sql.greatest(sql.col("begun") - sql.col("answered"), sql.lit(0))
    table = (
        calls.join(known, "messageId", "left")
        .withColumn(
            "latency", sql.when((sql.col("tries") == 0) & sql.col("answered").isNotNull(), latency)
        )
        .groupBy("group", sql.coalesce("topic", sql.lit("")).alias("topic"))
        .agg(
            sql.count("*").alias("calls"),
            sql.count_if(~sql.col("wasGood")).alias("failed"),
            sql.count_if(sql.col("tries") > 0).alias("retried"),
            sql.count_if(sql.col("wasGood").isNull()).alias("unfinished"),
            *_percentiles("listener", "listener_"),
            *_percentiles("latency", "latency_"),
        )
    )
    return values_of(Consuming, table.orderBy(sql.desc("calls"), "group", "topic").limit(top))


def _paths(sends: DataFrame, calls: DataFrame, top: int) -> tuple[TracePath, ...]:
    producer = sql.col("group").alias("producer_group")
    sent = sends.where("isGood").select(producer, "topic", "messageId").distinct()
    consumed = calls.select("group", "messageId").distinct()
    consumer = sql.coalesce("group", sql.lit("")).alias("consumer_group")
    table = (
        sent.join(consumed, "messageId", "left")
        .groupBy("producer_group", "topic", consumer)
        .agg(sql.count("*").alias("messages"))
    )
    order = (sql.desc("messages"), "producer_group", "topic", "consumer_group")
    return values_of(TracePath, table.orderBy(*order).limit(top))


def _number(found: dict[str, Row], kind: str, name: str) -> int:
    return int(found[kind][name]) if kind in found else 0


# -- page ---------------------------------------------------------------------------------------
def page(summary: TraceSummary) -> Report:
    """The page of a summary."""
    sending: list[tuple[Cell, ...]] = [astuple(each) for each in summary.sending]
    consuming: list[tuple[Cell, ...]] = [
        astuple(replace(each, topic=each.topic or "(send not traced)"))
        for each in summary.consuming
    ]
    paths = [
        (f"{each.producer_group} → {each.topic} → {each.consumer_group or '?'}", each.messages)
        for each in summary.paths
    ]
    figures = KeyNumbers(
        (
            ("sent", summary.sent),
            ("failed sends", summary.failed_sends),
            ("listener calls", summary.consumed),
            ("failed calls", summary.failed_calls),
            ("unreadable traces", summary.unreadable),
        )
    )
    of_sends = ("group", "topic", "messages", "failed", "p50 ms", "p99 ms")
    of_calls = [
        *("group", "topic", "calls", "failed", "retried", "unfinished"),
        *("listener p50 ms", "listener p99 ms", "latency p50 ms", "latency p99 ms"),
    ]
    return Report(
        "Traces",
        "what clients told of sends and of consuming",
        (
            Section("In all", (figures, Bars("paths", paths, "messages"))),
            Section("Producers", (Table("by group and topic", of_sends, sending),)),
            Section("Consumers", (Table("by group and topic", of_calls, consuming),)),
        ),
    )


JOB = Job(
    name="trace",
    help="""Tell paths, latency and failures from the traces that clients write.

    \b
      kerolox spark trace --since 2026-11-01T00:00 --report traces.html
    """,
    options=TraceOptions,
    run=trace,
    report=page,
)
