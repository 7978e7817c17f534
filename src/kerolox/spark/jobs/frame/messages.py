"""Options of jobs that read messages, of topics or of a store, and the rows that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.frame.options import option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions(ClusterOptions):
    """From where, and from when, a job reads messages."""

    store: str | None = option(
        "folder or URI of a store to read in place of brokers", default=None, metavar="PATH"
    )
    since: int | None = option("only messages stored since then", default=None, is_time=True)
    until: int | None = option("only messages stored before then", default=None, is_time=True)

    def check(self) -> None:
        """The span of time has a length."""
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise self.error("until", f"{self.until} is not after --since {self.since}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(SpanOptions):
    """Which messages a job reads: those of topics, or of all topics of a store."""

    topics: tuple[str, ...] = option("topic to read; may be repeated", default=(), flag="topic")

    def check(self) -> None:
        """Something to read."""
        SpanOptions.check(self)
        if not self.topics and self.store is None:
            raise self.error("topics", "name a topic, or a store with --store")


def read_messages(
    spark: SparkSession,
    options: SpanOptions,
    columns: Sequence[str],
    topics: Sequence[str],
) -> DataFrame:
    """The messages that the options name, as a table of these columns of the source
    (:mod:`kerolox.spark.rows.schema`). Without topics all of a store.
    """
    wanted = [*columns, *({"storeTimestamp"} - set(columns))]
    if options.store is None:
        reader = spark.read.format("rocketmq").options(**options.source_options())
    else:
        reader = spark.read.format("rocketmq-store").option("path", options.store)
    # The sources leave out most of what is not of this time; the rest is left out here.
    if options.since is not None:
        reader = reader.option("startingTimestamp", options.since)
    if options.until is not None:
        reader = reader.option("endingTimestamp", options.until)
    if topics:
        reader = reader.option("subscribe", ",".join(topics))
    rows = reader.option("columns", ",".join(wanted)).load()
    stored = sql.unix_millis("storeTimestamp")
    if options.since is not None:
        rows = rows.where(stored >= options.since)
    if options.until is not None:
        rows = rows.where(stored < options.until)
    return rows.select(*columns)


def values_of(kind: Callable[..., _Value], table: DataFrame) -> tuple[_Value, ...]:
    """The rows of a small table as dataclasses whose fields have the columns' names."""
    return tuple(kind(**row.asDict()) for row in table.collect())
