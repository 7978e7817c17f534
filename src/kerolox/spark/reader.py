"""Planning a batch: offsets checked against what the queues hold, and cut into partitions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kerolox.spark.network.cluster import Cluster
from kerolox.spark.network.connecting import Connector
from kerolox.spark.options import Bound, SourceOptions
from kerolox.spark.partition import QueuePartition, read_partition
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
from kerolox.spark.rows.schema import check_schema
from kerolox.spark.worker import packed, plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow
    from pyspark.sql.types import StructType

    from kerolox.message import MessageQueue

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the topics hold between two offsets, fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        return packed(self._options, self._schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Ask for routes and bounds, cut them into partitions."""
        options = self._options
        wait_seconds = options.poll_timeout_ms / 1000
        connector = Connector(options.credentials, options.tls)
        names = options.name_servers
        with Cluster(names, wait_seconds=wait_seconds, connector=connector) as cluster:
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
