"""Waiting for a condition: a deadline, never a fixed sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

__all__ = ["SECONDS_MAX", "until", "wait_until"]

SECONDS_MAX = 60.0
"""A deadline for whatever comes in the end; no judgement of how soon it does."""

PAUSE_SECONDS = 0.002
"""Between two looks."""


async def until(
    condition: Callable[[], object],
    *,
    seconds: float = SECONDS_MAX,
    what: str = "the condition",
) -> None:
    """Let the loop run until ``condition`` holds; it may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not (await met if inspect.isawaitable(met := condition()) else met):
        assert time.monotonic() < deadline, f"{what} did not hold within {seconds:g} s"
        await asyncio.sleep(PAUSE_SECONDS)


def wait_until(
    condition: Callable[[], object],
    *,
    seconds: float = SECONDS_MAX,
    what: str = "the condition",
) -> None:
    """Look until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not hold within {seconds:g} s"
        time.sleep(PAUSE_SECONDS)
