"""Exactly once: what the driver does with the halves that tasks have written.

For each batch: decide, durably; end the halves that count; roll back all others of the query; mark
the batch done. Each step may be done again, by this driver or the next: the decision stays as it
was made first, and a half ends once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kerolox.errors import KeroloxError
from kerolox.protocol.extensions.half_messages import Attempt, HalfSelection
from kerolox.spark.network.connecting import Connector
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.queues import PublishRoutes
from kerolox.spark.sink.transactions.decisions import Decision, DecisionStore, EndedBatch, store_at
from kerolox.spark.sink.transactions.half_queue import HalfQueue
from kerolox.spark.sink.transactions.messages import HalfRange, SinkMessage


class Segment(NamedTuple):
    """Offsets ``[start, stop)`` of a half queue in which the halves of these attempts count."""

    start: int
    stop: int
    attempts: tuple[str, ...]


def segments_of(ranges: Iterable[tuple[str, HalfRange]], begin: int, end: int) -> list[Segment]:
    """Cut ``[begin, end)`` so that in each piece the same attempts count.

    A half of an attempt counts within the attempt's own range alone, and not where it holds a row
    a second time: a request that was sent again may be stored late, in the midst of others' halves.
    """
    changes: dict[int, list[tuple[str, int]]] = {begin: [], end: []}
    for attempt, each in ranges:
        for start, stop in _pieces(each):
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                changes.setdefault(start, []).append((attempt, 1))
                changes.setdefault(stop, []).append((attempt, -1))
    segments: list[Segment] = []
    counting: dict[str, int] = {}
    previous = begin
    for place in sorted(changes):
        if place > previous:
            attempts = tuple(sorted(name for name, count in counting.items() if count > 0))
            segments.append(Segment(previous, place, attempts))
            previous = place
        for attempt, change in changes[place]:
            counting[attempt] = counting.get(attempt, 0) + change
    return segments


def _pieces(each: HalfRange) -> Iterable[tuple[int, int]]:
    start = each.low
    for offset in sorted({at for at in each.excluded if each.low <= at < each.high}):
        yield start, offset
        start = offset + 1
    yield start, each.high


_log = logging.getLogger(__name__)


class Transaction:
    """The transaction of one batch, on the driver. ``query``: the id of the query, or the name of a
    batch write, whose ``batch`` is 0.
    """

    def __init__(self, options: SinkOptions, query: str, batch: int) -> None:
        self._query = query
        self._batch = batch
        self._store = store_of(options, query)
        self._group = options.group_of(query)
        self._connector = Connector(options.credentials, options.tls)
        self._seconds_max = options.send_timeout_ms / 1000
        self._routes = PublishRoutes(
            options.name_servers, self._connector, wait_seconds=self._seconds_max, first=0
        )
        self._queues: dict[str, HalfQueue] = {}

    def commit(self, messages: Sequence[SinkMessage]) -> None:
        """Make the rows of these attempts seen, or those that were decided on before. SinkError:
        the decision can't be kept, or a half not be ended; the batch is run again.
        """
        # Readers see batches in their order, so those that a killed driver left end first.
        for batch in self._store.undone(self._batch):
            earlier = self._store.decision(batch)
            if earlier is not None:
                self.settle(earlier, [], is_again=True)
        before = self._store.decision(self._batch)
        decision = before or self.decide(messages)
        written = [each for message in messages for each in message.ranges]
        self.settle(decision, written, is_again=before is not None)
        self._store.forget(self._batch)

    def abort(self, messages: Sequence[SinkMessage]) -> None:
        """Roll back what was written, unless the batch is decided: then it is run again. SinkError:
        a broker is away; its halves are rolled back later, or set aside by it.
        """
        if self._store.decision(self._batch) is not None:
            _log.warning(
                "batch %d of %s is decided, so it is not rolled back", self._batch, self._query
            )
            return
        ranges = [each for message in messages for each in message.ranges]
        for broker_name in {each.broker_name for each in ranges}:
            some = [each for each in ranges if each.broker_name == broker_name]
            begin = min(each.begin for each in some)
            selection = HalfSelection(query=self._query, last_batch=self._batch)
            queue = self._queue(some[0])
            queue.end(begin, queue.support().end, selection, commit=False, careful=False)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._routes.close()
        for queue in self._queues.values():
            queue.close()

    # -- the steps -----------------------------------------------------------------------------
    def decide(self, messages: Sequence[SinkMessage]) -> Decision:
        """Keep which attempts count."""
        decision = Decision.of(self._query, self._batch, self._group, messages)
        return self._store.decide(decision)

    def settle(self, decision: Decision, written: Iterable[HalfRange], *, is_again: bool) -> None:
        """End all halves as decided, of this batch or of one before it, and say so. ``written``:
        what tasks have written now, if other than what the decision has. ``is_again``: it was
        decided before, so halves may have been ended.
        """
        done = self._store.done(decision.batch)
        previous = self._store.done(decision.batch - 1)
        counting = [(each.attempt, part) for each in decision.winners for part in each.ranges]
        by_broker: dict[str, list[tuple[str, HalfRange]]] = {}
        for attempt, part in counting:
            by_broker.setdefault(part.broker_name, []).append((attempt, part))
        for part in written:
            by_broker.setdefault(part.broker_name, []).append(("", part))
        ends = {} if previous is None else dict(previous.ends)
        for broker_name, parts in by_broker.items():
            ends[broker_name] = self._settle_broker(
                decision, parts, ends.get(broker_name), is_again=is_again, is_done=done is not None
            )
        if done is None:
            self.mark_done(decision.batch, ends)

    def mark_done(self, batch: int, ends: dict[str, int]) -> None:
        """Say that all halves of a batch are ended."""
        self._store.mark_done(batch, EndedBatch(ends))

    def _settle_broker(
        self,
        decision: Decision,
        parts: list[tuple[str, HalfRange]],
        previous_end: int | None,
        *,
        is_again: bool,
        is_done: bool,
    ) -> int:
        """End the halves of one broker; where its half queue ends."""
        queue = self._queue(parts[0][1])
        end = queue.support().end
        begin = min(part.begin for _, part in parts)
        if previous_end is not None:
            begin = min(begin, previous_end)
        counting = [(attempt, part) for attempt, part in parts if attempt]
        segments = segments_of(counting, begin, end)
        if not is_done:
            for start, stop, attempts in segments:
                if attempts:
                    selection = HalfSelection(attempts=list(attempts))
                    self.end_halves(queue, start, stop, selection, is_again=is_again)
        rows = sum(part.rows for _, part in counting)
        if rows < end - begin:
            for start, stop, attempts in segments:
                selection = HalfSelection(
                    query=decision.query, last_batch=decision.batch, keep=list(attempts)
                )
                queue.end(start, stop, selection, commit=False, careful=False)
        return end

    def end_halves(
        self, queue: HalfQueue, start: int, stop: int, selection: HalfSelection, *, is_again: bool
    ) -> None:
        """Commit the halves of a segment."""
        queue.end(start, stop, selection, commit=True, careful=is_again)

    def _queue(self, part: HalfRange) -> HalfQueue:
        queue = self._queues.get(part.broker_name)
        if queue is None:
            queue = self._queues[part.broker_name] = half_queue(
                part.broker_name,
                part.topic,
                self._routes,
                self._connector,
                self._group,
                self._seconds_max,
            )
        return queue


def half_queue(
    broker_name: str,
    topic: str,
    routes: PublishRoutes,
    connector: Connector,
    group: str,
    seconds_max: float,
) -> HalfQueue:
    """The half queue of a broker that the route of a topic has."""

    def address(fresh: bool) -> str:
        found = routes.queues(topic, fresh=fresh).addresses.get(broker_name)
        if found is None:
            raise KeroloxError(f"broker {broker_name} is not in the route of topic {topic}")
        return found

    return HalfQueue(broker_name, address, connector, group, seconds_max=seconds_max)


def store_of(options: SinkOptions, query: str) -> DecisionStore:
    """The decisions of a query."""
    return store_at(options.folder_of(query))


def query_of(messages: Iterable[SinkMessage]) -> str:
    """The query whose tasks have sent these messages; empty: none has written. SinkError: they are
    of several.
    """
    names = {found.query for each in messages if (found := Attempt.parse(each.attempt))}
    if len(names) > 1:
        raise SinkError(f"the tasks are of several queries: {', '.join(sorted(names))}")
    return names.pop() if names else ""
