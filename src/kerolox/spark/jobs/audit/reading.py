"""What tasks of ``audit`` read: records of splits of the log, entries of ranges of queues.

The classes here travel to the workers; they hold plain values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.inspect.places import LogFile
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.spark.jobs.frame.lazy import arrow, compute
from kerolox.spark.jobs.frame.tasks import arrow_schema, batch_of, numbers_of
from kerolox.spark.store.columns import CRC_OK, RowBatches, store_schema, tags_codes
from kerolox.spark.store.files.disk import disk_of
from kerolox.spark.store.files.queues import QueueRange, StoreQueue, queue_path
from kerolox.spark.store.scan import Damage, LogScan, Split, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow

LOG_SCHEMA = (
    "reason string, topic string, queueId int, queueOffset long, physical long, size long, "
    "crcOk boolean, sysFlag int, code long, uniqKey string"
)
"""A row for each record, and one with a reason for bytes that hold none. ``code``: of its tags as
the queue's entry has it; null where the entry has something else."""

ENTRY_SCHEMA = "topic string, queueId int, queueOffset long, entryPhysical long, "
ENTRY_SCHEMA += "entrySize long, entryCode long"

_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "size", CRC_OK, "sysFlag")

ENTRIES_PER_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads splits by their numbers."""

    location: str
    files: tuple[LogFile, ...]
    log_end: int
    splits: tuple[Split, ...]

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: the rows of the splits whose numbers are the first column."""
        disk, _ = disk_of(self.location)
        scan = LogScan(disk, self.files, log_end=self.log_end)
        made = RowBatches(store_schema((*_COLUMNS, "tags", "uniqKey")), None)
        wanted = Wanted(columns=made.wanted, checks_crc=False)
        for number in numbers_of(batches):
            for part in scan.scan(self.splits[number], wanted):
                if isinstance(part, Damage):
                    if not part.is_tail:
                        yield _damaged(part)
                elif part.count:
                    yield _log_batch(made.batch(part))


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reads groups of ranges of queues by their numbers."""

    location: str
    queue_folder: str
    groups: tuple[tuple[QueueRange, ...], ...]

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: the entries of the groups whose numbers are the first column."""
        disk, _ = disk_of(self.location)
        for number in numbers_of(batches):
            for each in self.groups[number]:
                queue = StoreQueue(disk, queue_path(self.queue_folder, each.topic, each.queue_id))
                for start in range(each.start, each.end, ENTRIES_PER_BATCH):
                    end = min(each.end, start + ENTRIES_PER_BATCH)
                    yield _entry_batch(each, list(queue.entries(start, end)))


def _log_batch(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    count = rows.num_rows
    code = tags_codes(rows.column("tags"))
    is_scheduled = compute.equal(rows.column("topic"), SCHEDULE_TOPIC)
    code = compute.if_else(is_scheduled, arrow.scalar(None, arrow.int64()), code)
    columns = {
        "reason": arrow.nulls(count, arrow.string()),
        "topic": rows.column("topic"),
        "queueId": rows.column("queueId"),
        "queueOffset": rows.column("queueOffset"),
        "physical": rows.column("physicalOffset"),
        "size": rows.column("size").cast(arrow.int64()),
        "crcOk": rows.column(CRC_OK),
        "sysFlag": rows.column("sysFlag"),
        "code": code,
        "uniqKey": rows.column("uniqKey"),
    }
    return arrow.RecordBatch.from_pydict(columns)


def _damaged(damage: Damage) -> pyarrow.RecordBatch:
    row = {"reason": damage.reason, "physical": damage.offset, "size": damage.length}
    return batch_of([row], LOG_SCHEMA)


def _entry_batch(
    queue: QueueRange, entries: list[tuple[int, tuple[int, int, int]]]
) -> pyarrow.RecordBatch:
    columns = {
        "topic": [queue.topic] * len(entries),
        "queueId": [queue.queue_id] * len(entries),
        "queueOffset": [offset for offset, _ in entries],
        "entryPhysical": [entry[0] for _, entry in entries],
        "entrySize": [entry[1] for _, entry in entries],
        "entryCode": [entry[2] for _, entry in entries],
    }
    return arrow.RecordBatch.from_pydict(columns, schema=arrow_schema(ENTRY_SCHEMA))
