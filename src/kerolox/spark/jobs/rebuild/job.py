"""The job: scans a log, then writes queues and index of it, then gives them their names."""

from __future__ import annotations

import time
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

from kerolox.inspect.places import file_at
from kerolox.spark.jobs.frame.errors import JobError, clear_errors
from kerolox.spark.jobs.frame.job import Job, Progress, Step, silent
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.frame.tasks import by_number
from kerolox.spark.jobs.rebuild.index import IndexWriter, index_parts
from kerolox.spark.jobs.rebuild.log_summary import (
    SUMMARY_SCHEMA,
    LogSummary,
    Surveyor,
    log_summary_of,
    odd_queues,
)
from kerolox.spark.jobs.rebuild.options import RebuildOptions, RebuildSummary
from kerolox.spark.jobs.rebuild.queues import (
    DONE_SCHEMA,
    FILE,
    OddQueueWriter,
    QueueFileWriter,
)
from kerolox.spark.jobs.rebuild.reading import PLACE_SCHEMA, LogSplits, PlaceReader
from kerolox.spark.jobs.rebuild.source import (
    Source,
    check_config,
    check_log,
    examine,
    settings_of,
)
from kerolox.spark.jobs.rebuild.target import RebuildTarget, check_files, check_room, target_of
from kerolox.spark.store.scan import plan_splits
from kerolox.store.index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from kerolox.store.layout import ENTRY_BYTES

_MIB = 1024 * 1024

ENTRIES_OF_TASK = 1_000_000
"""About so many entries are sorted and written by one task, or those of one file."""

BLOCK_BYTES = 4096

HELP = """Make the queues and the index of a store anew from its log, in parallel.

What a broker's ReputMessageService makes of the log: queues byte for byte, an index with the same
answers. They go to a new folder, or replace those of the store itself when they are whole. Exits
with 1 when the log is damaged and --skip-damaged has left out what is.

\b
  kerolox spark rebuild --store /var/lib/kerolox/store --to /data/rebuilt
  kerolox spark rebuild --store /var/lib/kerolox/store --in-place --config broker.conf
"""


class Written(NamedTuple):
    """What tasks have written."""

    entries: int
    files: int
    peak: int
    notes: tuple[str, ...] = ()


def rebuild(
    spark: SparkSession, options: RebuildOptions, progress: Progress = silent
) -> RebuildSummary:
    """Make queues and index anew from a store's log.

    Nothing that was there is changed before all is written.

    Raises:
        ConfigError: a wrong option, or a target that has other data.
        StoreError: it is no store, a broker uses it, or files of its log are missing.
        JobError: the log is damaged, or writing failed; nothing was changed.
        OSError: something can't be read or written; nothing was changed.
    """
    check_config(options)
    settings = settings_of(options)
    progress(Step("listing the store"))
    source = examine(options, settings, is_ours=False)
    check_log(source, options)
    target = target_of(options, settings)
    try:
        target.begin()
        if options.in_place:
            source = examine(options, settings, is_ours=True)
        with clear_errors("the rebuild stopped", "nothing was changed; mend that and run it again"):
            return _Rebuild(spark, options, source, target, progress).run()
    finally:
        target.end()


class _Rebuild:
    def __init__(
        self,
        spark: SparkSession,
        options: RebuildOptions,
        source: Source,
        target: RebuildTarget,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._options = options
        self._source = source
        self._target = target
        self._progress = progress
        listing, end = source.listing, source.end.offset
        splits = plan_splits(listing.start, end, listing.files, options.split_mib * _MIB)
        self._bytes = end - listing.start
        self._log = LogSplits(options.store, listing.files, end, tuple(splits))
        self._started = time.monotonic()

    def run(self) -> RebuildSummary:
        """Do it."""
        from pyspark import StorageLevel

        self._step("scanning the log")
        has_index = self._source.index_shape is not None
        surveyor = Surveyor(self._log, self._source.rules, has_index)
        table = by_number(self._spark, len(self._log.splits), surveyor, SUMMARY_SCHEMA)
        table = table.persist(StorageLevel.DISK_ONLY)
        try:
            totals = log_summary_of(table, self._options.top)
            self._check_damages(totals)
            check_room(self._target, self._wanted_bytes(totals))
            self._step("writing queues")
            queues = self._write_queues(totals, odd_queues(table) if totals.odd_queues else None)
        finally:
            table.unpersist()
        index = Written(0, 0, 0)
        if has_index:
            self._step("writing the index")
            index = self._write_index(totals)
        self._progress(Step("putting in place"))
        check_files(self._target, queues.files, index.files)
        summary = self._summary(totals, queues, index)
        state = {
            "logStart": self._source.listing.start,
            "logEnd": self._source.end.offset,
            **summary.as_json(),
        }
        self._target.publish(totals.newest, has_index=has_index, state=state)
        return summary

    def _step(self, text: str) -> None:
        self._progress(Step(text, total=self._bytes, unit="bytes"))

    def _check_damages(self, totals: LogSummary) -> None:
        if not totals.damages or self._options.skip_damaged:
            return
        more = totals.damages - 1
        others = f" (and {more} more, which kerolox spark audit names)" if more else ""
        raise JobError(
            f"the log is damaged: {self._damage(totals.first_damages[0])}{others}; nothing was "
            "changed; give --skip-damaged to leave out what does not read"
        )

    def _damage(self, row: Row) -> str:
        """A sentence on a damage, with its file and byte."""
        first, last, reason = row["first"], row["last"], row["reason"]
        file = file_at(self._source.listing.files, first)
        where = f"physical offset {first}"
        if file is not None:
            where = f"{file.path}: byte {first - file.start}"
        return f"{where}: {last - first} bytes hold no record that counts: {reason}"

    def _wanted_bytes(self, totals: LogSummary) -> int:
        files = totals.queues + totals.entries * ENTRY_BYTES // self._source.queue_file_bytes
        wanted = totals.entries * ENTRY_BYTES + files * BLOCK_BYTES
        shape = self._source.index_shape
        if shape is not None:
            count = -(-sum(totals.keys) // (shape.entries - 1))
            wanted += count * shape.entries_at + sum(totals.keys) * INDEX_ENTRY_BYTES
        return wanted

    def _write_queues(self, totals: LogSummary, odd: DataFrame | None) -> Written:
        target, file_bytes = self._target, self._source.queue_file_bytes
        reader = PlaceReader(self._log, self._source.rules, self._options.skip_damaged)
        entries = by_number(self._spark, len(self._log.splits), reader, PLACE_SCHEMA)
        queue = ["topic", "queueId"]
        tasks = max(1, -(-totals.entries // ENTRIES_OF_TASK), self._tasks(totals))
        regular = entries
        if odd is not None:
            regular = entries.join(sql.broadcast(odd), queue, "left_anti")
        by_file = regular.withColumn(FILE, sql.expr(f"queueOffset div {file_bytes // ENTRY_BYTES}"))
        parted = by_file.repartition(tasks, *queue, FILE)
        ordered = parted.sortWithinPartitions(*queue, FILE, "queueOffset")
        writer = QueueFileWriter(target.queue_root, target.scratch, file_bytes)
        written = _done(ordered.mapInArrow(writer, DONE_SCHEMA))
        if odd is None:
            return written
        of_odd = entries.join(sql.broadcast(odd), queue, "left_semi").repartition(tasks, *queue)
        in_log = of_odd.sortWithinPartitions(*queue, "physical")
        top = self._options.top
        odd_writer = OddQueueWriter(target.queue_root, target.scratch, file_bytes, top)
        others = _done(in_log.mapInArrow(odd_writer, DONE_SCHEMA), top)
        return Written(
            written.entries + others.entries,
            written.files + others.files,
            max(written.peak, others.peak),
            others.notes,
        )

    def _tasks(self, totals: LogSummary) -> int:
        """Tasks that are worth their start, where few entries are there."""
        return min(len(self._log.splits), -(-totals.entries // (ENTRIES_OF_TASK // 10)))

    def _write_index(self, totals: LogSummary) -> Written:
        shape, target = self._source.index_shape, self._target
        assert shape is not None
        parts = tuple(index_parts(totals.keys, shape, time.time_ns() // 1_000_000))
        if not parts:
            return Written(0, 0, 0)
        skips = self._options.skip_damaged
        folders = (target.index_folder, target.scratch)
        writer = IndexWriter(self._log, skips, parts, shape, *folders)
        return _done(by_number(self._spark, len(parts), writer, DONE_SCHEMA))

    def _summary(self, totals: LogSummary, queues: Written, index: Written) -> RebuildSummary:
        tail = self._source.end.tail
        notes = [*map(self._damage, totals.first_damages), *queues.notes]
        peak = max(totals.peak, queues.peak, index.peak)
        return RebuildSummary(
            seconds=time.monotonic() - self._started,
            store=self._source.listing.location,
            to=self._target.location,
            records=totals.records,
            log_bytes=self._bytes,
            queues=totals.queues,
            queue_files=queues.files,
            queue_entries=queues.entries,
            index_files=index.files,
            index_entries=index.entries,
            unqueued_records=totals.unqueued,
            skipped_records=totals.deleted,
            wrong_crc_records=totals.wrong_crc,
            damages=totals.damages,
            damaged_bytes=totals.damaged_bytes,
            torn_tail_bytes=0 if tail is None else tail.length,
            odd_queues=totals.odd_queues,
            task_peak_mib=-(-peak // 1024),
            skipped_topics=totals.deleted_topics,
            notes=tuple(notes[: self._options.top]),
        )


def _done(written: DataFrame, top: int = 0) -> Written:
    """Let the tasks write: what they have written in all, and at most ``top`` of their notes."""
    from pyspark import StorageLevel

    if top:
        # For two questions; a task that runs again writes the same.
        written = written.persist(StorageLevel.DISK_ONLY)
    try:
        totals = written.agg(sql.sum("entries"), sql.sum("files"), sql.max("peak")).collect()[0]
        entries, files, peak = (number or 0 for number in totals)
        notes: tuple[str, ...] = ()
        if top:
            rows = written.where(sql.col("note").isNotNull()).select("note").limit(top).collect()
            notes = tuple(row["note"] for row in rows)
        return Written(entries, files, peak, notes)
    finally:
        if top:
            written.unpersist()


JOB = Job(name="rebuild", help=HELP, options=RebuildOptions, run=rebuild)
