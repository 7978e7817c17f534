"""How much work something is: its CPU time in the pace of the machine at that moment."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["usual_seconds"]

USUAL_SECONDS = 0.016
"""What the yardstick takes on an ordinary machine that does nothing else."""

TRIES_MAX = 3


def usual_seconds(work: Callable[[], object], at_most: float) -> float:
    """The CPU seconds that some work would take on an ordinary machine, of this thread alone.

    Measured against a piece of Python just before and after; again while it is above ``at_most``, a
    few times in all, since a machine may be slow just in the middle.
    """
    least = float("inf")
    for _ in range(TRIES_MAX):
        before = _yardstick()
        begin = time.thread_time()
        work()
        took = time.thread_time() - begin
        least = min(least, took * USUAL_SECONDS / max(before, _yardstick()))
        if least < at_most:
            break
    return least


def _yardstick() -> float:
    begin = time.thread_time()
    table: dict[int, str] = {}
    for number in range(200_000):
        table[number & 1023] = str(number)
    return time.thread_time() - begin
