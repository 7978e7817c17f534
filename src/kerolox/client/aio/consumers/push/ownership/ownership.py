"""The queues that a push consumer owns: how it takes them on and gives them up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.offset_store import start_offset
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.core.consuming.ordered.locks import QueueLock
from kerolox.client.core.failures import note_failure
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.orderly import Orderly
    from kerolox.client.aio.consumers.push.ownership.queue_locks import QueueLocks
    from kerolox.client.aio.consumers.push.pulling import Pulling
    from kerolox.client.aio.consumers.queue_events import QueueEvents
    from kerolox.client.aio.network.background import PeriodicTasks
    from kerolox.client.aio.query import ClusterQueries
    from kerolox.message import MessageQueue

CALLBACK_SECONDS_AT_CLOSE = 1.0
"""A close waits so long for each callback."""

_log = logging.getLogger(__name__)


class Ownership:
    """Takes queues on and gives them up, one rebalance at a time."""

    def __init__(
        self,
        assignments: dict[MessageQueue, Assignment],
        queries: ClusterQueries,
        settings: PushConsumerSettings,
        offsets: OffsetStore,
        *,
        pulling: Pulling,
        orderly: Orderly,
        locks: QueueLocks | None,
        events: QueueEvents,
        background: PeriodicTasks,
        is_ordered: Callable[[str], bool],
        start_ms: int,
    ) -> None:
        """Nothing is owned yet. ``assignments`` is changed here alone. ``locks``: None: ordered
        queues need none (broadcasting). ``events``: who wants to be told. ``background`` runs the
        pull loops. ``is_ordered``: whether a topic is read in order. ``start_ms``: when the
        consumer was started.
        """
        self._assignments = assignments
        self._queries = queries
        self._settings = settings
        self._offsets = offsets
        self._pulling = pulling
        self._orderly = orderly
        self._locks = locks
        self._events = events
        self._background = background
        self._is_ordered = is_ordered
        self._start_ms = start_ms
        self._is_over = False

    def end(self) -> None:
        """The consumer leaves its group: nothing is taken any more, whoever still asks for it."""
        self._is_over = True

    async def take(
        self, queues: Iterable[MessageQueue], starts: Mapping[MessageQueue, int] | None = None
    ) -> bool:
        """Take queues on, those that are not ours already, and begin to pull them; False: one or
        more have to be tried again. A queue without an offset in ``starts`` begins where the group
        is.
        """
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if queue not in self._assignments:
                brokers.setdefault(queue.broker_name, []).append(queue)
        # Side by side: a broker that does not answer holds up no queue of another.
        taking = (self._take_of_broker(each, starts or {}) for each in brokers.values())
        return all(await asyncio.gather(*taking))

    async def _take_of_broker(
        self, wanted: list[MessageQueue], starts: Mapping[MessageQueue, int]
    ) -> bool:
        locks = await self._lock([queue for queue in wanted if self._is_ordered(queue.topic)])
        free = self._locks is None
        ready = [q for q in wanted if free or q in locks or not self._is_ordered(q.topic)]
        offsets = await asyncio.gather(*(self._start_of(queue, starts) for queue in ready))
        if self._is_over:
            # The close has given up all that was ours: a reset by a broker ran into it.
            ready, offsets = [], []
        taken: list[Assignment] = []
        for queue, offset in zip(ready, offsets, strict=True):
            if offset is None:
                continue
            made = Assignment(queue, offset, self._pulling.flow.process_queue(queue.topic))
            now_ms = clock.steady_ms()
            # As Java: who asks since when nothing is done hears of the time when it was taken.
            made.process_queue.last_pull_ms = made.process_queue.last_consume_ms = now_ms
            self._assignments[queue] = made
            taken.append(made)
        try:
            unused = locks.keys() - {each.queue for each in taken}
            if unused and self._locks is not None:
                await self._locks.unlock(unused)
            await self._events.assigned(each.queue for each in taken)
        except BaseException:
            for each in taken:
                del self._assignments[each.queue]
            raise
        for each in taken:
            self._begin(each, locks.get(each.queue))
        return len(taken) == len(wanted)

    def _begin(self, assignment: Assignment, lock: QueueLock | None) -> None:
        if assignment.process_queue.is_dropped or self._is_over:
            return
        if self._is_ordered(assignment.queue.topic):
            self._orderly.begin(assignment, lock)
        assignment.task = self._background.start(self._pulling.run(assignment))

    async def _lock(self, queues: list[MessageQueue]) -> dict[MessageQueue, QueueLock]:
        """The locks on queues, as far as they could be had."""
        if self._locks is None or not queues:
            return {}
        held, refused = await self._locks.lock(queues)
        for queue in refused:
            _log.info("%s is locked by another member of the group, trying again later", queue)
        locks = {queue: QueueLock() for queue in held}
        for queue, lock in locks.items():
            lock.grant(held[queue])
        return locks

    async def _start_of(
        self, queue: MessageQueue, starts: Mapping[MessageQueue, int]
    ) -> int | None:
        self._offsets.table.remove(queue)
        if queue in starts:
            return starts[queue]
        try:
            return await start_offset(
                self._queries, self._offsets, queue, self._settings, self._start_ms
            )
        except KeroloxError as error:
            what = f"start of {queue} is unknown, trying again later"
            note_failure(self._settings.on_failure, _log, what, error)
            return None

    async def give_up(
        self, queues: Iterable[MessageQueue], *, wait: bool = False, store: bool = True
    ) -> bool:
        """Give queues up, of those that are ours; False: an ordered one has a listener that still
        runs, so it is still ours, without further calls. ``wait``: store offsets before this
        returns. ``store``: store offsets at all; not when another member has them already.
        """
        going = [self._assignments[queue] for queue in queues if queue in self._assignments]
        if not going:
            return True
        ordered = [each for each in going if each.orderly is not None]
        gone = [each for each in going if each.orderly is None]
        for each in going:
            if each.task is not None and each.task is not asyncio.current_task():
                each.task.cancel()
        for each in gone:
            each.process_queue.drop()
        try:
            staying = await self._orderly.leave(ordered)
            for each in staying:
                _log.warning("%s goes as soon as its listener ends", each.queue)
            gone += [each for each in ordered if each not in staying]
            await self._let_go({each.queue: each for each in gone}, store=store, wait=wait)
        finally:
            # Not before: taken anew before its offset is stored, a queue would start too early.
            for each in gone:
                if self._assignments.get(each.queue) is each:
                    del self._assignments[each.queue]
                    self._offsets.table.remove(each.queue)
        return not staying

    async def _let_go(
        self, gone: dict[MessageQueue, Assignment], *, store: bool, wait: bool
    ) -> None:
        """Callbacks, offsets, locks: whoever gets a lock next must find the offset."""
        ordered = [queue for queue, each in gone.items() if each.orderly is not None]
        for each in gone.values():
            each.process_queue.drop()
        await self._events.revoked(gone)
        if store:
            await self._offsets.persist(gone, wait=wait or bool(ordered))
        if self._locks is not None and ordered:
            await self._locks.unlock(ordered)

    @property
    def locks(self) -> dict[MessageQueue, QueueLock]:
        """The locks of the queues that are read in order."""
        return {
            queue: each.orderly.lock
            for queue, each in self._assignments.items()
            if each.orderly is not None and each.orderly.lock is not None
        }

    async def renew_locks(self) -> list[MessageQueue]:
        """Renew all locks (``lockAll``); the queues that other members have now."""
        locks = self.locks
        if self._locks is None or not locks:
            return []
        held, lost = await self._locks.lock(locks)
        gone = held.keys() - self._assignments.keys()
        if gone:
            # Given up meanwhile, maybe before the broker read of the renewal.
            await self._locks.unlock(gone)
        for queue, asked_ms in held.items():
            if queue in gone:
                continue
            if not locks[queue].is_valid(asked_ms) and await self._was_read_by_others(queue):
                lost.add(queue)
                continue
            locks[queue].grant(asked_ms)
            if queue in self._assignments:
                self._assignments[queue].news.set()
        for queue in lost:
            _log.warning("the lock of %s is lost", queue)
            locks[queue].lose()
        return list(lost)

    async def _was_read_by_others(self, queue: MessageQueue) -> bool:
        """While the lock was not ours, as the group's offset tells."""
        ours = self._offsets.table.read(queue)
        try:
            stored = await self._offsets.load(queue)
        except KeroloxError as error:
            what = f"the offset of {queue} is unknown"
            note_failure(self._settings.on_failure, _log, what, error)
            return True
        if stored > ours:
            return True
        self._offsets.table.update(queue, ours, increase_only=False)
        return False

    async def close(self) -> None:
        """Tell of the end, store the offsets of all, give up their locks; each in bounded time."""
        await self._events.revoked(self._assignments, seconds=CALLBACK_SECONDS_AT_CLOSE)
        try:
            async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                await self._store_and_unlock()
        except TimeoutError as error:
            what = "not all offsets were stored, or not all locks given up, in time"
            note_failure(self._settings.on_failure, _log, what, error, is_expected=True)

    async def _store_and_unlock(self) -> None:
        await self._offsets.persist(list(self._assignments), wait=True)
        if self._locks is None:
            return
        busy = {
            q
            for q, each in self._assignments.items()
            if each.ordered_task and not each.ordered_task.done()
        }
        # Among them those of a rebalance that was cut short.
        await self._locks.unlock(self._locks.held - busy)
