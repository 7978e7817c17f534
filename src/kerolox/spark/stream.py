"""The stream side: offsets of micro-batches, replayed exactly from what the checkpoint says.

A batch is the ranges between two offset documents, and reading a range gives the same records
whenever it is done, so a batch that is done again after a crash has the same rows.

A queue that appears while the query lives (more queues, another broker, a topic added to
``subscribe``) starts at its minimum. The first batch that sees it only writes that minimum down and
reads nothing of it; so its start, too, is in the checkpoint before any row is. Queues that
disappear (their broker is down) keep their offsets until they come back.

PySpark 4.1 does not tell ``latestOffset`` where the last batch ended. There a new queue is read at
once, from the minimum that it has at that moment, and ``maxOffsetsPerTrigger`` is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kerolox.errors import ConfigError, ConnectError, TopicRouteNotFoundError
from kerolox.spark.cluster import RETRY_PAUSE_SECONDS, Cluster, Routes
from kerolox.spark.limits import limit_offsets
from kerolox.spark.offsets import (
    Bounds,
    DataLossError,
    Offsets,
    OffsetsJson,
    from_json,
    resolve,
    to_json,
)
from kerolox.spark.options import Bound, SourceOptions
from kerolox.spark.reader import check_start, plan, read_partition
from kerolox.spark.schema import check_schema

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kerolox.message import MessageQueue

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # PySpark 4.1
    HAS_READ_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where PySpark has none; Spark then reads everything in one batch."""


__all__ = ["HAS_READ_LIMITS", "StreamReader"]

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads topics as an unbounded table, in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_stream()
        check_schema(schema, options)
        if options.max_offsets_per_trigger and not HAS_READ_LIMITS:
            raise ConfigError(
                "option maxOffsetsPerTrigger needs PySpark 4.2 or newer; leave it out or upgrade"
            )
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None
        self._newest: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The reader travels to the workers; connections stay here.
        return self.__dict__ | {"_cluster": None}

    # -- called by Spark in the planning process ---------------------------------------------
    def initialOffset(self) -> OffsetsJson:
        """Where a query without a checkpoint starts: ``startingOffsets``, default latest."""
        bounds = self._bounds(self._routes())
        starting = self._options.starting_offsets or Bound.LATEST
        start = resolve(starting, bounds, option="startingOffsets")
        loss_is_error = self._options.fail_on_data_loss
        return to_json(check_start(start, bounds, fail_on_data_loss=loss_is_error))

    def getDefaultReadLimit(self) -> Any:  # noqa: ANN401
        """``maxOffsetsPerTrigger``, else everything."""
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the queues end now; this run reads no further."""
        bounds = self._bounds(self._routes())
        self._target = {queue: held.maximum for queue, held in bounds.items()}

    def latestOffset(
        self,
        start: OffsetsJson | None = None,
        limit: Any = None,  # noqa: ANN401
    ) -> OffsetsJson:
        """Where the next batch ends. PySpark 4.1 calls it without arguments."""
        bounds = self._bounds(self._routes())
        self._newest = {queue: held.maximum for queue, held in bounds.items()}
        if start is None:
            return to_json(self._newest)
        begin = from_json(start)
        end = self._end_of_batch(begin, bounds)
        if HAS_READ_LIMITS and isinstance(limit, ReadMaxRows):
            end = limit_offsets(begin, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The newest bounds seen, for the query's progress report."""
        return None if self._newest is None else to_json(self._newest)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """The partitions of a batch."""
        begin, stop = from_json(start), from_json(end)
        for queue, offset in stop.items():
            # PySpark 4.1 gives latestOffset no start, so this is the first place to see it.
            if begin.get(queue, offset) > offset:
                self._report_shrunk(queue, begin[queue], offset)
        wanted = [queue for queue, offset in stop.items() if begin.get(queue, offset - 1) < offset]
        if not wanted:
            return []
        routes = self._routes_of(wanted)
        bounds = self._bounds(routes)
        begin = {queue: begin.get(queue, bounds[queue].minimum) for queue in wanted}
        begin = check_start(begin, bounds, fail_on_data_loss=self._options.fail_on_data_loss)
        return plan(
            begin, {queue: stop[queue] for queue in wanted}, routes.addresses, self._options
        )

    def commit(self, end: OffsetsJson) -> None:
        """Nothing to do: the checkpoint is the only place where progress is kept.

        Offsets of the consumer group are left alone, since real consumers may use that group.
        """

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # -- called by Spark in a worker ---------------------------------------------------------
    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read one partition."""
        return read_partition(partition, self._options, self._schema)

    # -- parts -------------------------------------------------------------------------------
    def _end_of_batch(self, begin: Offsets, bounds: dict[MessageQueue, Bounds]) -> Offsets:
        topics = set(self._options.topics)
        # Queues whose broker is away keep their place; topics that were unsubscribed go.
        end = {queue: offset for queue, offset in begin.items() if queue.topic in topics}
        for queue, held in bounds.items():
            if queue not in begin:
                end[queue] = held.minimum
                continue
            newest = held.maximum
            if newest < begin[queue]:
                self._report_shrunk(queue, begin[queue], newest)
            elif self._target is not None:
                # A queue that came after the start of an AvailableNow run is for the next run.
                newest = max(self._target.get(queue, begin[queue]), begin[queue])
            end[queue] = newest
        return end

    def _report_shrunk(self, queue: MessageQueue, offset: int, newest: int) -> None:
        what = (
            f"{queue.topic} queue {queue.queue_id} on {queue.broker_name} ends before {newest}, "
            f"but the query was at {offset}; was the topic deleted or the store restored?"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        _log.warning("data lost, going on from %d: %s", newest, what)

    def _routes(self) -> Routes:
        return self._connected().routes(self._options.topics)

    def _routes_of(self, queues: list[MessageQueue]) -> Routes:
        """Routes that have a master for each of ``queues``; waits for those that are away."""
        topics = sorted({queue.topic for queue in queues})
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        while True:
            missing = set(queues)
            reason = ""
            try:
                routes = self._connected().routes(topics)
                missing -= set(routes.queues)
            except TopicRouteNotFoundError as error:
                reason = f" ({error})"
            if not missing:
                return Routes(queues, routes.addresses)
            if time.monotonic() >= deadline:
                first = min(missing)
                raise ConnectError(
                    f"no master has queue {first.queue_id} of {first.topic} on "
                    f"{first.broker_name} and {len(missing) - 1} more that the batch needs"
                    f"{reason}; start the broker, the query goes on from its checkpoint"
                )
            time.sleep(RETRY_PAUSE_SECONDS)

    def _bounds(self, routes: Routes) -> dict[MessageQueue, Bounds]:
        bounds = self._connected().bounds(routes)
        # It has worked once: from now on a server that is away is waited for.
        self._connected().retry_seconds = self._options.poll_timeout_ms / 1000
        return bounds

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.name_servers)
        return self._cluster
