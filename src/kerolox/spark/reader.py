"""What batch and stream share: planned partitions, and reading one in a Spark worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kerolox.kernel import kernel_name
from kerolox.message import MessageQueue
from kerolox.spark.network.cluster import Cluster
from kerolox.spark.network.pull import RangePuller
from kerolox.spark.options import Bound, SourceOptions
from kerolox.spark.positions.offsets import (
    Bounds,
    DataLossError,
    Known,
    Mark,
    Offsets,
    QueueRange,
    plan_partitions,
    resolve,
)
from kerolox.spark.rows.schema import ColumnDecoder, check_schema
from kerolox.spark.worker import packed, plain_errors

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "QueuePartition", "check_start", "plan", "read_partition"]

BATCH_ROWS = 16_384
"""Rows of a record batch, about: the JVM turns 8k to 32k rows into its own form fastest."""

BATCH_BYTES = 8 * 1024 * 1024
"""Raw records of a batch at most, so that large messages make small batches."""

_log = logging.getLogger(__name__)


class QueuePartition(InputPartition):  # type: ignore[misc]
    """Ranges that one Spark task reads, each with the address of its broker."""

    def __init__(
        self,
        ranges: Sequence[tuple[str, QueueRange]],
        known: Mapping[MessageQueue, Known] | None = None,
    ) -> None:
        super().__init__(tuple(ranges))
        self.known = {
            each.queue: known[each.queue] for _, each in ranges if known and each.queue in known
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker without Kerolox must be able to unpickle it, so that it can say what it lacks.
        return InputPartition, (self.plain(),)

    def plain(self) -> list[tuple[Any, ...]]:
        """All of it without a class of ours."""
        plain: list[tuple[Any, ...]] = []
        for address, each in self.value:
            mark, from_minimum = self.known.get(each.queue, Known())
            plain_known = (tuple(mark) if mark else None, from_minimum)
            plain.append((address, (tuple(each.queue), each.start, each.end), plain_known))
        return plain


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the topics hold between two offsets, fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._options, self._schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Ask for routes and bounds, cut them into partitions."""
        options = self._options
        wait_seconds = options.poll_timeout_ms / 1000
        with Cluster(options.name_servers, wait_seconds=wait_seconds) as cluster:
            bounds = cluster.complete(options.topics)
            addresses = {queue.broker_name: cluster.address(queue) for queue in bounds}
        starting = options.starting_offsets or Bound.EARLIEST
        ending = options.ending_offsets or Bound.LATEST
        start = resolve(starting, bounds, option="startingOffsets")
        end = resolve(ending, bounds, option="endingOffsets")
        loss_is_error = options.fail_on_data_loss
        start = check_start(start, bounds, fail_on_data_loss=loss_is_error)
        for queue, offset in end.items():
            end[queue] = _checked_end(queue, offset, bounds[queue], fail_on_data_loss=loss_is_error)
        known = {
            queue: Known(Mark(held.maximum, held.last_time) if held.last_time else None)
            for queue, held in bounds.items()
        }
        return plan(start, end, addresses, options, known)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read one partition, in a worker."""
        return read_partition(partition, self._options, self._schema)


def plan(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    addresses: Mapping[str, str],
    options: SourceOptions,
    known: Mapping[MessageQueue, Known] | None = None,
) -> list[InputPartition]:
    """Partitions for ``[start, end)`` of every queue of ``end``."""
    ranges = [QueueRange(queue, start[queue], stop) for queue, stop in end.items()]
    return [
        QueuePartition([(addresses[each.queue.broker_name], each) for each in group], known)
        for group in plan_partitions(ranges, min_partitions=options.min_partitions)
    ]


def check_start(
    start: Offsets, bounds: Mapping[MessageQueue, Bounds], *, fail_on_data_loss: bool
) -> Offsets:
    """Start offsets that the queues still hold; those outside are moved to the nearest bound.

    Raises:
        DataLossError: one is outside, and ``fail_on_data_loss`` is set.
    """
    checked: Offsets = {}
    for queue, offset in start.items():
        minimum, maximum, _ = bounds.get(queue, Bounds(offset, offset))
        checked[queue] = min(max(offset, minimum), maximum)
        if checked[queue] == offset:
            continue
        what = (
            f"{queue.topic} queue {queue.queue_id} on {queue.broker_name} holds offsets "
            f"{minimum} to before {maximum}, not the {offset} to start from"
        )
        if fail_on_data_loss:
            raise DataLossError(what)
        _log.warning("data lost, starting from %d: %s", checked[queue], what)
    return checked


def _checked_end(queue: MessageQueue, offset: int, held: Bounds, *, fail_on_data_loss: bool) -> int:
    if held.minimum <= offset <= held.maximum:
        return offset
    what = (
        f"{queue.topic} queue {queue.queue_id} on {queue.broker_name} holds offsets "
        f"{held.minimum} to before {held.maximum}, not those to before endingOffsets {offset}"
    )
    if fail_on_data_loss:
        raise DataLossError(what)
    moved = min(max(offset, held.minimum), held.maximum)
    _log.warning("data lost, reading to before %d: %s", moved, what)
    return moved


def read_partition(
    partition: InputPartition | None, options: SourceOptions, schema: StructType
) -> Iterator[pyarrow.RecordBatch]:
    """The record batches of one partition; runs in a Spark worker."""
    # Spark asks for one partition of nothing when there is nothing to read; 4.1 for None.
    if not partition or not partition.value:
        return
    ranges: list[tuple[str, QueueRange]] = []
    known: dict[MessageQueue, Known] = {}
    given = partition.plain() if isinstance(partition, QueuePartition) else partition.value
    for address, (queue, start, end), (mark, from_minimum) in given:
        ranges.append((address, QueueRange(MessageQueue(*queue), start, end)))
        known[ranges[-1][1].queue] = Known(Mark(*mark) if mark else None, from_minimum)
    _warn_of_python_kernel()
    decoder = ColumnDecoder(schema, tags=options.tags, body_errors=options.body_errors)
    pullers: dict[str, RangePuller] = {}
    try:
        for address, queue_range in ranges:
            puller = pullers.setdefault(address, RangePuller(address, options, known))
            yield from _read_range(puller, decoder, queue_range, options)
    finally:
        for puller in pullers.values():
            puller.close()


@cache
def _warn_of_python_kernel() -> None:
    """Once in each worker process."""
    if kernel_name() == "python":
        _log.warning(
            "Kerolox decodes with its Python kernel here (%s), several times slower than with the "
            "native one; install kerolox-kernel where the Spark workers run, "
            "and leave KEROLOX_KERNEL unset",
            sys.executable,
        )


def _read_range(
    puller: RangePuller, decoder: ColumnDecoder, queue_range: QueueRange, options: SourceOptions
) -> Iterator[pyarrow.RecordBatch]:
    chunks: list[bytes] = []
    held_bytes = held_rows = offsets = 0
    for pulled in puller.pull(queue_range):
        offsets += pulled.offsets
        if pulled.records:
            chunks.append(pulled.records)
            held_bytes += len(pulled.records)
            # Records of a topic are of like size: the first one tells how many there are.
            held_rows += len(pulled.records) // max(int.from_bytes(pulled.records[:4], "big"), 1)
        if held_rows >= BATCH_ROWS or held_bytes >= BATCH_BYTES:
            yield from _decode(decoder, chunks, offsets, queue_range, options)
            held_bytes = held_rows = offsets = 0
    yield from _decode(decoder, chunks, offsets, queue_range, options)


def _decode(
    decoder: ColumnDecoder,
    chunks: list[bytes],
    offsets: int,
    queue_range: QueueRange,
    options: SourceOptions,
) -> Iterator[pyarrow.RecordBatch]:
    """The batches of some answers; ``chunks`` is empty afterwards."""
    records = b"".join(chunks)
    chunks.clear()
    rows = 0
    for batch, count in decoder.decode(records, queue_range.queue):
        rows += count
        if batch.num_rows:
            yield batch
        del batch
    if rows == offsets or options.tags:
        return
    topic, broker_name, queue_id = queue_range.queue
    where = f"{topic} queue {queue_id} on {broker_name}"
    what = f"{where}: {offsets} offsets of {queue_range[1:]} had {rows} messages"
    if options.fail_on_data_loss:
        raise DataLossError(what)
    _log.warning("data lost, going on: %s", what)
