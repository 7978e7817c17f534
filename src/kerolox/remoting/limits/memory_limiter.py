"""Limits the memory that all connections of a server take together.

Each connection has bounds of its own: one unfinished frame, answers that it does not read, requests
in flight. Thousands of connections together would still take too much. The limiter then closes
connections whose bytes do not become fewer, those first that have been so for longest: clients that
write a frame byte by byte, or that never read. A client that takes what it asked for is let alone.
A connection without such bytes is not examined until something comes or goes over it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

MEMORY_BYTES_MAX = 512 * 1024 * 1024
"""Unfinished frames, unsent answers and requests in flight of all connections of a server."""

MEMORY_BYTES_SMALL = 64 * 1024
"""A connection that makes the server keep less is not slow."""

CHECK_SECONDS = 0.5
CHECK_SECONDS_WHEN_MUCH = 0.05
"""Time between two checks; the shorter one from half of ``MEMORY_BYTES_MAX`` on."""

CHECK_BYTES = 32 * 1024 * 1024
"""After so many bytes in big chunks it checks at once: they may come at a GB a second."""

_log = logging.getLogger(__name__)


class MemoryHolder(Protocol):
    """A connection, as far as it is examined here."""

    remote_address: str
    is_counted: bool
    """Whether it is examined; it may make the server keep something."""
    memory_before: int
    """What it made the server keep at the last check."""
    checks_without_progress: int
    """How many checks ago that became less, or was small."""

    def memory_bytes(self) -> int:
        """What it makes the server keep now."""

    def abort(self) -> None:
        """Close it at once."""


class MemoryLimiter:
    """Examines connections now and then, and closes the slowest when they keep too much."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        """Nothing happens by itself before ``start``."""
        self._bytes_max = bytes_max
        self.kept = 0
        """Bytes that connections kept at the last check."""
        self._bytes_since_check = 0
        self._counted: dict[MemoryHolder, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now and then."""
        self._timer = loop.call_later(CHECK_SECONDS, self._check_again, loop)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def add(self, connection: MemoryHolder) -> None:
        """Something came or goes over a connection that is not counted."""
        connection.is_counted = True
        self._counted[connection] = None

    def discard(self, connection: MemoryHolder) -> None:
        """A connection is closed."""
        self._counted.pop(connection, None)

    def count(self, nbytes: int) -> None:
        """So many bytes came in one chunk, which may have been kept."""
        self._bytes_since_check += nbytes
        if self._bytes_since_check >= CHECK_BYTES:
            self.check()

    def check(self) -> int:
        """Examine all that are counted once; the bytes that are kept after it."""
        self._bytes_since_check = 0
        total = 0
        for connection in tuple(self._counted):
            kept = connection.memory_bytes()
            total += kept
            if not kept:
                connection.is_counted = False
                del self._counted[connection]
            if kept < MEMORY_BYTES_SMALL or kept < connection.memory_before:
                connection.checks_without_progress = 0
            else:
                connection.checks_without_progress += 1
            connection.memory_before = kept
        if total > self._bytes_max:
            total = self._close_slowest(total)
        self.kept = total
        return total

    def _close_slowest(self, total: int) -> int:
        slowest_first = sorted(
            self._counted, key=lambda c: (-c.checks_without_progress, -c.memory_before)
        )
        for connection in slowest_first:
            if total <= self._bytes_max:
                break
            _log.warning(
                "closing %s: it makes the server keep %d bytes of frames that it does not finish "
                "or answers that it does not read; all connections together may have %d",
                connection.remote_address,
                connection.memory_before,
                self._bytes_max,
            )
            total -= connection.memory_before
            connection.abort()
        return total

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        is_much = self.check() > self._bytes_max // 2
        seconds = CHECK_SECONDS_WHEN_MUCH if is_much else CHECK_SECONDS
        self._timer = loop.call_later(seconds, self._check_again, loop)
