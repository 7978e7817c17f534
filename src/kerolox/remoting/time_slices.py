"""Long work of requests in short time slices, so that other requests are served in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

SLICE_SECONDS_MAX = 0.005
"""How long a request works before others run."""

START_SECONDS_MAX = 0.001
"""How long work that shares its turns with others may start with, before it waits for its turn."""

_Step = TypeVar("_Step")


class TimeSlices:
    """The time slices of one request; the first begins when this is made."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SLICE_SECONDS_MAX

    async def checkpoint(self) -> None:
        """To be called between steps: lets others go on when the slice is over.

        Whatever was examined before may have changed after it.
        """
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + SLICE_SECONDS_MAX


class SharedTimeSlices:
    """Time slices of many requests, one of which runs at a time.

    However many there are, the loop does one time slice of such work before it serves everybody
    else; among themselves they take turns, so that small work does not wait for the end of large
    work.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, steps: Iterable[_Step], take: Callable[[_Step], None]) -> None:
        """Call ``take`` with each step, as many in a slice as its time allows. Each step is made,
        and taken, in much less than ``SLICE_SECONDS_MAX``; what either raises ends the work.

        Work that is done within ``START_SECONDS_MAX`` waits for nothing and nobody, as any small
        request. Whatever was examined before may have changed between two steps.
        """
        rest = iter(steps)
        is_over = _take_some(rest, take, START_SECONDS_MAX)
        while not is_over:
            async with self._lock:
                # Whoever waits for the lock begins in a later iteration of the event loop than this
                # one.
                await asyncio.sleep(0)
                is_over = _take_some(rest, take, SLICE_SECONDS_MAX)


def _take_some(rest: Iterable[_Step], take: Callable[[_Step], None], seconds_max: float) -> bool:
    """One time slice; whether all is done."""
    end = time.monotonic() + seconds_max
    for step in rest:
        take(step)
        if time.monotonic() >= end:
            return False
    return True
