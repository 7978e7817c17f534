"""Long work of requests in short time slices, so that other requests are served in between.

However much of such work there is, an iteration of the event loop does one time slice of it, and
serves everybody else besides. Among themselves they take turns, so that small work does not wait
for the end of large work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

SLICE_SECONDS_MAX = 0.002
"""How long a request works before others run."""

START_SECONDS_MAX = 0.001
"""How long it works at first, before it waits for its turn."""

_Step = TypeVar("_Step")


class TimeSlices:
    """The time slices of one request; the first begins when this is made.

    Work that is done within ``START_SECONDS_MAX`` waits for nothing and nobody, as any small
    request.
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + START_SECONDS_MAX

    async def checkpoint(self) -> None:
        """To be called between steps: lets others go on when the slice is over.

        Whatever was examined before may have changed after it.
        """
        if time.monotonic() >= self._end:
            await _waiting_work().next_turn()
            self._end = time.monotonic() + SLICE_SECONDS_MAX

    async def run(self, steps: Iterable[_Step], take: Callable[[_Step], None]) -> None:
        """Call ``take`` with each step, with a checkpoint behind it. Each step is made, and taken,
        in much less than ``SLICE_SECONDS_MAX``; what either raises ends the work.
        """
        for step in steps:
            take(step)
            await self.checkpoint()


class _WaitingWork:
    """Those of one event loop who wait for their next slice, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def next_turn(self) -> None:
        """Wait for a slice, which begins in a later iteration of the event loop."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._call_next()
        await turn

    def _call_next(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give_turn)

    def _give_turn(self) -> None:
        self._is_due = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self._call_next()


_WAITING_WORK: WeakKeyDictionary[asyncio.AbstractEventLoop, _WaitingWork] = WeakKeyDictionary()


def _waiting_work() -> _WaitingWork:
    return _WAITING_WORK.setdefault(asyncio.get_running_loop(), _WaitingWork())
