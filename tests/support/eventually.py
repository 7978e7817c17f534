"""Waiting for a condition inside an event loop: a deadline, never a fixed sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]

SECONDS_MAX = 10.0


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until ``condition`` holds."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - nothing sets an event for us
            await asyncio.sleep(0.001)
