"""When the disk will be full, by what the log's files tell; free of clock and disk.

The files are the history: each says when the last of its bytes was stored, and it goes when that is
``fileReservedTime`` ago. So a broker that has just started knows as much as one that has run on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Forecast", "Mark", "forecast", "marks_of"]

WINDOW_MS = 24 * 3_600_000
"""The rate is that of so long until now, or of what the log has of it."""
HISTORY_MS_MIN = 3_600_000
"""Of less nothing is said."""


@dataclass(frozen=True, slots=True)
class Mark:
    """All bytes of the log before an offset were stored by a time."""

    ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected of the disk."""

    bytes_per_second: float | None = None
    """That the log grows by; None: it has too little history."""
    full_ms: int | None = None
    """When messages go before their time, or sends are refused, since the epoch. None: never at
    this rate, since as much goes as comes; or the rate is not known."""


def marks_of(marks: Iterable[Mark], end: int, now_ms: int) -> list[Mark]:
    """Those that fit to each other and to the clock, oldest first. A clock that was set leaves
    files of the future, or some that are younger than those behind them: they say nothing."""
    kept: list[Mark] = []
    for each in sorted(marks, key=lambda mark: mark.offset, reverse=True):
        latest = kept[-1].ms if kept else now_ms
        if 0 < each.ms <= latest and each.offset <= end:
            kept.append(each)
    return kept[::-1]


def forecast(
    marks: list[Mark], end: int, now_ms: int, *, free_bytes: int, reserved_ms: int
) -> Forecast:
    """What becomes of the disk if messages come as they did.

    Args:
        marks: of :func:`marks_of`; the log begins at the first.
        end: of the log.
        now_ms: since the epoch.
        free_bytes: what may still be written.
        reserved_ms: how long after its last byte a file goes (``fileReservedTime``).
    """
    old_enough = [each for each in marks if now_ms - each.ms >= HISTORY_MS_MIN]
    if not old_enough:
        return Forecast()
    within = [each for each in old_enough if now_ms - each.ms <= WINDOW_MS]
    # One beyond the window is better than one of an hour: a day has quiet hours.
    before = [each for each in old_enough if now_ms - each.ms > WINDOW_MS]
    base = before[-1] if before else within[0]
    rate = (end - base.offset) / (now_ms - base.ms)
    if rate <= 0:
        return Forecast(0.0)
    left, at = float(free_bytes), float(now_ms)
    until = now_ms + reserved_ms
    for former, each in pairwise(marks):
        goes = min(max(each.ms + reserved_ms, at), until)
        if left <= rate * (goes - at):
            return Forecast(rate * 1_000, int(at + left / rate))
        left += each.offset - former.offset - rate * (goes - at)
        at = goes
    if left <= rate * (until - at):
        return Forecast(rate * 1_000, int(at + left / rate))
    # From then on what is written now goes, as fast as it came.
    return Forecast(rate * 1_000)
