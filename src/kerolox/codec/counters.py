"""Request ids and message ids, counted in Python: the counterpart of the native classes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product, repeat, starmap

_INT32_VALUES = range(-0x80000000, 0x80000000)

_HEX = [f"{number:02X}" for number in range(256)]


class Opaques:
    """Request ids: counted up from a first one, wrapping as a signed 32-bit number does."""

    __slots__ = ("allocate",)

    def __init__(self, first: int = 0) -> None:
        numbers = chain(
            range(first, _INT32_VALUES.stop), chain.from_iterable(repeat(_INT32_VALUES))
        )
        self.allocate: Callable[[], int] = numbers.__next__
        """The next id. An iterator counts in half of the time of a method."""


class MessageIds:
    """Message ids: what all of a millisecond begin with, and a counter of 16 bits."""

    __slots__ = ("_count", "_head", "_last_head", "_last_ms")

    def __init__(self, head: Callable[[int], str]) -> None:
        """``head`` gives what the ids of a millisecond begin with."""
        self._head = head
        self._last_ms = -1
        self._last_head = ""
        # The counter's four digits, from two tables: iterators count and write them at once.
        digits = chain.from_iterable(starmap(product, repeat((_HEX, _HEX))))
        self._count: Callable[[], str] = map("".join, digits).__next__

    def next(self, now_ms: int) -> str:
        """The next id; ``now_ms`` is milliseconds since the epoch."""
        if now_ms != self._last_ms:
            self._last_head = self._head(now_ms)
            self._last_ms = now_ms
        return self._last_head + self._count()
