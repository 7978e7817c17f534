"""Who does what when: workers that share a count, a time and a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from kerolox.bench.load import Load, Tally
from kerolox.errors import KeroloxError

PAUSE_SECONDS = 0.1
"""After a failure, so that a cluster that is down is not asked without pause."""


class Pace:
    """Gives each message its number and its time."""

    def __init__(self, load: Load) -> None:
        """It begins with the first message."""
        self._load = load
        self._given = 0
        self._begin_ns = 0

    async def next(self) -> tuple[int, int] | None:
        """The number of the next message and when it is due (``monotonic_ns``), when it is due;
        None: there is no further one."""
        now = time.monotonic_ns()
        self._begin_ns = self._begin_ns or now
        load, number = self._load, self._given
        if load.count and number >= load.count:
            return None
        due = now
        if load.rate:
            due = self._begin_ns + int(number / load.rate * 1e9)
        if load.seconds and max(due, now) - self._begin_ns >= load.seconds * 1e9:
            return None
        self._given += 1
        if due > now:
            await asyncio.sleep((due - now) / 1e9)
            # Timers of a loop may be a millisecond early.
            due = min(due, time.monotonic_ns())
        return number, due


async def work(
    load: Load, tally: Tally, do: Callable[[int], Awaitable[None]], *, size: int
) -> None:
    """Have as many workers as the load says do one message, by its number, after the other.
    ``tally`` gets each one's time or error. ``size``: of each body.
    """
    pace = Pace(load)

    async def worker() -> None:
        while (given := await pace.next()) is not None:
            number, due_ns = given
            try:
                await do(number)
            except KeroloxError as error:
                tally.failed(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                tally.took(size, time.monotonic_ns() - due_ns)

    tally.begin()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, load.count or load.concurrency)):
            group.create_task(worker())
    tally.end()
