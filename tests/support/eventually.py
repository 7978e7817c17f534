"""Waiting for a condition inside an event loop: a deadline, never a fixed sleep."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

__all__ = ["until"]

SECONDS_MAX = 10.0


async def until(condition: Callable[[], object], *, seconds: float = SECONDS_MAX) -> None:
    """Let the loop run until ``condition`` holds; it may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while not (await met if inspect.isawaitable(met := condition()) else met):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
