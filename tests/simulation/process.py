"""A simulated process: its name, host and clock, and whether it lives."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import TypeVar

EPOCH_SECONDS = 1_700_000_000
"""What a wall clock shows when virtual time is 0."""

_Result = TypeVar("_Result")

_CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class ProcessClock:
    """The clocks of one process."""

    def __init__(self, virtual: Callable[[], float], offset_seconds: float = 0.0) -> None:
        """``virtual`` gives the loop's time."""
        self.virtual = virtual
        self.offset_seconds = offset_seconds
        """How far the wall clock is ahead of the others; jumps when it is set."""

    def monotonic_ns(self) -> int:
        """Never jumps."""
        return round(self.virtual() * 1e9)

    def time_ns(self) -> int:
        """The wall clock, since the epoch."""
        return round((self.virtual() + self.offset_seconds) * 1e9) + EPOCH_SECONDS * 1_000_000_000


class Process:
    """One process of the cluster. A restart makes another one with the same name and host."""

    def __init__(
        self, name: str, host: str, virtual: Callable[[], float], seed: int, pid: int = 1
    ) -> None:
        """It is alive and runs."""
        self.name = name
        self.host = host
        self.pid = pid
        self.random = random.Random(seed)
        self.clock = ProcessClock(virtual)
        self.is_alive = True
        self.is_paused = False
        self.stalled_until = 0.0
        """Virtual time before which nothing of it runs."""
        self.on_change: Callable[[Process], None] = lambda process: None
        """Told, the loop, when it was paused, resumed, stalled or killed."""
        self._virtual = virtual
        self._death: asyncio.Future[None] | None = None
        self.context = contextvars.Context()
        self.context.run(_CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def run(self, function: Callable[..., _Result], *args: object) -> _Result:
        """Call a function as this process."""
        return self.context.copy().run(function, *args)

    def stall(self, seconds: float) -> None:
        """Do nothing for so long, from when this step ends."""
        self.stalled_until = max(self.stalled_until, self._virtual()) + seconds
        self.on_change(self)

    def pause(self) -> None:
        """Do nothing until :meth:`resume` (SIGSTOP)."""
        self.is_paused = True
        self.on_change(self)

    def resume(self) -> None:
        """Go on with what waits (SIGCONT)."""
        self.is_paused = False
        self.on_change(self)

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.is_alive = False
        if self._death is not None and not self._death.done():
            self._death.set_result(None)
        self.on_change(self)

    def death(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done when it is dead."""
        if self._death is None:
            self._death = loop.create_future()
            if not self.is_alive:
                self._death.set_result(None)
        return self._death

    def may_run(self, now: float) -> bool:
        """Whether its callbacks run at this virtual time."""
        return self.is_alive and not self.is_paused and now >= self.stalled_until


current = _CURRENT.get
"""The process whose code runs now; None: the test's own."""
