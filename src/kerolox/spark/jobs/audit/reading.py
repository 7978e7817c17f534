"""What tasks of ``audit`` read: records of splits of the log, entries of ranges of queues.

The classes here travel to the workers; they hold plain values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.inspect.places import LogFile
from kerolox.protocol.names import SCHEDULE_TOPIC
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
        for batch in batches:
            for number in batch.column(0).to_pylist():
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
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for each in self.groups[number]:
                    queue = StoreQueue(
                        disk, queue_path(self.queue_folder, each.topic, each.queue_id)
                    )
                    for start in range(each.start, each.end, ENTRIES_PER_BATCH):
                        end = min(each.end, start + ENTRIES_PER_BATCH)
                        yield _entry_batch(each, list(queue.entries(start, end)))


def _log_batch(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute

    count = rows.num_rows
    code = tags_codes(rows.column("tags"))
    is_scheduled = pyarrow.compute.equal(rows.column("topic"), SCHEDULE_TOPIC)
    code = pyarrow.compute.if_else(is_scheduled, pyarrow.scalar(None, pyarrow.int64()), code)
    columns = {
        "reason": pyarrow.nulls(count, pyarrow.string()),
        "topic": rows.column("topic"),
        "queueId": rows.column("queueId"),
        "queueOffset": rows.column("queueOffset"),
        "physical": rows.column("physicalOffset"),
        "size": rows.column("size").cast(pyarrow.int64()),
        "crcOk": rows.column(CRC_OK),
        "sysFlag": rows.column("sysFlag"),
        "code": code,
        "uniqKey": rows.column("uniqKey"),
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def _damaged(damage: Damage) -> pyarrow.RecordBatch:
    import pyarrow

    text, number, small = pyarrow.string(), pyarrow.int64(), pyarrow.int32()
    columns = {
        "reason": pyarrow.array([damage.reason], text),
        "topic": pyarrow.nulls(1, text),
        "queueId": pyarrow.nulls(1, small),
        "queueOffset": pyarrow.nulls(1, number),
        "physical": pyarrow.array([damage.offset], number),
        "size": pyarrow.array([damage.length], number),
        "crcOk": pyarrow.nulls(1, pyarrow.bool_()),
        "sysFlag": pyarrow.nulls(1, small),
        "code": pyarrow.nulls(1, number),
        "uniqKey": pyarrow.nulls(1, text),
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def _entry_batch(
    queue: QueueRange, entries: list[tuple[int, tuple[int, int, int]]]
) -> pyarrow.RecordBatch:
    import pyarrow

    count, number = len(entries), pyarrow.int64()
    columns = {
        "topic": pyarrow.array([queue.topic] * count, pyarrow.string()),
        "queueId": pyarrow.array([queue.queue_id] * count, pyarrow.int32()),
        "queueOffset": pyarrow.array([offset for offset, _ in entries], number),
        "entryPhysical": pyarrow.array([entry[0] for _, entry in entries], number),
        "entrySize": pyarrow.array([entry[1] for _, entry in entries], number),
        "entryCode": pyarrow.array([entry[2] for _, entry in entries], number),
    }
    return pyarrow.RecordBatch.from_pydict(columns)
