"""Requests that end with an error, some of them in each iteration.

When a connection with thousands of open requests is lost, each caller goes on and does something.
Others have turns in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

ENDED_AT_ONCE_MAX = 200
"""Requests that end with an error in one iteration of the event loop."""

_Ended = TypeVar("_Ended")


class Endings:
    """Ends requests in the order in which they were given."""

    __slots__ = ("_lots", "_next_iteration", "_start")

    def __init__(self, next_iteration: Callable[[], object]) -> None:
        """``next_iteration``: have :meth:`go_on` called in the next iteration of the event loop."""
        self._next_iteration = next_iteration
        self._lots: list[tuple[Sequence[Any], Callable[[Any], object]]] = []
        self._start = 0
        """How many of the first lot are done."""

    def __len__(self) -> int:
        return sum(len(lot) for lot, _ in self._lots) - self._start

    def add(self, ended: Sequence[_Ended], end: Callable[[_Ended], object]) -> None:
        """Call ``end`` with each of them: as many as may be at once, the others in later
        iterations."""
        if not ended:
            return
        self._lots.append((ended, end))
        if len(self._lots) == 1:
            self.go_on()

    def go_on(self) -> None:
        """An iteration: end some, and ask for another iteration if more are left."""
        left = ENDED_AT_ONCE_MAX
        while self._lots and left:
            lot, end = self._lots[0]
            some = lot[self._start : self._start + left]
            left -= len(some)
            self._start += len(some)
            for each in some:
                end(each)
            if self._start >= len(lot):
                del self._lots[0]
                self._start = 0
        if self._lots:
            self._next_iteration()
