"""Whose work is done when: what all connections of a port cost an iteration of the event loop.

Requests that the kernel answers are no work in this sense. All else is done in small steps: to
serve a call up to its first wait, to take more frames, to end calls whose client is gone. A
connection that has nothing waiting is served at once, while there is time for such; what is left
waits in one queue, in which each connection has a step in its turn. So whoever brings much waits
behind those who bring little.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

SLICE_SECONDS_MAX = 0.00025
"""How long an iteration does what comes; and as long what waited. A step more may follow either."""


STEPS_MAX = 4
"""Steps of what waited in an iteration: each may make others run, whose time is not measured."""


class Worker(Protocol):
    """A connection with work."""

    def go_on(self) -> bool:
        """Do a step of what waits; whether there is more."""


class StepQueue:
    """Those of one port."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody waits."""
        self._loop = loop
        self._waiting: deque[Worker] = deque()
        self._joined: set[Worker] = set()
        self._end = 0.0
        """Of the time for what comes; 0: it did not begin in this iteration."""
        self._is_due = False

    def has_time(self) -> bool:
        """Whether this iteration has time for something that just came."""
        now = monotonic()
        if not self._end:
            self._end = now + SLICE_SECONDS_MAX
            self._call_next()
        return now < self._end

    def has_joined(self, worker: Worker) -> bool:
        """Whether it waits already."""
        return worker in self._joined

    def join(self, worker: Worker) -> None:
        """Have it go on in later iterations, until it has nothing more. Idempotent."""
        if worker not in self._joined:
            self._joined.add(worker)
            self._waiting.append(worker)
            self._call_next()

    def _call_next(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """An iteration begins."""
        self._is_due = False
        self._end = 0.0
        waiting, end = self._waiting, monotonic() + SLICE_SECONDS_MAX
        for _ in range(min(STEPS_MAX, len(waiting))):
            self._step(waiting.popleft())
            if monotonic() >= end:
                break

    def _step(self, worker: Worker) -> None:
        has_more = False
        try:
            has_more = worker.go_on()
        finally:
            if has_more:
                self._waiting.append(worker)
            else:
                self._joined.discard(worker)
            if self._waiting:
                self._call_next()
