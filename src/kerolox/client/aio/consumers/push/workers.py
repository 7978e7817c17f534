"""The tasks that run listeners: as many at the same time as listeners wait, up to a bound.

A listener that never waits needs no second worker, and waking one for each message would cost more
than most listeners do. So one worker takes what is ready, call after call. The next iteration of
the event loop checks whether something is left. Then that worker's listener waits, or has used its
time, and the next worker wakes up. So up to ``count`` listeners run at the same time, and a slow
listener stops no other. The same check settles what went well, once for many messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kerolox import clock
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.running import RunningListeners
from kerolox.client.core.consuming.ready import Ready, ReadyList
from kerolox.client.core.failures import FailureCallback, note_failure
from kerolox.message import MessageExt

WORKER_BACK_SECONDS = 1.0
"""A worker that was cancelled, but not by us, is replaced so much later."""

CANCELLED_SECONDS_MAX = 0.5
"""How long a close waits for listeners that it has cancelled."""

SLICE_MS_MAX = 5
"""A worker whose listeners never wait lets others run after so long."""

_log = logging.getLogger(__name__)


class Workers:
    """The workers of one consumer, and what is ready for them."""

    def __init__(
        self,
        count: int,
        consume: Callable[[asyncio.Task[None], Ready[Assignment], int], Awaitable[None]],
        settle: Callable[[], None],
        on_failure: FailureCallback | None = None,
    ) -> None:
        """
        Args:
            count: most listeners that run at the same time.
            consume: runs listeners in a worker and does what follows from their outcomes, for at
                least one call's messages of an entry, and until a time (``steady_ms``) at most.
            settle: called after an iteration of the event loop in which it was asked for.
            on_failure: told of what ``consume`` raises.
        """
        self.running = RunningListeners()
        self.ready: ReadyList[Assignment] = ReadyList()
        self._count = count
        self._consume = consume
        self._settle = settle
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[asyncio.Future[None]] = []
        self._coming: asyncio.Future[None] | None = None
        """What the worker waited for that was woken and has not run yet."""
        self.check_is_scheduled = False
        """:meth:`schedule_check` was called in this iteration of the event loop."""
        self._later: set[asyncio.TimerHandle] = set()
        self.is_closing = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(self._count)]

    def add(self, assignment: Assignment, messages: list[MessageExt], size: int) -> None:
        """Messages for calls of a listener with at most ``size`` of them."""
        self.ready.add(assignment, messages, size)
        self.schedule_check()

    def add_later(self, assignment: Assignment, messages: list[MessageExt], seconds: float) -> None:
        """The same after a pause, for one call."""
        self._call_later(seconds, lambda: self.add(assignment, messages, len(messages)))

    def schedule_check(self) -> None:
        """Settle, and look for ready messages, in the next iteration of the event loop."""
        if not self.check_is_scheduled:
            self.check_is_scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """No worker runs now: one that is not done waits, or has yield to the event loop."""
        self.check_is_scheduled = False
        self._settle()
        if self.ready and self._coming is None and not self.is_closing:
            while self._parked:
                parked = self._parked.pop()
                if not parked.done():
                    parked.set_result(None)
                    self._coming = parked
                    return

    async def close(self, timeout_seconds: float) -> None:
        """Start no further listener and wait for those that run, except for one that waits for
        the close. Those that take longer are cancelled."""
        self.is_closing = True
        for timer in self._later:
            timer.cancel()
        try:
            await self.running.wait(timeout_seconds)
        finally:
            kept = self.running.waiting_for_close()
            others = [task for task in self._tasks if task not in kept]
            for task in others:
                task.cancel()
        if others:
            # A listener that goes on all the same keeps nobody from leaving the group.
            await asyncio.wait(others, timeout=CANCELLED_SECONDS_MAX)
        self._settle()

    # -- workers ------------------------------------------------------------------------------
    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        while not self.is_closing:
            slice_ends_ms = clock.steady_ms() + SLICE_MS_MAX
            while not self.is_closing and (entry := self.ready.first()) is not None:
                if entry.queue.process_queue.is_dropped:
                    entry.drop()
                    continue
                try:
                    await self._consume(worker, entry, slice_ends_ms)
                except asyncio.CancelledError:
                    if not self.is_closing:
                        self._replace_worker(entry.queue)
                    raise
                except Exception as error:
                    what = f"consuming of {entry.queue.queue} failed"
                    note_failure(self._on_failure, _log, what, error)
                if clock.steady_ms() > slice_ends_ms:
                    break
            if not self.is_closing:
                await self._park()

    async def _park(self) -> None:
        """Wait until there is something to do."""
        if self.ready:
            self.schedule_check()
        parked: asyncio.Future[None] = self._loop.create_future()
        self._parked.append(parked)
        try:
            await parked
        finally:
            if self._coming is parked:
                self._coming = None
                self.schedule_check()  # should this one be cancelled, another one comes

    def _replace_worker(self, assignment: Assignment) -> None:
        """A listener had the very task that runs it cancelled, or the whole loop is about to end:
        nothing tells the two apart but time. Later, so that no task is born into a loop's end."""

        def replace() -> None:
            _log.warning("a listener of %s had its worker cancelled", assignment.queue)
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.ensure_future(self._work()))

        self._call_later(WORKER_BACK_SECONDS, replace)

    def _call_later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            self._later.discard(timer)
            action()

        timer = self._loop.call_later(seconds, act)
        self._later.add(timer)
