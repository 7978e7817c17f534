"""Answers for many names, gathered beside the pages: a page shows those that are there in time.

A list of 1,000 topics asks thousands of questions. What was asked for last is asked first, with a
bound of questions that are open at once; a page waits for a moment alone, and an answer is kept for
a while. So a broker that does not answer delays no page.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kerolox.errors import ClientError, KeroloxError
from kerolox.tasks import end_tasks

__all__ = ["PAINT_SECONDS", "Gathered"]

PAINT_SECONDS = 0.2
"""For so long a page waits for answers."""
WORKERS_MAX = 16
"""Names that are asked about at the same time."""

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known(Generic[_Answer]):
    at: float
    answer: _Answer | KeroloxError


class Gathered(Generic[_Answer]):
    """Answers by name."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[_Answer]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ask``: gets one answer, or raises a ``KeroloxError``. ``clock``: seconds."""
        self._ask = ask
        self._clock = clock
        self._known: dict[str, _Known[_Answer]] = {}
        self._awaited: dict[str, asyncio.Future[None]] = {}
        """Names whose answers are asked for, or will be."""
        self._queue: OrderedDict[str, None] = OrderedDict()
        """Names to ask about, those that were asked for last first."""
        self._changes = 0
        """How often all was forgotten."""
        self._workers: set[asyncio.Task[None]] = set()

    async def get(
        self, names: Iterable[str], *, seconds_max: float, wait_seconds: float = PAINT_SECONDS
    ) -> dict[str, _Answer | KeroloxError]:
        """What is known of each of the names: an answer, or the error in place of it. A name of
        which nothing is known yet is left out.

        An answer older than ``seconds_max`` is asked for again, and given until the new one is
        there. Those are waited for so long as ``wait_seconds`` says.
        """
        wanted = list(dict.fromkeys(names))
        stale = [name for name in wanted if self._age(name) > seconds_max]
        waiting = [self._want(name) for name in reversed(stale)]
        if waiting and wait_seconds:
            await asyncio.wait(waiting, timeout=wait_seconds)
        return self.known(wanted)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget what is known of other names."""
        for name in self._known.keys() - set(names):
            del self._known[name]

    def known(self, names: Iterable[str]) -> dict[str, _Answer | KeroloxError]:
        """What is known of each of the names, as :meth:`get`; nothing is asked for."""
        return {name: self._known[name].answer for name in names if name in self._known}

    def clear(self) -> None:
        """Forget all answers: something was changed."""
        self._changes += 1
        self._known.clear()

    async def close(self) -> None:
        """Give up what is asked."""
        self._queue.clear()
        await end_tasks(*self._workers)
        for future in self._awaited.values():
            future.cancel()
        self._awaited.clear()

    def _age(self, name: str) -> float:
        known = self._known.get(name)
        return float("inf") if known is None else self._clock() - known.at

    def _want(self, name: str) -> asyncio.Future[None]:
        future = self._awaited.get(name)
        if future is None:
            future = self._awaited[name] = asyncio.get_running_loop().create_future()
            self._queue[name] = None
        if name in self._queue:
            self._queue.move_to_end(name, last=False)
        if self._queue and len(self._workers) < WORKERS_MAX:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return future

    async def _work(self) -> None:
        while self._queue:
            name, _ = self._queue.popitem(last=False)
            changes = self._changes
            answer: _Answer | KeroloxError
            try:
                answer = await self._ask(name)
            except KeroloxError as error:
                answer = error
            except Exception as error:  # it must not end the answers for other names
                _log.exception("nothing could be gathered of %r", name)
                answer = ClientError(f"{type(error).__name__}: {error}")
            # What was asked before a change is shown until the next look has the new answer.
            at = self._clock() if changes == self._changes else -float("inf")
            self._known[name] = _Known(at, answer)
            self._awaited.pop(name).set_result(None)
