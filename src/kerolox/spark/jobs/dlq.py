"""``kerolox spark dlq``: the dead letters of consumer groups: whose, of what, why, since when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kerolox.message import DEAD_LETTER_REASON, PropertyKey
from kerolox.protocol.names import DLQ_PREFIX
from kerolox.spark.jobs.frame.errors import clear_errors
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.frame.messages import SpanOptions, read_messages, values_of
from kerolox.spark.jobs.frame.options import option
from kerolox.spark.jobs.report import Bars, KeyNumbers, Report, Section, Table
from kerolox.text import time_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = (
    "topic",
    "storeTimestamp",
    "bornTimestamp",
    "tags",
    "keys",
    "uniqKey",
    "reconsumeTimes",
    "properties",
)

TOP_DEFAULT, TOP_MAX = 50, 1000

SAMPLES_DEFAULT = 20

TEXT_CHARACTERS_MAX = 200
"""Characters kept of a reason or of keys, which may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions(SpanOptions):
    """Options of ``dlq``."""

    groups: tuple[str, ...] = option("consumer group; may be repeated", flag="group")
    top: int = option("most lines of each table", default=TOP_DEFAULT, minimum=1, maximum=TOP_MAX)
    samples: int = option(
        "most messages that are shown, the newest",
        default=SAMPLES_DEFAULT,
        minimum=0,
        maximum=TOP_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """Dead letters of one group, topic and reason. An empty reason: the client gave none, as after
    the last of its tries."""

    group: str
    topic: str
    reason: str
    messages: int
    oldest_ms: int
    newest_ms: int
    tries_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One of the newest. ``message_id``: as the producer gave it."""

    group: str
    topic: str
    message_id: str
    keys: str
    tags: str
    reason: str
    born_ms: int
    dead_ms: int
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSummary(Summary):
    """The result of ``dlq``; ``counts`` are the largest, ``newest`` the samples."""

    job: ClassVar[str] = "dlq"

    messages: int
    groups: tuple[str, ...]
    counts: tuple[DeadLetterCount, ...]
    newest: tuple[DeadLetter, ...]

    @property
    def exit_code(self) -> int:
        """1 when there are dead letters."""
        return 1 if self.messages else 0


@clear_errors("counting stopped")
def dead_letters(
    spark: SparkSession, options: DeadLetterOptions, progress: Progress
) -> DeadLetterSummary:
    """Count the dead letters of the groups by topic and reason."""
    started = time.monotonic()
    progress(Step("counting dead letters"))
    topics = [DLQ_PREFIX + group for group in options.groups]
    letters = _letters(read_messages(spark, options, COLUMNS, topics))
    by_reason = letters.groupBy("group", "topic", "reason").agg(
        sql.count("*").alias("messages"),
        sql.min("dead_ms").alias("oldest_ms"),
        sql.max("dead_ms").alias("newest_ms"),
        sql.max("tries").alias("tries_max"),
    )
    counts = by_reason.persist()
    try:
        (total,) = counts.agg(sql.sum("messages").alias("messages")).collect()
        most = counts.orderBy(sql.desc("messages"), "group", "topic", "reason").limit(options.top)
        return DeadLetterSummary(
            seconds=time.monotonic() - started,
            messages=total["messages"] or 0,
            groups=options.groups,
            counts=values_of(DeadLetterCount, most),
            newest=_newest(letters, options.samples if total["messages"] else 0),
        )
    finally:
        counts.unpersist()


def _letters(rows: DataFrame) -> DataFrame:
    def said(name: str) -> Column:
        text = sql.coalesce(sql.col("properties")[name], sql.lit(""))
        return sql.left(text, sql.lit(TEXT_CHARACTERS_MAX))

    return rows.select(
        sql.expr(f"substring(topic, {len(DLQ_PREFIX) + 1})").alias("group"),
        said(PropertyKey.RETRY_TOPIC).alias("topic"),
        said(DEAD_LETTER_REASON).alias("reason"),
        sql.unix_millis("storeTimestamp").alias("dead_ms"),
        sql.unix_millis("bornTimestamp").alias("born_ms"),
        sql.col("reconsumeTimes").alias("tries"),
        sql.left(sql.coalesce("tags", sql.lit("")), sql.lit(TEXT_CHARACTERS_MAX)).alias("tags"),
        sql.left(sql.coalesce("keys", sql.lit("")), sql.lit(TEXT_CHARACTERS_MAX)).alias("keys"),
        sql.coalesce(said(PropertyKey.ORIGIN_MESSAGE_ID), "uniqKey").alias("message_id"),
    )


def _newest(letters: DataFrame, count: int) -> tuple[DeadLetter, ...]:
    if not count:
        return ()
    return values_of(DeadLetter, letters.orderBy(sql.desc("dead_ms"), "message_id").limit(count))


def page(summary: DeadLetterSummary) -> Report:
    """The page of a summary."""
    counts = Table(
        "by group, topic and reason",
        ("group", "topic", "reason", "messages", "oldest", "newest", "most tries"),
        [
            (
                *(each.group, each.topic, each.reason or "(none given)", each.messages),
                *(time_text(each.oldest_ms), time_text(each.newest_ms), each.tries_max),
            )
            for each in summary.counts
        ],
    )
    newest = Table(
        "the newest",
        ("dead since", "group", "topic", "message id", "keys", "tags", "tries", "reason"),
        [
            (
                *(time_text(each.dead_ms), each.group, each.topic, each.message_id),
                *(each.keys, each.tags, each.tries, each.reason),
            )
            for each in summary.newest
        ],
    )
    bars = [(f"{each.group} {each.topic}", each.messages) for each in summary.counts]
    return Report(
        "Dead letters",
        ", ".join(summary.groups),
        (
            Section(
                "In all",
                (KeyNumbers((("messages", summary.messages),)), Bars("messages", bars), counts),
            ),
            Section("Messages", (newest,)),
        ),
    )


JOB = Job(
    name="dlq",
    help="""Count the dead letters of consumer groups by topic and reason.

    All that are in the queue are counted, also those that were sent again or purged; `kerolox dlq
    list` says how many wait, and `kerolox dlq resend` sends those again, each once. Exits with 1
    when there are some.

    \b
      kerolox spark dlq --group billing --report dead-letters.html
      kerolox spark dlq --group billing --store /var/lib/kerolox/store -o json
    """,
    options=DeadLetterOptions,
    run=dead_letters,
    report=page,
)
