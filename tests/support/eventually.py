"""Waiting for a condition: a deadline, never a fixed sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

__all__ = ["SECONDS_MAX", "until", "wait_until"]

SECONDS_MAX = 120.0
"""A deadline for whatever comes in the end; no judgement of how soon it does."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.002, 0.05
"""Between two checks. It grows with the wait, so that a long one leaves the processor to others."""

PAUSE_SHARE = 0.02
"""Of the time waited so far: so much later than needed a wait may end."""


async def until(
    condition: Callable[[], object],
    *,
    seconds: float = SECONDS_MAX,
    what: str = "the condition",
) -> None:
    """Let the loop run until ``condition`` holds; it may be a coroutine function."""
    started = time.monotonic()
    while not (await met if inspect.isawaitable(met := condition()) else met):
        pause = _pause(started, seconds, what)
        await asyncio.sleep(pause)


def wait_until(
    condition: Callable[[], object],
    *,
    seconds: float = SECONDS_MAX,
    what: str = "the condition",
) -> None:
    """Look until ``condition`` holds."""
    started = time.monotonic()
    while not condition():
        time.sleep(_pause(started, seconds, what))


def _pause(started: float, seconds: float, what: str) -> float:
    waited = time.monotonic() - started
    assert waited < seconds, f"{what} did not hold within {seconds:g} s"
    return min(max(PAUSE_SECONDS, waited * PAUSE_SHARE), PAUSE_SECONDS_MAX)
