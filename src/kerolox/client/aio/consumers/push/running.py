"""Which listeners run, so that a close waits for them, but not for one that closes itself."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

_listening: ContextVar[object] = ContextVar("listening", default=None)
"""The listener that runs; also in tasks and threads that work for it."""

note_call = _listening.set
"""Half of :meth:`RunningListeners.begin`, for who runs very many."""

_log = logging.getLogger(__name__)


class RunningListeners:
    """The listeners of one consumer that run, each with the task that runs it."""

    def __init__(self) -> None:
        self.by_call: dict[object, asyncio.Task[None] | None] = {}
        """Each call that runs, with the task that runs it; None: a thread does, or is about to."""
        self._closers: set[object] = set()
        """Those of them that wait for the close."""
        self._ended = asyncio.Event()
        self.is_awaited = False

    def __len__(self) -> int:
        return len(self.by_call)

    def begin(self, worker: asyncio.Task[None]) -> object:
        """The calling task is about to run a listener; gives what :meth:`end` needs."""
        listening = object()
        _listening.set(listening)
        self.by_call[listening] = worker
        return listening

    def end(self, listening: object) -> None:
        """That listener is through."""
        del self.by_call[listening]
        self.note_end()

    def note_end(self) -> None:
        """One has ended."""
        if self.is_awaited:
            self._ended.set()

    def caller_waits(self) -> None:
        """Whoever calls this waits for the close; if it is a listener, the close does not wait for
        it in turn."""
        listening = _listening.get()
        if listening in self.by_call:
            self._closers.add(listening)
            self._ended.set()

    async def wait(self, timeout_seconds: float) -> None:
        """Until none runs but those that wait for the close; no longer than the time limit."""
        self.is_awaited = True
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.by_call.keys() - self._closers:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            count = len(self.by_call.keys() - self._closers)
            _log.warning("%d listeners still run after %.1f s", count, timeout_seconds)

    def waits_for_close(self, call: object) -> bool:
        """Whether a listener waits for the close."""
        return call in self._closers

    def waiting_for_close(self) -> list[asyncio.Task[None] | None]:
        """The tasks of the listeners that wait for the close."""
        return [self.by_call.get(each) for each in self._closers]
