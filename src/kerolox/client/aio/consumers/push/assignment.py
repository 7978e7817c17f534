"""A queue that a push consumer owns, or that it pops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.message import MessageExt, MessageQueue

if TYPE_CHECKING:
    from kerolox.client.core.consuming.ordered.orderly_queue import OrderlyQueue
    from kerolox.client.core.consuming.outcome import Outcome


class PoppedSettling(Protocol):
    """Settles popped messages."""

    def in_time(self, assignment: Assignment, messages: list[MessageExt]) -> list[MessageExt]:
        """Those that nobody else may have got."""

    def done(self, messages: list[MessageExt]) -> None:
        """Messages are done with."""

    async def give_back(self, failed: list[tuple[MessageExt, Outcome]]) -> None:
        """Messages are to come again, or are dead letters."""


@dataclass(slots=True, eq=False)
class Assignment:
    """A queue that we own, or one that we pop."""

    queue: MessageQueue
    next_offset: int
    process_queue: ProcessQueue = field(default_factory=ProcessQueue)
    broker_id: int = 0
    """The node to pull from, as the broker suggested."""
    was_gone: bool = False
    """The broker said that there is no such topic, since the last other answer."""
    capacity: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when messages have left, for a pull loop that waits for capacity."""
    task: asyncio.Task[None] | None = None
    """Pulls it."""
    orderly: OrderlyQueue | None = None
    """Its turns, when it is read in order."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an ordered queue has messages or its lock, or is to be given up."""
    ordered_task: asyncio.Task[None] | None = None
    """Runs the listeners of an ordered queue."""
    finished: list[MessageExt] = field(default_factory=list)
    """What went well and is not removed yet from ``process_queue``."""
    finished_ms: int = 0
    """How long their listeners took in all."""
    pops: PoppedSettling | None = None
    """Settles its messages, when it is popped."""
    is_left: bool = False
    """It is popped no more."""

    async def wait_for_capacity(self, seconds: float) -> None:
        """Wait until messages have left, no longer than that."""
        self.capacity.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.capacity.wait()
        except TimeoutError:
            pass
