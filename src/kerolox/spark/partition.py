"""Reading a planned partition in a Spark worker."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import TYPE_CHECKING

from kerolox.kernel.choice import kernel_name
from kerolox.message import MessageQueue
from kerolox.protocol.records import record_size
from kerolox.spark.network.pull import RangePuller
from kerolox.spark.positions.offsets import Known, Mark, QueueRange, report_loss
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.rows.decoding import ColumnDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from kerolox.spark.options import SourceOptions

BATCH_ROWS = 16_384
"""Rows of a record batch, about: the JVM turns 8k to 32k rows into its own form fastest."""

BATCH_BYTES = 2 * 1024 * 1024
"""Raw records of a batch, about: they stay in a processor's cache until Spark has their rows."""

_log = logging.getLogger(__name__)


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
    decoder = ColumnDecoder(
        schema,
        tags=options.tags,
        body_errors=options.body_errors,
        namespace=options.selection.namespace,
    )
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
    chunks: list[memoryview] = []
    held_bytes = held_rows = offsets = 0
    for pulled in puller.pull(queue_range):
        offsets += pulled.offsets
        if pulled.records:
            chunks.append(pulled.records)
            held_bytes += len(pulled.records)
            # Records of a topic are of like size: the first one tells how many there are.
            held_rows += len(pulled.records) // max(record_size(pulled.records), 1)
        if held_rows >= BATCH_ROWS or held_bytes >= BATCH_BYTES:
            yield from _decode(decoder, chunks, offsets, queue_range, options)
            held_bytes = held_rows = offsets = 0
    yield from _decode(decoder, chunks, offsets, queue_range, options)


def _decode(
    decoder: ColumnDecoder,
    chunks: list[memoryview],
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
    if rows == offsets or options.is_filtered:
        return
    topic, broker_name, queue_id = queue_range.queue
    where = f"{topic} queue {queue_id} on {broker_name}"
    what = f"{where}: {offsets} offsets of {queue_range[1:]} had {rows} messages"
    report_loss(what, fail_on_data_loss=options.fail_on_data_loss)
