"""A clock that tests turn."""

from __future__ import annotations

from kerolox import clock


class Clock:
    """The time of the system, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_ms: int = 0
        """How far it is ahead of the system's time."""

    def __call__(self) -> int:
        """Milliseconds since the epoch."""
        return clock.now_ms() + self.ahead_ms
