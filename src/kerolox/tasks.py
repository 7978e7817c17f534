"""Tasks of asyncio whose result nobody wants any more."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_tasks(*tasks: asyncio.Future[Any] | None, seconds_max: float | None = None) -> None:
    """Cancel tasks and wait until they have ended, so long at most. None stands for no task."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    if given:
        await asyncio.wait(given, timeout=seconds_max)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Called when a task is done: those who waited for it may be gone, so an error of it is no
    surprise."""
    if not task.cancelled():
        task.exception()
