"""Planning a batch: offsets checked against what the queues hold, and cut into partitions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kerolox.errors import ConfigError
from kerolox.spark.bounds import Bound
from kerolox.spark.network.cluster import ClusterView
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.starts import resolved
from kerolox.spark.option_values import WHOLE_MAX
from kerolox.spark.options import ExpressionType, SourceOptions
from kerolox.spark.positions.offsets import (
    Bounds,
    Known,
    Mark,
    Offsets,
    QueueRange,
    plan_partitions,
    queue_names,
    report_loss,
)
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.positions.pushed import Pushed, pushed_of
from kerolox.spark.rows.schema import check_schema
from kerolox.spark.worker import packed, short_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from kerolox.message import MessageQueue


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the topics hold between two offsets, fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._pushed: Pushed | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return packed(self._options, self._schema)

    @short_errors
    def partitions(self) -> list[InputPartition]:
        """Ask for routes and bounds, cut them into partitions."""
        options = self._options
        wait_seconds = options.poll_timeout_ms / 1000
        connector = Connector(options.credentials, options.tls)
        with ClusterView(
            options.name_servers,
            wait_seconds=wait_seconds,
            connector=connector,
            selection=options.selection,
        ) as cluster:
            topics = cluster.topics.fresh()
            if not topics:
                raise ConfigError(
                    f"option subscribePattern={options.selection.pattern!r} matches no topic; the "
                    "whole name must match"
                )
            bounds = checked_queues(options, cluster.complete(topics))
            check_filter(options, cluster, bounds)
            addresses = {queue.broker_name: cluster.address(queue) for queue in bounds}
            starting = options.starting_offsets or Bound.EARLIEST
            ending = options.ending_offsets or Bound.LATEST
            start = resolved(starting, bounds, cluster, options, option="startingOffsets")
            end = resolved(ending, bounds, cluster, options, option="endingOffsets")
            loss_is_error = options.fail_on_data_loss
            start = check_start(start, bounds, fail_on_data_loss=loss_is_error)
            for queue, offset in end.items():
                end[queue] = _checked_end(
                    queue, offset, bounds[queue], fail_on_data_loss=loss_is_error
                )
            if self._pushed is not None:
                start, end = self._cut(self._pushed, start, end, bounds, cluster)
        known = {
            queue: Known(Mark(held.maximum, held.last_time) if held.last_time else None)
            for queue, held in bounds.items()
        }
        return plan(start, end, addresses, options, known)

    def _cut(
        self,
        pushed: Pushed,
        start: Offsets,
        end: Offsets,
        bounds: Mapping[MessageQueue, Bounds],
        cluster: ClusterView,
    ) -> tuple[Offsets, Offsets]:
        """Start and end without what the query's filters leave out in any case."""
        options = self._options
        end = {q: at for q, at in end.items() if pushed.allows(q, options.selection.namespace)}
        start, end = pushed.cut({queue: start[queue] for queue in end}, end)
        group = options.consumer_group
        if pushed.since_ms > 0:
            found = cluster.first_since(dict.fromkeys(end, pushed.since_ms), bounds, group)
            start = {queue: max(at, min(found[queue], end[queue])) for queue, at in start.items()}
        if pushed.until_ms < WHOLE_MAX:
            found = cluster.first_since(dict.fromkeys(end, pushed.until_ms + 1), bounds, group)
            end = {queue: max(min(at, found[queue]), start[queue]) for queue, at in end.items()}
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read one partition, in a worker."""
        from kerolox.spark.partition import read_partition

        return read_partition(partition, self._options, self._schema)


class PushingReader(BatchReader):
    """A batch reader that reads less where the query's filters tell what is not needed.

    Spark refuses a reader with this method unless ``spark.sql.python.filterPushdown.enabled`` is
    set, so it is one of its own, by option ``pushFilters``.
    """

    @short_errors
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of the filters. All are left to Spark too: what is read is only narrower."""
        options, pushed = self._options, pushed_of(filters)
        if options.expression_type is ExpressionType.TAG:
            expression = pushed.tag_expression(options.tags)
            if expression:
                # Spark pickles the reader for its tasks before it asks for the partitions.
                self._options = dataclasses.replace(options, sub_expression=expression)
            elif expression is not None:
                pushed = dataclasses.replace(pushed, last_offset=-1)
        self._pushed = pushed
        return filters


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
        for group in plan_partitions(
            ranges,
            min_partitions=options.min_partitions,
            rows_max=options.max_records_per_partition,
        )
    ]


def check_filter(
    options: SourceOptions, cluster: ClusterView, held: Mapping[MessageQueue, Bounds]
) -> None:
    """Refuse a condition (SQL92) that a broker would not take, before anything is read."""
    if options.expression_type is ExpressionType.SQL92:
        kind = options.expression_type.value
        cluster.check_filter(held, options.consumer_group, options.sub_expression, kind)


def checked_queues(
    options: SourceOptions, held: Mapping[MessageQueue, Bounds]
) -> dict[MessageQueue, Bounds]:
    """What is held of the queues that are read; ConfigError: option ``assign`` names queues that do
    not exist.
    """
    missing = sorted(options.selection.queues - held.keys())
    if missing:
        raise ConfigError(
            f"option assign names queues that do not exist: {queue_names(missing)}; "
            f"there are {queue_names(sorted(held))}"
        )
    return options.selection.only(held)


def check_start(
    start: Offsets, bounds: Mapping[MessageQueue, Bounds], *, fail_on_data_loss: bool
) -> Offsets:
    """Start offsets that the queues still hold; those outside are moved to the nearest bound.
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
        going_on = f" from {checked[queue]}"
        report_loss(what, fail_on_data_loss=fail_on_data_loss, going_on=going_on)
    return checked


def _checked_end(queue: MessageQueue, offset: int, held: Bounds, *, fail_on_data_loss: bool) -> int:
    if held.minimum <= offset <= held.maximum:
        return offset
    what = (
        f"{queue.topic} queue {queue.queue_id} on {queue.broker_name} holds offsets "
        f"{held.minimum} to before {held.maximum}, not those to before endingOffsets {offset}"
    )
    moved = min(max(offset, held.minimum), held.maximum)
    report_loss(what, fail_on_data_loss=fail_on_data_loss, going_on=f" to before {moved}")
    return moved
