"""``kerolox spark traffic``: how much goes through topics, how large, how fast, how evenly."""

from __future__ import annotations

import math
import time
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kerolox.spark.jobs.frame.errors import clear_errors
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.frame.messages import MessageOptions, read_messages, values_of
from kerolox.spark.jobs.frame.options import option
from kerolox.spark.jobs.report import Bars, KeyNumbers, Lines, Report, Section, Table
from kerolox.text import time_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = ("topic", "brokerName", "queueId", "storeTimestamp", "tags", "body")

TOP_DEFAULT, TOP_MAX = 20, 1000

SPANS_MAX = 500
"""Points of the line of rates; a point is a whole number of minutes."""

_MINUTE_MS = 60_000

_CLASSES_PER_DOUBLING = 4
"""Sizes are counted in classes whose bounds are a fourth of a doubling (19 %) apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions(MessageOptions):
    """Options of ``traffic``."""

    top: int = option(
        "most topics, queues and tags named", default=TOP_DEFAULT, minimum=1, maximum=TOP_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic:
    """One topic. ``queue_skew``: messages of its fullest queue over those of an average one."""

    topic: str
    messages: int
    body_bytes: int
    largest_bytes: int
    queues: int
    queue_skew: float
    fullest_queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTraffic:
    """One tag of one topic; an empty tag: messages without."""

    topic: str
    tag: str
    messages: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Bodies of more than the class before and at most ``up_to_bytes``."""

    up_to_bytes: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The messages stored in a span of ``TrafficSummary.span_minutes``, from its start, ms."""

    start_ms: int
    messages: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSummary(Summary):
    """The result of ``traffic``; the lists are the largest, at most ``top`` of each."""

    job: ClassVar[str] = "traffic"

    messages: int
    body_bytes: int
    topic_count: int
    first_stored_ms: int | None
    last_stored_ms: int | None
    peak_messages_per_second: float
    """Of the busiest span, on average."""
    span_minutes: int
    topics: tuple[TopicTraffic, ...]
    tags: tuple[TagTraffic, ...]
    sizes: tuple[SizeClass, ...]
    spans: tuple[Span, ...]


@clear_errors("counting stopped")
def traffic(spark: SparkSession, options: TrafficOptions, progress: Progress) -> TrafficSummary:
    """Read the messages once and count them."""
    started = time.monotonic()
    progress(Step("counting messages"))
    counts = _counts(read_messages(spark, options, COLUMNS, options.topics)).persist()
    try:
        topics = _topics(counts)
        messages, body_bytes, topic_count, first, last = _totals(topics)
        span_minutes = 1 if first is None else -(-(last - first + 1) // SPANS_MAX)
        spans = _spans(counts, span_minutes)
        return TrafficSummary(
            seconds=time.monotonic() - started,
            messages=messages or 0,
            body_bytes=body_bytes or 0,
            topic_count=topic_count,
            first_stored_ms=None if first is None else first * _MINUTE_MS,
            last_stored_ms=None if last is None else (last + 1) * _MINUTE_MS - 1,
            peak_messages_per_second=max((each.messages for each in spans), default=0)
            / (span_minutes * 60),
            span_minutes=span_minutes,
            topics=tuple(
                replace(each, queue_skew=round(each.queue_skew, 3))
                for each in values_of(
                    TopicTraffic, _largest(topics.drop("first", "last"), options.top)
                )
            ),
            tags=values_of(TagTraffic, _largest(_tags(counts), options.top)),
            sizes=_sizes(counts),
            spans=spans,
        )
    finally:
        counts.unpersist()


def _counts(rows: DataFrame) -> DataFrame:
    """Counts by topic, queue, minute, tag and class of size, which all else is made of."""
    size = sql.length("body")
    by_size = sql.ceil(sql.log2(sql.greatest(size, sql.lit(1))) * _CLASSES_PER_DOUBLING)
    return rows.groupBy(
        "topic",
        sql.concat_ws("/", "brokerName", "queueId").alias("queue"),
        sql.floor(sql.unix_millis("storeTimestamp") / _MINUTE_MS).alias("minute"),
        sql.coalesce("tags", sql.lit("")).alias("tag"),
        sql.when(size == 0, sql.lit(-1)).otherwise(by_size).alias("sizeClass"),
    ).agg(
        sql.count("*").alias("messages"),
        sql.sum(size).alias("body_bytes"),
        sql.max(size).alias("largest_bytes"),
    )


def _topics(counts: DataFrame) -> DataFrame:
    queues = counts.groupBy("topic", "queue").agg(
        sql.sum("messages").alias("messages"),
        sql.sum("body_bytes").alias("body_bytes"),
        sql.max("largest_bytes").alias("largest_bytes"),
        sql.min("minute").alias("first"),
        sql.max("minute").alias("last"),
    )
    return queues.groupBy("topic").agg(
        sql.sum("messages").alias("messages"),
        sql.sum("body_bytes").alias("body_bytes"),
        sql.max("largest_bytes").alias("largest_bytes"),
        sql.count("*").alias("queues"),
        (sql.max("messages") / sql.avg("messages")).alias("queue_skew"),
        sql.max_by("queue", "messages").alias("fullest_queue"),
        sql.min("first").alias("first"),
        sql.max("last").alias("last"),
    )


def _tags(counts: DataFrame) -> DataFrame:
    return counts.groupBy("topic", "tag").agg(
        sql.sum("messages").alias("messages"), sql.sum("body_bytes").alias("body_bytes")
    )


def _largest(table: DataFrame, count: int) -> DataFrame:
    names = [name for name in ("topic", "tag") if name in table.columns]
    return table.orderBy(table["messages"].desc(), *names).limit(count)


def _totals(topics: DataFrame) -> Row:
    totals = topics.agg(
        sql.sum("messages"),
        sql.sum("body_bytes"),
        sql.count("*"),
        sql.min("first"),
        sql.max("last"),
    )
    (row,) = totals.collect()
    return row


def _sizes(counts: DataFrame) -> tuple[SizeClass, ...]:
    table = counts.groupBy("sizeClass").sum("messages").orderBy("sizeClass")
    return tuple(
        SizeClass(up_to_bytes=_upper_bound(row["sizeClass"]), messages=row["sum(messages)"])
        for row in table.collect()
    )


def _upper_bound(size_class: int) -> int:
    return 0 if size_class < 0 else math.floor(2 ** (size_class / _CLASSES_PER_DOUBLING))


def _spans(counts: DataFrame, minutes: int) -> tuple[Span, ...]:
    start = sql.floor(sql.col("minute") / minutes) * (minutes * _MINUTE_MS)
    table = counts.groupBy(start.alias("start_ms")).agg(
        sql.sum("messages").alias("messages"), sql.sum("body_bytes").alias("body_bytes")
    )
    return values_of(Span, table.orderBy("start_ms"))


def page(summary: TrafficSummary) -> Report:
    """The page of a summary."""
    per_second = [
        (each.start_ms / 1000, each.messages / (summary.span_minutes * 60))
        for each in summary.spans
    ]
    first, last = summary.first_stored_ms or 0, summary.last_stored_ms or 0
    return Report(
        "Traffic",
        f"{time_text(first)} to {time_text(last)}",
        (
            Section(
                "In all",
                (
                    KeyNumbers(
                        (
                            ("messages", summary.messages),
                            ("bytes of bodies", summary.body_bytes),
                            ("topics", summary.topic_count),
                            ("messages/s at the peak", summary.peak_messages_per_second),
                        )
                    ),
                    Lines(
                        f"messages per second, mean of {summary.span_minutes} min",
                        (("messages/s", per_second),),
                        x_label="time",
                        x_texts=(time_text(first), time_text(last)),
                    ),
                ),
            ),
            Section("Topics", _topic_parts(summary)),
            Section(
                "Sizes",
                (
                    Bars(
                        "messages by size of body",
                        [(f"≤ {each.up_to_bytes} bytes", each.messages) for each in summary.sizes],
                    ),
                ),
            ),
        ),
    )


def _topic_parts(summary: TrafficSummary) -> tuple[Bars | Table, ...]:
    return (
        Bars("messages", [(each.topic, each.messages) for each in summary.topics]),
        Table(
            "the largest topics",
            ("topic", "messages", "bytes", "largest_bytes", "queues", "skew", "fullest queue"),
            [astuple(each) for each in summary.topics],
        ),
        Table(
            "the most frequent tags",
            ("topic", "tag", "messages", "bytes"),
            [astuple(each) for each in summary.tags],
        ),
    )


JOB = Job(
    name="traffic",
    help="""Count what goes through topics: messages, bytes, sizes, rates, tags, and how evenly
    queues are filled.

    \b
      kerolox spark traffic --topic Orders --topic Bills --report traffic.html
      kerolox spark traffic --store /var/lib/kerolox/store --since 2026-11-01T00:00
    """,
    options=TrafficOptions,
    run=traffic,
    report=page,
)
