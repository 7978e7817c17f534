"""The job: a stream from the topics, a batch at a time, then compaction."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, assert_never

from kerolox.errors import ConfigError, KeroloxError
from kerolox.spark.jobs.archive.bodies.decoding import Decoder, decoder_of
from kerolox.spark.jobs.archive.options import ArchiveOptions, Compact, Format
from kerolox.spark.jobs.archive.records import CHECKPOINT, BatchRecord, Records
from kerolox.spark.jobs.archive.staging import REASON, VALUE, stage, staged
from kerolox.spark.jobs.archive.targets.delta import DeltaTarget
from kerolox.spark.jobs.archive.targets.iceberg import IcebergTarget
from kerolox.spark.jobs.archive.targets.parquet import ParquetTarget, place_of
from kerolox.spark.jobs.archive.targets.target import Target
from kerolox.spark.jobs.frame.errors import JobError, clear_errors, reason_of
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary, silent
from kerolox.spark.jobs.report import Bars, KeyNumbers, Report, Section

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


def target_of(options: ArchiveOptions) -> Target:
    """It is opened when it is used."""
    kind = Format(options.format)
    match kind:
        case Format.PARQUET:
            return ParquetTarget(options.to, options.state_folder)
        case Format.DELTA:
            return DeltaTarget(options.to)
        case Format.ICEBERG:
            return IcebergTarget(options.to, options.catalog)
    assert_never(kind)


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """What ``foreachBatch`` calls. It is pickled where Spark runs elsewhere (Spark Connect)."""

    options: ArchiveOptions
    archive: str
    decoder: Decoder | None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch; one that was taken before is completed, or left as it is."""
        records = Records(Folder(self.options.state_folder))
        target = target_of(self.options)
        record = records.read(batch)
        if record is None:
            record = self._write(frame, batch, records, target)
        if not record.is_done:
            self._place(record, records, target)

    def _write(self, frame: DataFrame, batch: int, records: Records, target: Target) -> BatchRecord:
        """Write the files where no reader sees them, then the record that names them."""
        folder = target.folder_of(self.archive, batch)
        rows = frame if self.decoder is None else self.decoder.decode(frame)
        stage(rows, folder, with_topic=target.files_have_topic)
        data, quarantined = staged(folder)
        record = BatchRecord(
            batch=batch,
            is_done=False,
            folder=folder.uri,
            data=tuple(data),
            quarantined=tuple(quarantined),
            totals=records.totals().plus(data, quarantined),
        )
        records.write(record)
        return record

    def _place(self, record: BatchRecord, records: Records, target: Target) -> None:
        aside = Folder(self.options.quarantine_folder)
        source = Folder(record.folder)
        for number, each in enumerate(record.quarantined):
            name = f"{record.batch:09d}-{number:05d}-{self.archive[:8]}.parquet"
            source.move(each.path, aside, f"{place_of(each.topic, each.date)}/{name}")
        if record.data:
            target.commit(self.archive, record)
        records.write(replace(record, is_done=True))
        if not target.keeps_files:
            source.delete_folder()


POLL_SECONDS = 0.5
"""Time between two checks of the query."""

HELP = """Archive topics as Parquet, Delta or Iceberg.

Reads what the topics hold and stops, or goes on for ever with --follow. Run again, it goes on where
it stopped; each message is in the archive once, whatever was killed. Files are by topic and by day
of the store time (UTC), with all columns.

\b
  kerolox spark archive --topic Orders --to /data/orders
  kerolox spark archive --topic Orders --to /data/orders --format delta --follow
  kerolox spark archive --topic Orders --to lake.orders --format iceberg --state /data/state \\
    --catalog type=sql --catalog uri=sqlite:////data/catalog.db --catalog warehouse=/data/lake
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary(Summary):
    """The result of a run of ``archive``."""

    job: ClassVar[str] = "archive"

    to: str
    format: str
    batches: int
    """Of this run, as are the numbers below."""
    rows: int
    files: int
    bytes: int
    quarantined: int
    """Rows that do not decode, in the quarantine folder."""
    rows_by_topic: Mapping[str, int] = field(default_factory=dict)
    rows_in_all: int = 0
    """Since the archive began."""
    compacted_files: int = 0
    """Small files that were replaced, and by how many."""
    compacted_into: int = 0


def archive(
    spark: SparkSession, options: ArchiveOptions, progress: Progress = silent
) -> ArchiveSummary:
    """Archive topics.

    With ``follow`` it returns only by an error, or by the exception of a signal.

    Raises:
        ConfigError: a wrong option, a target with other data, a topic that is missing; nothing was
            done.
        JobError: it stopped; what earlier batches wrote stands, and a further run goes on.
    """
    started = time.monotonic()
    decoder = decoder_of(options)
    records = Records(Folder(options.state_folder))
    before = records.totals()
    if options.compact != Compact.ONLY:
        _stream(spark, options, records, decoder, progress)
    taken = made = 0
    if options.compact != Compact.NO:
        progress(Step("compacting"))
        taken, made = _compact(spark, options)
    totals = records.totals()
    done = totals.since(before)
    return ArchiveSummary(
        seconds=time.monotonic() - started,
        to=options.to,
        format=options.format,
        batches=done.batches,
        rows=done.rows,
        files=done.files,
        bytes=done.size,
        quarantined=done.quarantined,
        rows_by_topic=done.rows_by_topic,
        rows_in_all=totals.rows,
        compacted_files=taken,
        compacted_into=made,
    )


def _stream(
    spark: SparkSession,
    options: ArchiveOptions,
    records: Records,
    decoder: Decoder | None,
    progress: Progress,
) -> None:
    from kerolox.spark.positions.read_limits import HAS_READ_LIMITS, limited
    from kerolox.spark.rows.schema import full_schema

    schema = full_schema()
    if decoder is not None:
        schema = schema.add(VALUE, decoder.value_type()).add(REASON, "string")
    text = schema.simpleString()
    archive_id, is_new = records.open(options, text)
    source = {
        **limited(maxOffsetsPerTrigger=str(options.batch_rows)),
        **options.source_options(),
        "startingOffsets": options.starting_offsets,
        **options.source,
    }
    if options.topics:
        source["subscribe"] = ",".join(options.topics)
    try:
        frame = spark.readStream.format("rocketmq").options(**source).load()
    except Exception as error:
        raise ConfigError(f"nothing was archived: {reason_of(error)}") from error
    _prepare(options, records, archive_id, schema, is_new=is_new)
    writer = frame.writeStream.foreachBatch(BatchWriter(options, archive_id, decoder))
    writer = writer.option("checkpointLocation", records.folder.path(CHECKPOINT))
    if options.follow:
        writer = writer.trigger(processingTime=f"{options.interval} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    # PySpark 4.1 ends a run behind the batch that it does again.
    is_cut = not HAS_READ_LIMITS and not options.follow and records.has_open_batch()
    for _ in range(2 if is_cut else 1):
        try:
            query = writer.start()
        except Exception as error:
            raise JobError(f"the archive does not start: {reason_of(error)}") from error
        _watch(query, records, progress)


def _prepare(
    options: ArchiveOptions, records: Records, archive_id: str, schema: StructType, *, is_new: bool
) -> None:
    target = target_of(options)
    try:
        target.prepare(archive_id, schema, is_new=is_new, append=options.append)
        if is_new:
            records.begin(options, archive_id, schema.simpleString())
    except (KeroloxError, OSError):
        raise
    except Exception as error:  # what a catalog's library raises
        raise ConfigError(f"option --to: {options.to} can't be used: {reason_of(error)}") from error


def _watch(query: StreamingQuery, records: Records, progress: Progress) -> None:
    """Until the query ends; it ends with this function in any case."""
    rows: dict[int, int] = {}
    done = 0
    progress(Step("archiving"))
    try:
        while not query.awaitTermination(POLL_SECONDS):
            for each in query.recentProgress:
                if each.batchId not in rows:
                    rows[each.batchId] = each.numInputRows
                    done += each.numInputRows
            while len(rows) > 1000:
                del rows[next(iter(rows))]
            progress(Step("archiving", done))
    except (KeroloxError, KeyboardInterrupt):
        raise
    except Exception as error:
        in_all = records.totals().rows
        what = f"the {in_all} rows of earlier batches are whole" if in_all else "nothing is in it"
        raise JobError(
            f"archiving stopped: {reason_of(error)}; {what}; mend that and run it again to go on"
        ) from error
    finally:
        # It may have ended by itself, or Spark may be gone.
        with contextlib.suppress(Exception):
            query.stop()


def _compact(spark: SparkSession, options: ArchiveOptions) -> tuple[int, int]:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with clear_errors("compaction stopped", "no row is lost; run it again to go on"):
        return target_of(options).compact(spark, options.compact_mib << 20, today)


def _report(summary: ArchiveSummary) -> Report:
    figures = [
        ("rows", summary.rows),
        ("rows since it began", summary.rows_in_all),
        ("put aside", summary.quarantined),
        ("files", summary.files),
        ("bytes", summary.bytes),
        ("batches", summary.batches),
        ("seconds", summary.seconds),
    ]
    topics = sorted(summary.rows_by_topic.items(), key=lambda item: -item[1])
    when = datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="seconds")
    sections = [Section("This run", [KeyNumbers(figures)])]
    if topics:
        sections.append(Section("Topics", [Bars("Rows by topic", topics, "rows")]))
    return Report(f"Archive {summary.to}", f"{summary.format}, {when}", sections)


JOB = Job(name="archive", help=HELP, options=ArchiveOptions, run=archive, report=_report)
