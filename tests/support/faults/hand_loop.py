"""An event loop that a test turns by hand, and a transport that goes nowhere."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["DeafTransport", "HandLoop"]


class _Handle:
    """A callback that waits for its turn."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        if self.callback is not None:
            self.callback(*self.arguments)


class HandLoop:
    """Callbacks and timers, run by :meth:`turn`; the time is what the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.faults: list[dict[str, Any]] = []
        """What nobody caught."""
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(
        self, callback: Callable[..., object], *arguments: object, context: object = None
    ) -> _Handle:
        handle = _Handle(callback, arguments)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *arguments: object) -> _Handle:
        handle = _Handle(callback, arguments)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *arguments: object
    ) -> _Handle:
        return self.call_at(self.now + delay, callback, *arguments)

    def turn(self) -> bool:
        """Run what is due now, but nothing that it brings about. False: there was nothing."""
        while self._timers and self._timers[0][0] <= self.now:
            self._ready.append(heapq.heappop(self._timers)[2])
        due, self._ready = self._ready, deque()
        for handle in due:
            handle.run()
        return bool(due)

    def run(self) -> None:
        """Turn until nothing is due."""
        while self.turn():
            pass

    @property
    def timers(self) -> int:
        """Those that are armed."""
        return sum(handle.callback is not None for _, _, handle in self._timers)


class DeafTransport:
    """Keeps what is written; the test says when the peer takes it, and when it is lost."""

    def __init__(self, loop: HandLoop) -> None:
        self.loop = loop
        self.protocol: Any = None
        self.written = bytearray()
        self.is_gone = False

    def write(self, data: bytes) -> None:
        if not self.is_gone:
            self.written += data

    def lose(self, error: Exception | None = None) -> None:
        """The connection ends, with the loop's next turn."""
        if not self.is_gone:
            self.is_gone = True
            self.loop.call_soon(self.protocol.connection_lost, error)

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def is_closing(self) -> bool:
        return self.is_gone

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
