"""Answers of the cluster for a few seconds, so that pages asked for again and again cost little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar, cast

from kerolox.tasks import end_tasks

__all__ = ["KEPT_SECONDS", "Cache"]

ENTRIES_MAX = 256

KEPT_SECONDS = 5.0
"""How old an answer may be that a page shows."""

_Result = TypeVar("_Result")


class Cache:
    """Answers by key. Who asks while an answer is fetched waits for the same one."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds; tests turn one by hand."""
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, asyncio.Task[object]]] = {}

    async def get(
        self, key: Hashable, seconds: float, make: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """The answer that is not older than ``seconds``; ``make`` fetches it. An error is passed
        on and not kept."""
        now = self._clock()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > seconds or _is_bad(entry[1]):
            while len(self._entries) >= ENTRIES_MAX:
                self._entries.pop(next(iter(self._entries)))[1].cancel()
            task: asyncio.Task[object] = asyncio.ensure_future(_awaited(make))
            task.add_done_callback(_is_bad)
            entry = self._entries[key] = now, task
        # One that gives up, as its browser did, must not take the answer from the others.
        return cast("_Result", await asyncio.shield(entry[1]))

    def clear(self) -> None:
        """Forget all: something was changed."""
        self._entries.clear()

    async def close(self) -> None:
        """Give up what is fetched."""
        tasks = [task for _, task in self._entries.values()]
        self._entries.clear()
        await end_tasks(*tasks)


async def _awaited(make: Callable[[], Awaitable[_Result]]) -> _Result:
    return await make()


def _is_bad(task: asyncio.Task[object]) -> bool:
    """Whether it ended with an error, which is examined."""
    return task.done() and (task.cancelled() or task.exception() is not None)
