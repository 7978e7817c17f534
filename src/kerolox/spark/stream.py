"""The stream side: micro-batches that are the same whenever they are done.

Spark asks for the end of the next batch, ``latestOffset(start)``, only when the batch that ends at
``start`` is done and in its commit log, the last one of a run that ends by itself included. So that
is when ``commitGroupOffsets`` stores ``start``, and it is never ahead of the checkpoint.

A batch is what lies between two documents of the checkpoint
(:mod:`kerolox.spark.positions.position`). Spark asks for the initial offsets more than
once, and again when the first batch is done again after a crash; so the first answer stands in the
document of the first batch, and that counts.

A queue that appears while the query lives (more queues, another broker, a topic added to
``subscribe``) starts at its minimum. Queues that disappear (their broker is down) keep their
offsets until they come back; those that a topic loses with messages that were not read are a loss.
A topic that was deleted and created again is noticed by the store
time of the last message that the checkpoint knows of: an error, or with ``failOnDataLoss=false``
the query goes on with the first message of the new life.

Spark asks for the latest offset every 10 ms while nothing comes. The brokers are asked every
``pollIntervalMs`` then, half as often after ``IDLE_POLLS_MAX`` times; the call waits for that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kerolox.errors import ConnectError
from kerolox.spark.bounds import EARLIEST, Bound
from kerolox.spark.network.cluster import AwayError, ClusterView
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.starts import resolved
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.limits import Threshold, limit_offsets
from kerolox.spark.positions.lives import Replaced, replaced_queues
from kerolox.spark.positions.offsets import (
    Bounds,
    Known,
    Offsets,
    OffsetsJson,
    report_loss,
    to_json,
)
from kerolox.spark.positions.position import Document, SourcePosition, marked
from kerolox.spark.positions.read_limits import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadMaxRows,
    check_limit,
)
from kerolox.spark.reader import check_filter, check_start, checked_queues, plan
from kerolox.spark.rows.schema import check_schema
from kerolox.spark.worker import short_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from kerolox.message import MessageQueue

LOST_SECONDS = 30.0
"""How often is looked for new messages in queues that their topics have lost."""

IDLE_POLLS_MAX = 40
"""After so many checks that found nothing the next ones are half as frequent."""


class StreamPlanner:
    """Plans micro-batches of topics, which are an unbounded table."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_stream()
        check_schema(schema, options.columns)
        limit = options.max_offsets_per_trigger
        check_limit("maxOffsetsPerTrigger", limit, has_limits=HAS_READ_LIMITS)
        self._options = options
        self._cluster: ClusterView | None = None
        self._target: SourcePosition | None = None
        """Where a run with an end ends."""
        self._newest: Offsets | None = None
        self._initial: Document | None = None
        self._last: Document | None = None
        """Where the newest batch ends; PySpark 4.1 does not report."""
        self._made: Document | None = None
        """The newest document of this process."""
        self._committed: Offsets = {}
        """Of the group, by this process."""
        self._threshold = Threshold(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._asked_at = 0.0
        self._idle_polls = 0
        self._parsed: tuple[Document, SourcePosition] | None = None
        self._lost: set[MessageQueue] = set()
        """Queues that their topics had no more when that was examined last."""
        self._lost_at = 0.0
        self._lost_reported: set[MessageQueue] = set()

    # -- called by Spark, by way of LateStreamReader ------------------------------------------
    @short_errors
    def initialOffset(self) -> Document:
        """Where a query without a checkpoint starts: ``startingOffsets``, default latest.

        The same at each call: Spark asks again when it plans the first batch.
        """
        if self._initial is None:
            held = self._all_queues()
            starting = self._options.starting_offsets or Bound.LATEST
            cluster, options = self._connected(), self._options
            start = resolved(starting, held, cluster, options, option="startingOffsets")
            loss_is_error = self._options.fail_on_data_loss
            start = check_start(start, held, fail_on_data_loss=loss_is_error)
            self._initial = SourcePosition(start, first=True).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> object:
        """``maxOffsetsPerTrigger``, else everything."""
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the queues end now; this run reads no further."""
        held = self._all_queues()
        ends = {queue: now.maximum for queue, now in held.items()}
        self._target = SourcePosition(ends, marks=marked({}, held, ends))

    @short_errors
    def latestOffset(
        self,
        start: Document | None = None,
        limit: object = None,
    ) -> Document:
        """Where the next batch ends. PySpark 4.1 calls it without arguments."""
        if start is None:
            start = self._last if self._last is not None else self.initialOffset()
        begin = self._parse(start)
        self._pause()
        rows_max = limit.max_rows if HAS_READ_LIMITS and isinstance(limit, ReadMaxRows) else None
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        while True:
            held = self._held_now()
            self._check_lost(begin, held)
            replaced, answering = self._found_replaced(begin, held)
            if HAS_READ_LIMITS:
                self._commit_group(begin, replaced)
            self._report_loss(replaced)
            self._move_target(replaced, answering)
            end, answered = self._end_of_batch(begin, answering, replaced, rows_max)
            is_idle = not begin.first and not end.starts and end.offsets == begin.offsets
            away = self._unread(begin).difference(answered) if is_idle else None
            if not away:
                break
            self._wait_for_rest(away, deadline)
        is_idle = is_idle or self._is_held_back(begin, held)
        self._idle_polls = self._idle_polls + 1 if is_idle else 0
        if not is_idle:
            self._threshold.released(time.monotonic())
        # Spark compares the text, and an older version of it is as good.
        self._last = self._made = start if is_idle else end.to_json()
        return self._last

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The newest bounds seen, for the query's progress report."""
        return None if self._newest is None else to_json(self._newest)

    @short_errors
    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The partitions of a batch."""
        self._last = end
        if start == end:
            return []
        begin, stop = SourcePosition.parse(start), SourcePosition.parse(end)
        first = {
            queue: stop.starts.get(queue, begin.offsets.get(queue, EARLIEST))
            for queue in stop.offsets
        }
        if begin.first and stop.version == 1:
            self._check_old_first_batch(first, stop.offsets)
        wanted = {
            queue: offset for queue, offset in first.items() if max(offset, 0) < stop.offsets[queue]
        }
        if not wanted:
            return []
        held = self._wait_for(wanted)
        if end != self._made:
            held = self._without_replaced(stop, held)
            wanted = {queue: wanted[queue] for queue in held}
        known: dict[MessageQueue, Known] = {}
        for queue, offset in wanted.items():
            from_minimum = offset == EARLIEST or self._starts_at_minimum(begin, queue)
            known[queue] = Known(stop.marks.get(queue), from_minimum)
            if from_minimum:
                wanted[queue] = max(offset, held[queue].minimum)
        loss_is_error = self._options.fail_on_data_loss
        wanted = check_start(wanted, held, fail_on_data_loss=loss_is_error)
        addresses = {queue.broker_name: self._connected().address(queue) for queue in wanted}
        ends = {queue: max(stop.offsets[queue], offset) for queue, offset in wanted.items()}
        return plan(wanted, ends, addresses, self._options, known)

    @short_errors
    def commit(self, end: Document) -> None:
        """A batch is done. PySpark 4.1 says so here; later ones by asking for the next batch."""
        if not HAS_READ_LIMITS and self._options.commit_group_offsets:
            done = SourcePosition.parse(end)
            replaced, _ = self._found_replaced(done, self._held_now())
            self._commit_group(done, replaced)

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # -- parts -------------------------------------------------------------------------------
    def _check_lost(self, begin: SourcePosition, held: Mapping[MessageQueue, Bounds]) -> None:
        """Whether queues that their topic has no more hold what was not read. A run with an end
        does not wait for them.
        """
        topics = {(queue.topic, queue.broker_name) for queue in held}
        has = self._options.selection.has
        lost = {
            queue
            for queue in begin.offsets
            if queue not in held and (queue.topic, queue.broker_name) in topics and has(queue)
        }
        now = time.monotonic()
        if not lost or (lost == self._lost and now < self._lost_at + LOST_SECONDS):
            return
        ends = self._connected().lost(lost, self._options.consumer_group)
        for queue in sorted(ends):
            offset = begin.offsets[queue]
            if ends[queue] <= offset or queue in self._lost_reported:
                continue
            what = (
                f"{queue.topic} has no queue {queue.queue_id} on {queue.broker_name} any more, and "
                f"the messages in it from {offset} to {ends[queue]} were not read; give the topic "
                f"{queue.queue_id + 1} read queues again, and the query reads them from its "
                "checkpoint"
            )
            self._lose(what)
            self._lost_reported.add(queue)
        self._lost, self._lost_at = lost, now
        if self._target is not None:
            rest = {q: end for q, end in self._target.offsets.items() if q not in ends}
            self._target = SourcePosition(rest, marks=self._target.marks)

    def _held_now(self) -> dict[MessageQueue, Bounds]:
        """What the queues hold whose brokers answer."""
        cluster = self._connected()
        held = self._options.selection.only(cluster.view(cluster.topics.now()))
        self._newest = {queue: now.maximum for queue, now in held.items()}
        return held

    def _unread(self, begin: SourcePosition) -> set[MessageQueue]:
        """The queues that an AvailableNow run has not read to its end."""
        target = self._target.offsets if self._target else {}
        return {queue for queue, end in target.items() if begin.offsets.get(queue, 0) < end}

    def _wait_for_rest(self, away: Collection[MessageQueue], deadline: float) -> None:
        """Wait for brokers of queues that an AvailableNow run has still to read: without new
        offsets Spark would end it, as if it had read all.
        """
        if time.monotonic() >= deadline:
            names = ", ".join(sorted({queue.broker_name for queue in away}))
            raise ConnectError(
                f"brokers do not answer for {len(away)} queues that are to be read: {names}; start "
                "them, the query goes on from its checkpoint"
            )
        self._wait_for(away)

    def _end_of_batch(
        self,
        begin: SourcePosition,
        held: dict[MessageQueue, Bounds],
        replaced: Mapping[MessageQueue, Replaced],
        rows_max: int | None,
    ) -> tuple[SourcePosition, Collection[MessageQueue]]:
        """Where a batch ends, and which queues have answered."""
        selection = self._options.selection
        # Queues whose broker is away keep their place; those that are not read any more go.
        place = {queue: offset for queue, offset in begin.offsets.items() if selection.has(queue)}
        starts: Offsets = {}
        if begin.first:
            starts = {
                queue: EARLIEST if self._starts_at_minimum(begin, queue) else offset
                for queue, offset in place.items()
            }
        for queue, found in replaced.items():
            if queue in place and found.new_start < place[queue]:
                place[queue] = starts[queue] = found.new_start
        for queue, now in held.items():
            if queue not in place:
                place[queue], starts[queue] = now.minimum, EARLIEST
        end = {
            queue: max(held[queue].maximum, offset) if queue in held else offset
            for queue, offset in place.items()
        }
        if self._target is not None:
            # A queue that came after the start of an AvailableNow run is for the next run.
            for queue, offset in place.items():
                target = self._target.offsets.get(queue, offset)
                end[queue] = max(min(end[queue], target), offset)
        if rows_max is not None:
            end = limit_offsets(place, end, rows_max)
        return SourcePosition(end, starts, marked(begin.marks, held, end)), held.keys()

    def _is_held_back(self, begin: SourcePosition, held: dict[MessageQueue, Bounds]) -> bool:
        """Whether too little waits for a batch (``minOffsetsPerTrigger``); never with an end."""
        if begin.first or self._target is not None:
            return False
        waiting = sum(
            max(now.maximum - begin.offsets.get(queue, now.minimum), 0)
            for queue, now in held.items()
        )
        return self._threshold.holds_back(waiting, time.monotonic())

    def _commit_group(self, done: SourcePosition, replaced: Collection[MessageQueue]) -> None:
        """Store the end of the newest batch that is done as offsets of the group, but not those of
        a queue that is another one now.

        The checkpoint is where progress is kept. These offsets are for others to see, and for
        ``startingOffsets=group``: a broker that is away gets them later, and holds up nothing.
        """
        if not self._options.commit_group_offsets or done.first:
            return
        has = self._options.selection.has
        changed = {
            queue: offset
            for queue, offset in done.offsets.items()
            if self._committed.get(queue) != offset and has(queue) and queue not in replaced
        }
        if changed:
            stored = self._connected().commit(changed, self._options.consumer_group)
            self._committed.update({queue: changed[queue] for queue in stored})

    def _found_replaced(
        self, position: SourcePosition, held: dict[MessageQueue, Bounds]
    ) -> tuple[dict[MessageQueue, Replaced], dict[MessageQueue, Bounds]]:
        """Queues that are not those of ``position`` any more, nor those that a run with an end saw
        when it began; and ``held`` without the brokers that went away meanwhile.
        """
        group, cluster = self._options.consumer_group, self._connected()
        while True:
            try:
                found = replaced_queues(position, held, cluster, group)
                unseen = self._target.ahead_of(position) if self._target else SourcePosition({})
                rest = {q: now for q, now in held.items() if q in unseen.offsets and q not in found}
                return found | replaced_queues(unseen, rest, cluster, group), held
            except AwayError as away:
                held = {q: now for q, now in held.items() if q.broker_name != away.broker_name}

    def _lose(self, what: str, going_on: str = "") -> None:
        report_loss(what, fail_on_data_loss=self._options.fail_on_data_loss, going_on=going_on)

    def _report_loss(self, replaced: Mapping[MessageQueue, Replaced]) -> None:
        """Raises DataLossError if loss is an error."""
        for each in replaced.values():
            self._lose(each.what, f" from {each.new_start}")

    def _move_target(
        self, replaced: Collection[MessageQueue], held: Mapping[MessageQueue, Bounds]
    ) -> None:
        """A run with an end reads what there is of queues that are others now."""
        if self._target is not None and replaced:
            now = {queue: held[queue] for queue in replaced}
            ends = self._target.offsets | {queue: each.maximum for queue, each in now.items()}
            self._target = SourcePosition(ends, marks=marked(self._target.marks, now, ends))

    def _without_replaced(
        self, position: SourcePosition, held: dict[MessageQueue, Bounds]
    ) -> dict[MessageQueue, Bounds]:
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        while True:
            replaced, answered = self._found_replaced(position, held)
            self._report_loss(replaced)
            if len(answered) == len(held) or time.monotonic() >= deadline:
                return {queue: now for queue, now in held.items() if queue not in replaced}
            held = self._wait_for(held)

    def _all_queues(self) -> dict[MessageQueue, Bounds]:
        """What all queues hold that are read; waits for those whose broker is away."""
        cluster = self._connected()
        held = checked_queues(self._options, cluster.complete(cluster.topics.fresh()))
        check_filter(self._options, cluster, held)
        return held

    def _wait_for(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        topics = sorted({queue.topic for queue in queues})
        held = self._connected().complete(topics, queues)
        return {queue: held[queue] for queue in queues}

    def _starts_at_minimum(self, begin: SourcePosition, queue: MessageQueue) -> bool:
        starting = self._options.starting_offsets
        if isinstance(starting, dict):
            starting = Bound.EARLIEST if starting.get(queue) == EARLIEST else None
        return begin.first and starting is Bound.EARLIEST

    def _check_old_first_batch(self, first: Offsets, stop: Offsets) -> None:
        """A first batch of version 1 does not say where it began, and asking again is too late."""
        for queue, offset in first.items():
            if offset <= stop[queue]:
                continue
            what = (
                f"the first batch of this checkpoint was not finished, and does not say where it "
                f"began: {queue.topic} queue {queue.queue_id} on {queue.broker_name} would be read "
                f"from {offset} to {stop[queue]}"
            )
            self._lose(what, f" from {stop[queue]}")

    def _pause(self) -> None:
        """Not more often than every ``pollIntervalMs`` while nothing comes, and later half that."""
        if self._idle_polls and self._target is None:
            pause = self._options.poll_interval_ms / 1000
            due = self._asked_at + pause * (2 if self._idle_polls > IDLE_POLLS_MAX else 1)
            time.sleep(max(due - time.monotonic(), 0.0))
        self._asked_at = time.monotonic()

    def _parse(self, document: Document) -> SourcePosition:
        # An idle query asks with the same document four times a second.
        if self._parsed is None or self._parsed[0] != document:
            self._parsed = document, SourcePosition.parse(document)
        return self._parsed[1]

    def _connected(self) -> ClusterView:
        if self._cluster is None:
            options = self._options
            self._cluster = ClusterView(
                options.name_servers,
                wait_seconds=options.poll_timeout_ms / 1000,
                connector=Connector(options.credentials, options.tls),
                selection=options.selection,
            )
        return self._cluster
