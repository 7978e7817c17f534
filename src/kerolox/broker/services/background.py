"""Tasks beside the requests: periodic ones, and work that outlives its request."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine

from kerolox.tasks import end_tasks

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """All of one broker; :meth:`stop` ends them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[object, None, None]) -> None:
        """Run something that outlives its request. What it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def repeat(
        self, seconds: float, work: Callable[[], Awaitable[object]], *, first: float | None = None
    ) -> None:
        """Do something again and again; what it raises is logged. ``seconds``: the pause before
        each run; ``first``: that before the first one; None: the same.
        """
        pauses = itertools.chain((seconds if first is None else first,), itertools.repeat(seconds))
        self.run(_repeat(lambda: asyncio.sleep(next(pauses)), work, seconds))

    def follow(
        self,
        pause: Callable[[], Awaitable[object]],
        work: Callable[[], Awaitable[object]],
        *,
        again_seconds: float,
    ) -> None:
        """As :meth:`repeat`, whenever ``pause`` ends; ``again_seconds`` after what was raised."""
        self.run(_repeat(pause, work, again_seconds))

    async def stop(self) -> None:
        """Cancel all and wait until they have ended."""
        await end_tasks(*self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("background work failed", exc_info=task.exception())


async def _repeat(
    pause: Callable[[], Awaitable[object]],
    work: Callable[[], Awaitable[object]],
    again_seconds: float,
) -> None:
    wait = pause
    while True:
        await wait()
        wait = pause
        try:
            await work()
        except Exception as error:
            if isinstance(error, OSError):
                _log.error("%s; tried again in %.1f s", error, again_seconds)
            else:
                _log.exception("background work failed; tried again in %.1f s", again_seconds)
            wait = functools.partial(asyncio.sleep, again_seconds)
