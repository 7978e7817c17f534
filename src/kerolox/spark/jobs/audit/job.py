"""The job: reads a store's log and queues in parallel and tells what does not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, Row, SparkSession

from kerolox.inspect.places import LogFile, file_at
from kerolox.spark.jobs.audit.compare import damages, entry_findings, gaps, newest, queued
from kerolox.spark.jobs.audit.reading import ENTRY_SCHEMA, LOG_SCHEMA, EntryReader, LogReader
from kerolox.spark.jobs.frame.errors import clear_errors
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.frame.options import JobOptions, option
from kerolox.spark.jobs.frame.tasks import by_number
from kerolox.spark.jobs.report import Bars, KeyNumbers, Report, Section, Table
from kerolox.spark.store.ends import find_log_end
from kerolox.spark.store.files.listing import StoreListing, list_store
from kerolox.spark.store.files.queues import QueueRange, StoreQueue, queue_ids, queue_path
from kerolox.spark.store.plan import known_topics, queue_groups
from kerolox.spark.store.scan import plan_splits
from kerolox.store.layout import ENTRY_BYTES

SPLIT_MIB_DEFAULT = 64

TOP_DEFAULT, TOP_MAX = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(JobOptions):
    """Options of ``audit``."""

    store: str = option("folder or URI of the store, as storePathRootDir names it", metavar="PATH")
    split_mib: int = option(
        "most MiB of the log that a task reads",
        default=SPLIT_MIB_DEFAULT,
        minimum=1,
        maximum=65_536,
    )
    top: int = option(
        "most findings of each kind that are named", default=TOP_DEFAULT, minimum=1, maximum=TOP_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One thing that is not as a broker leaves it. ``kind``: ``file``, ``damage``, ``crc``,
    ``gap``, ``missing entry``, ``wrong entry`` or ``dangling entry``. ``position``: byte of the
    file; -1: the file as a whole, or nothing that stands in one.
    """

    kind: str
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        where = self.path if self.position < 0 else f"{self.path}: byte {self.position}"
        return f"{where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary(Summary):
    """The result of ``audit``."""

    job: ClassVar[str] = "audit"

    store: str
    records: int
    log_bytes: int
    queues: int
    queue_entries: int
    expired_entries: int
    """Entries of records that retention has deleted."""
    reused_offsets: int
    """Queue offsets that older records of a topic had, which was deleted and made again."""
    repeated_messages: int
    """Messages of producers that are stored more than once, as retries of sends do."""
    unqueued_records: int
    """Records that have no queue: prepared and rolled back, or of a topic that is deleted."""
    torn_tail_bytes: int
    """Bytes at the log's end that are no whole record: a broker cuts them off when it starts."""
    counts: Mapping[str, int]
    """Findings by kind."""
    findings: tuple[AuditFinding, ...]
    """The first ones of each kind, in the order of the log and of the queues."""

    @property
    def exit_code(self) -> int:
        """1 when something is not as it must be."""
        return 1 if self.counts else 0

    def lines(self) -> Iterator[str]:
        """The figures, then a line for each finding."""
        for name, value in self.as_json().items():
            if name not in ("findings", "counts"):
                yield f"{name}: {value}"
        for kind, count in self.counts.items():
            yield f"{kind}: {count}"
        yield from map(str, self.findings)


__all__ = ["JOB", "AuditOptions", "audit"]

_MIB = 1024 * 1024

_OF_LOG = ("damage", "crc")


@clear_errors("the audit stopped")
def audit(spark: SparkSession, options: AuditOptions, progress: Progress) -> AuditSummary:
    """Read a store whole and hold its parts against each other. Nothing is written.

    A store that a broker writes to is read up to where its queues show messages.

    Raises:
        StoreError: it is no store.
        OSError, JobError: it can't be read.
    """
    from pyspark import StorageLevel

    started = time.monotonic()
    progress(Step("listing the store"))
    listing = list_store(options.store)
    end = find_log_end(listing)
    splits = plan_splits(listing.start, end.offset, listing.files, options.split_mib * _MIB)
    reader = LogReader(options.store, listing.files, end.offset, tuple(splits))
    progress(Step("reading the log", total=end.offset - listing.start, unit="bytes"))
    parts = by_number(spark, len(splits), reader, LOG_SCHEMA).persist(StorageLevel.DISK_ONLY)
    kept_tables = [parts]
    topics = sorted(known_topics(listing) or ())
    ranges = _ranges(listing)
    try:
        records = parts.where(sql.col("reason").isNull())
        with_queue = queued(records, _names(spark, topics))
        places = newest(with_queue).persist(StorageLevel.DISK_ONLY)
        groups = tuple(tuple(group) for group in queue_groups(ranges))
        entry_reader = EntryReader(options.store, listing.queue_folder or "", groups)
        entries = by_number(spark, len(groups), entry_reader, ENTRY_SCHEMA)
        entries = entries.persist(StorageLevel.DISK_ONLY)
        kept_tables += [places, entries]
        bounds = (listing.start, end.offset)
        found = damages(parts).union(gaps(places))
        if listing.queue_folder is not None:
            found = found.union(entry_findings(places, entries, records, bounds))
        figures = _counts(records, with_queue, places, entries, listing.start)
        progress(Step("holding records and queues against each other"))
        counts, kept = _kept(found, options.top)
        faults = listing.faults
        findings = [
            AuditFinding(kind="file", path=listing.location, position=-1, text=text)
            for text in faults[: options.top]
        ]
        findings += [_placed(row, listing) for row in kept]
        return AuditSummary(
            seconds=time.monotonic() - started,
            store=listing.location,
            log_bytes=end.offset - listing.start,
            queues=len(ranges),
            torn_tail_bytes=0 if end.tail is None else end.tail.length,
            counts={**({"file": len(faults)} if faults else {}), **counts},
            findings=tuple(findings),
            **figures,
        )
    finally:
        for table in kept_tables:
            table.unpersist()


def _names(spark: SparkSession, topics: list[str]) -> DataFrame:
    return spark.createDataFrame([(topic,) for topic in topics], "topic string")


def _ranges(listing: StoreListing) -> list[QueueRange]:
    folder = listing.queue_folder
    if folder is None:
        return []
    topics = sorted(each.name for each in listing.disk.children(folder) if not each.is_file)
    return [
        QueueRange(
            topic,
            queue_id,
            *StoreQueue(listing.disk, queue_path(folder, topic, queue_id)).bounds(),
        )
        for topic in topics
        for queue_id in queue_ids(listing.disk, folder, topic)
    ]


def _counts(
    records: DataFrame, with_queue: DataFrame, places: DataFrame, entries: DataFrame, start: int
) -> dict[str, int]:
    (count,) = records.agg(sql.count("*")).collect()[0]
    in_queues, in_places = places.agg(
        sql.coalesce(sql.sum("times"), sql.lit(0)), sql.count("*")
    ).collect()[0]
    entry_count, expired = entries.agg(
        sql.count("*"), sql.count_if(sql.col("entryPhysical") < start)
    ).collect()[0]
    keyed = with_queue.where(sql.col("uniqKey").isNotNull()).groupBy("topic", "uniqKey").count()
    (repeated,) = keyed.agg(sql.coalesce(sql.sum(sql.col("count") - 1), sql.lit(0))).collect()[0]
    return {
        "records": count,
        "queue_entries": entry_count,
        "expired_entries": expired,
        "reused_offsets": in_queues - in_places,
        "repeated_messages": repeated,
        "unqueued_records": count - in_queues,
    }


def _kept(found: DataFrame, top: int) -> tuple[dict[str, int], list[Row]]:
    """Findings by kind, and the first ones of each."""
    from pyspark import StorageLevel
    from pyspark.sql import Window

    found = found.persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        order = Window.partitionBy("kind").orderBy("physical", "topic", "queueId", "queueOffset")
        first = found.withColumn("number", sql.row_number().over(order))
        rows = first.where(sql.col("number") <= top).orderBy("kind", "number").collect()
        return dict(sorted(counts.items())), rows
    finally:
        found.unpersist()


def _placed(row: Row, listing: StoreListing) -> AuditFinding:
    """A finding with its file: of the log, or of the queue whose entry it is about."""
    kind = row["kind"]
    if kind in _OF_LOG:
        file = file_at(listing.files, row["physical"])
        path, position = _place_in(file, row["physical"], listing.location)
    else:
        folder = queue_path(listing.queue_folder or "", row["topic"], row["queueId"])
        byte = row["queueOffset"] * ENTRY_BYTES
        files = StoreQueue(listing.disk, folder).files
        path, position = _place_in(file_at(files, byte), byte, folder)
    return AuditFinding(kind=kind, path=path, position=position, text=row["text"])


def _place_in(file: LogFile | None, position: int, otherwise: str) -> tuple[str, int]:
    return (otherwise, -1) if file is None else (file.path, position - file.start)


def page(summary: AuditSummary) -> Report:
    """The page of a summary."""
    numbers = {
        "records": summary.records,
        "bytes of the log": summary.log_bytes,
        "queues": summary.queues,
        "queue entries": summary.queue_entries,
        "findings": sum(summary.counts.values()),
        "torn tail, bytes": summary.torn_tail_bytes,
        "repeated messages": summary.repeated_messages,
    }
    rows = [(each.kind, each.path, each.position, each.text) for each in summary.findings]
    columns = ("kind", "file", "byte", "what")
    return Report(
        "Audit of a store",
        summary.store,
        (
            Section("In all", (KeyNumbers(tuple(numbers.items())),)),
            Section(
                "Findings",
                (
                    Bars("findings by kind", tuple(summary.counts.items())),
                    Table("the first ones of each kind", columns, rows),
                ),
            ),
        ),
    )


JOB = Job(
    name="audit",
    help="""Read a store whole, in parallel: every record's CRC, gaps and repetitions, queues
    against the log. Nothing is written. Exits with 1 when something does not fit.

    \b
      kerolox spark audit --store /var/lib/kerolox/store --report audit.html
    """,
    options=AuditOptions,
    run=audit,
    report=page,
)
