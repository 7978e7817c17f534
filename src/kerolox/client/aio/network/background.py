"""Tasks that come again after an interval, or once after a pause."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox.client.core.failures import note_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.core.failures import FailureCallback

_log = logging.getLogger(__name__)


class PeriodicTasks:
    """Periodic tasks of one client; they end with :meth:`stop`."""

    def __init__(self, on_failure: FailureCallback | None = None) -> None:
        """``on_failure``: told of what fails."""
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def every(
        self,
        interval_ms: int,
        action: Callable[[], Awaitable[None]],
        what: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        """Run ``action`` every ``interval_ms``; a failure is logged and the loop goes on."""

        async def loop() -> None:
            await asyncio.sleep((interval_ms if first_ms is None else first_ms) / 1000)
            while True:
                await self._run(action, what)
                await asyncio.sleep(interval_ms / 1000)

        self.start(loop())

    def once(self, after_ms: int, action: Callable[[], Awaitable[None]], what: str) -> None:
        """Run ``action`` after a pause; a failure is logged."""

        async def wait() -> None:
            await asyncio.sleep(after_ms / 1000)
            await self._run(action, what)

        self.start(wait())

    def start(self, coroutine: Awaitable[None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all but the one that calls; those that were cancelled."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """Cancel all and wait until they are gone."""
        await asyncio.gather(*self.cancel(), return_exceptions=True)

    async def _run(self, action: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await action()
        except Exception as error:
            note_failure(self._on_failure, _log, f"{what} failed", error)
