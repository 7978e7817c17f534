"""The first reading of a log: what is damaged, what queues there are, how many keys it has.

Nothing is written before it is over. A queue is odd when its records do not follow each other,
offset by offset, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.protocol.codes import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from kerolox.spark.jobs.frame.lazy import arrow, compute, sql
from kerolox.spark.jobs.frame.tasks import batch_of, numbers_of
from kerolox.spark.jobs.rebuild.reading import (
    ENTRY_COLUMNS,
    TIME,
    LogSplits,
    peak_kib,
    places_of,
    store_times,
)
from kerolox.spark.jobs.rebuild.source import Rules
from kerolox.spark.store.columns import CRC_OK
from kerolox.spark.store.scan import Damage

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, Row

SPLIT, QUEUE, DELETED, DAMAGE = "split", "queue", "deleted", "damage"

SUMMARY_SCHEMA = (
    "kind string, split int, topic string, queueId int, first long, last long, count long, "
    "isOdd boolean, keys long, unqueued long, wrongCrc long, time long, odd long, peak long, "
    "reason string"
)
"""``split``: records (count), keys of the index, newest store time, how many rows of the kinds
deleted and damage (odd). ``queue``: its first and last queue offset in the split. ``deleted``: a
topic with its entries. ``damage``: a piece of the log from ``first`` to before ``last``."""

_KEYS = ("uniqKey", "keys")
_WORD = "[^ ]+"


@dataclass(slots=True)
class _Seen:
    """A queue in a split."""

    first: int
    last: int
    count: int = 1
    is_odd: bool = False


@dataclass(slots=True)
class _Split:
    """What a split has."""

    number: int
    records: int = 0
    keys: int = 0
    unqueued: int = 0
    wrong_crc: int = 0
    newest: int = 0
    queues: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    damages: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, batch: pyarrow.RecordBatch, rules: Rules, *, has_index: bool) -> None:
        """Count a batch of records."""
        self.records += batch.num_rows
        right = compute.sum(batch.column(CRC_OK)).as_py() or 0
        self.wrong_crc += batch.num_rows - right
        self.newest = max(self.newest, compute.max(store_times(batch)).as_py())
        if has_index:
            self.keys += _key_count(batch)
        places = places_of(batch, rules)
        self.unqueued += places.unqueued
        for topic, count in places.deleted.items():
            self.deleted[topic] = self.deleted.get(topic, 0) + count
        self.damages += places.impossible
        names = ("topic", "queueId", "queueOffset")
        columns = [places.entries.column(name).to_pylist() for name in names]
        queues = self.queues
        for topic, queue_id, offset in zip(*columns, strict=True):
            seen = queues.get((topic, queue_id))
            if seen is None:
                queues[topic, queue_id] = _Seen(offset, offset)
                continue
            if offset != seen.last + 1:
                seen.is_odd = True
            seen.last = offset
            seen.count += 1

    def rows(self) -> Iterator[dict[str, object]]:
        """As the summary has them."""
        yield {
            "kind": SPLIT,
            "count": self.records,
            "keys": self.keys,
            "unqueued": self.unqueued,
            "wrongCrc": self.wrong_crc,
            "time": self.newest,
            "odd": len(self.damages) + len(self.deleted),
            "peak": peak_kib(),
        }
        for (topic, queue_id), seen in self.queues.items():
            yield {
                "kind": QUEUE,
                "topic": topic,
                "queueId": queue_id,
                "first": seen.first,
                "last": seen.last,
                "count": seen.count,
                "isOdd": seen.is_odd,
            }
        for topic, count in self.deleted.items():
            yield {"kind": DELETED, "topic": topic, "count": count}
        for offset, size, reason in self.damages:
            yield {"kind": DAMAGE, "first": offset, "last": offset + size, "reason": reason}


def _key_count(batch: pyarrow.RecordBatch) -> int:
    """How many keys records have: as ``keys_of`` finds them, and none of what is rolled back."""
    kind = compute.bit_wise_and(
        batch.column("sysFlag"), arrow.scalar(TRANSACTION_MASK, arrow.int32())
    )
    indexed = batch.filter(compute.not_equal(kind, TRANSACTION_ROLLBACK))
    unique = indexed.num_rows - indexed.column("uniqKey").null_count
    words = compute.sum(compute.count_substring_regex(indexed.column("keys"), _WORD)).as_py()
    return int(unique + (words or 0))


@dataclass(frozen=True, slots=True)
class Surveyor:
    """Scans splits by their numbers."""

    log: LogSplits
    rules: Rules
    has_index: bool

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: the summary of the splits whose numbers are the first column."""
        for number in numbers_of(batches):
            rows = [{"split": number, **row} for row in self.split(number).rows()]
            yield batch_of(rows, SUMMARY_SCHEMA)

    def split(self, number: int) -> _Split:
        """One split."""
        columns = (*ENTRY_COLUMNS, TIME, CRC_OK, *(_KEYS if self.has_index else ()))
        found = _Split(number)
        for part in self.log.parts(number, columns, with_properties=self.rules.multi_dispatch):
            if isinstance(part, Damage):
                if not part.is_tail:
                    found.damages.append((part.offset, part.length, part.reason))
            else:
                found.add(part, self.rules, has_index=self.has_index)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """What a log has. ``keys``: of the index, by split. ``newest``: store time in ms. ``peak``: KiB
    of the largest process of a task.
    """

    records: int
    keys: tuple[int, ...]
    unqueued: int
    wrong_crc: int
    newest: int
    peak: int
    queues: int
    entries: int
    odd_queues: int
    damages: int = 0
    damaged_bytes: int = 0
    first_damages: tuple[Row, ...] = ()
    deleted: int = 0
    deleted_topics: tuple[str, ...] = ()


def log_summary_of(table: DataFrame, top: int) -> LogSummary:
    """Sum a log up: a row for each split, and at most ``top`` of what is odd."""
    names = ("split", "count", "keys", "unqueued", "wrongCrc", "time", "odd", "peak")
    splits = table.where(sql.col("kind") == SPLIT).select(*names).orderBy("split").collect()
    queues = _queues(table).agg(sql.count("*"), sql.sum("count"), sql.count_if(sql.col("isOdd")))
    queue_count, entries, odd = queues.collect()[0]
    found = LogSummary(
        records=_sum(splits, "count"),
        keys=tuple(row["keys"] for row in splits),
        unqueued=_sum(splits, "unqueued"),
        wrong_crc=_sum(splits, "wrongCrc"),
        newest=max((row["time"] for row in splits), default=0),
        peak=max((row["peak"] for row in splits), default=0),
        queues=queue_count,
        entries=entries or 0,
        odd_queues=odd,
    )
    return _with_odd(found, table, top) if _sum(splits, "odd") else found


def _with_odd(found: LogSummary, table: DataFrame, top: int) -> LogSummary:
    from dataclasses import replace

    damages = table.where(sql.col("kind") == DAMAGE)
    length = sql.coalesce(sql.sum(sql.col("last") - sql.col("first")), sql.lit(0))
    count, size = damages.agg(sql.count("*"), length).collect()[0]
    deleted = table.where(sql.col("kind") == DELETED).groupBy("topic").agg(sql.sum("count"))
    (gone,) = deleted.agg(sql.coalesce(sql.sum("sum(count)"), sql.lit(0))).collect()[0]
    first = damages.orderBy("first").limit(top).select("first", "last", "reason").collect()
    topics = deleted.orderBy("topic").limit(top).collect()
    return replace(
        found,
        damages=count,
        damaged_bytes=size,
        first_damages=tuple(first),
        deleted=gone,
        deleted_topics=tuple(row["topic"] for row in topics),
    )


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(row[name] for row in rows)


def _queues(table: DataFrame) -> DataFrame:
    """A row for each queue: its entries, and whether it is odd."""
    from pyspark.sql import Window

    order = Window.partitionBy("topic", "queueId").orderBy("split")
    before = sql.lag("last").over(order)
    joins = sql.coalesce(sql.col("first") == before + 1, sql.lit(True))
    rows = table.where(sql.col("kind") == QUEUE)
    marked = rows.withColumn("isOdd", sql.col("isOdd") | ~joins)
    return marked.groupBy("topic", "queueId").agg(
        sql.sum("count").alias("count"), sql.max("isOdd").alias("isOdd")
    )


def odd_queues(table: DataFrame) -> DataFrame:
    """Topic and queue id of the odd queues."""
    return _queues(table).where(sql.col("isOdd")).select("topic", "queueId")
