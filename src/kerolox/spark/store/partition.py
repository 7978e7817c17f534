"""A planned partition of stores, and reading it in a Spark worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

from kerolox.inspect.places import LogFile
from kerolox.spark.positions.offsets import report_loss
from kerolox.spark.rows.bodies import odd_body_at
from kerolox.spark.store.columns import CRC_OK, RowBatches
from kerolox.spark.store.entries import scan_entries
from kerolox.spark.store.files.disk import disk_of
from kerolox.spark.store.files.queues import QueueRange
from kerolox.spark.store.scan import LOOKBACK_BYTES, Damage, LogScan, Split, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow
    from pyspark.sql.types import StructType

    from kerolox.spark.store.files.listing import StoreListing
    from kerolox.spark.store.options import QueueOffsets, StoreOptions
    from kerolox.spark.store.scan import Rows

SMALL_BATCH_ROWS = 4_096
"""Smaller batches are put together: each costs the JVM as much as hundreds of rows."""

SMALL_BATCH_BYTES = 1024 * 1024
"""Unless they have so many bytes: then a copy costs more."""

_PLACE_COLUMNS = ("topic", "queueId", "queueOffset")


class _Part(NamedTuple):
    """What one task reads, in plain values: a worker without Kerolox must unpickle them."""

    location: str
    broker_name: str | None
    files: list[tuple[int, int, str]]
    log_end: int
    split: tuple[int, int, bool, bool]
    queue_folder: str | None = None
    queues: tuple[tuple[str, int, int, int], ...] = ()
    """Ranges of queues to read by their entries; empty: the log is read."""


class StorePartition(InputPartition):  # type: ignore[misc]
    """A part of a store's log that one Spark task reads."""

    def __reduce__(self) -> tuple[object, ...]:
        return InputPartition, (tuple(self.value),)


def log_partition(
    listing: StoreListing, split: Split, log_end: int, broker_name: str | None
) -> StorePartition:
    """A split of the log."""
    files = [
        (file.start, file.size, file.path)
        for file in listing.files
        if file.end > split.start - LOOKBACK_BYTES and file.start < split.end
    ]
    plain = (split.start, split.end, split.at_border, split.sees_end)
    return StorePartition(_Part(listing.location, broker_name, files, log_end, plain))


def queue_partition(
    listing: StoreListing,
    queues: Sequence[QueueRange],
    bounds: tuple[int, int],
    broker_name: str | None,
) -> StorePartition:
    """Ranges of queues, read by their entries, as far as those point into physical bounds."""
    files = [(file.start, file.size, file.path) for file in listing.files]
    ranges = tuple((each.topic, each.queue_id, each.start, each.end) for each in queues)
    plain = (*bounds, True, False)
    return StorePartition(
        _Part(listing.location, broker_name, files, bounds[1], plain, listing.queue_folder, ranges)
    )


def read_partition(
    partition: InputPartition | None, options: StoreOptions, schema: StructType
) -> Iterator[pyarrow.RecordBatch]:
    """The record batches of one partition; runs in a Spark worker. DataLossError: records are
    damaged or gone, and ``failOnDataLoss`` is set. BodyError: a body can't be inflated, and
    ``bodyErrors`` is fail.
    """
    # Spark asks for one partition of nothing when there is nothing to read; 4.1 for None.
    if not partition or not partition.value:
        return
    part = _Part(*partition.value)
    offsets = (options.starting_offsets, options.ending_offsets)
    has_offsets = any(each is not None for each in offsets)
    batches = RowBatches(schema, part.broker_name, _PLACE_COLUMNS if has_offsets else ())
    wanted = Wanted(
        columns=batches.wanted,
        topics=options.is_wanted,
        stored_from=options.stored_from,
        stored_before=options.stored_before,
        checks_crc=CRC_OK not in schema.fieldNames(),
        odd_body=odd_body_at(f"{part.location}: physical offset", options.body_errors),
    )
    made: Iterator[pyarrow.RecordBatch] = (
        _within(batches.batch(rows), rows, *offsets) if has_offsets else batches.batch(rows)
        for rows in _rows(part, wanted, options)
        if rows.count
    )
    yield from _together(made)


def _rows(part: _Part, wanted: Wanted, options: StoreOptions) -> Iterator[Rows]:
    disk, _ = disk_of(part.location)
    files = [LogFile(*file) for file in part.files]
    split = Split(*part.split)
    parts: Iterator[Rows | Damage]
    if part.queues:
        ranges = [QueueRange(*each) for each in part.queues]
        bounds = (split.start, split.end)
        parts = scan_entries(disk, files, part.queue_folder or "", ranges, bounds, wanted)
    else:
        parts = LogScan(disk, files, log_end=part.log_end).scan(split, wanted)
    for found in parts:
        if isinstance(found, Damage):
            report_damage(part.location, found, fail_on_data_loss=options.fail_on_data_loss)
        else:
            yield found


def report_damage(location: str, damage: Damage, *, fail_on_data_loss: bool) -> None:
    """Say that bytes of a log hold no record."""
    what = (
        f"{location}: {damage.length} bytes of the commit log from physical offset "
        f"{damage.offset} on hold no whole record: {damage.reason}"
    )
    if fail_on_data_loss and "CRC" in damage.reason:
        what += f"; ask for column {CRC_OK} to read such records"
    report_loss(what, fail_on_data_loss=fail_on_data_loss)


def _within(
    batch: pyarrow.RecordBatch,
    rows: Rows,
    starting: QueueOffsets | None,
    ending: QueueOffsets | None,
) -> pyarrow.RecordBatch:
    """The rows whose queue offset is within the bounds of their queue."""
    import pyarrow
    import pyarrow.compute

    from kerolox.spark.rows.decoding import column_array

    topics = column_array(pyarrow.string(), rows.count, rows.buffers["topic"])
    ids = column_array(pyarrow.int32(), rows.count, rows.buffers["queueId"])
    places = column_array(pyarrow.int64(), rows.count, rows.buffers["queueOffset"])
    compute = pyarrow.compute
    keep = pyarrow.repeat(pyarrow.scalar(True), rows.count)
    for bounds, fits in ((starting, compute.greater_equal), (ending, compute.less)):
        for (topic, queue_id), offset in (bounds or {}).items():
            is_queue = compute.and_(compute.equal(topics, topic), compute.equal(ids, queue_id))
            is_inside = compute.or_(compute.invert(is_queue), fits(places, offset))
            keep = compute.and_(keep, is_inside)
    return batch.filter(keep)


def _together(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The same rows in batches that are not small."""
    import pyarrow

    held: list[pyarrow.RecordBatch] = []
    rows = size = 0

    def joined() -> Iterator[pyarrow.RecordBatch]:
        if len(held) == 1:
            yield held[0]
        elif held:
            yield from pyarrow.Table.from_batches(held).combine_chunks().to_batches()
        held.clear()

    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        del batch
        if rows >= SMALL_BATCH_ROWS or size >= SMALL_BATCH_BYTES:
            yield from joined()
            rows = size = 0
    yield from joined()
