"""Requests that wait until their connection has capacity for them: first come, first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from kerolox.errors import ClientError

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.core.open_calls import Waiter


class SlowPathNeededError(ClientError):
    """A send that waited for capacity can't be written by a codec; it takes the slow path."""


WriteSend = Callable[[], bool]
"""Writes a send that waited for capacity; False: it is not for the fast path."""


class Queued:
    """A request that is encoded when it is its turn. Its waiter is handed its response, or, if it
    is one-way, itself when it is written."""

    __slots__ = ("command", "deadline", "waiter", "what", "written_at")

    def __init__(
        self, waiter: Waiter[RemotingCommand], deadline: float, what: str, command: RemotingCommand
    ) -> None:
        self.waiter: Waiter[RemotingCommand] = waiter
        self.deadline: float = deadline
        self.what: str = what
        self.command: RemotingCommand = command
        self.written_at: float | None = None
        """When it was written."""


class QueuedSend:
    """A send of a codec, or a batch. Its waiter is notified when it is written."""

    __slots__ = ("deadline", "waiter", "what", "write")

    def __init__(self, waiter: Waiter[None], deadline: float, what: str, write: WriteSend) -> None:
        self.waiter: Waiter[None] = waiter
        self.deadline: float = deadline
        self.what: str = what
        self.write: WriteSend = write


class RequestQueue:
    """Those that wait, by opaque, in the order in which they came."""

    __slots__ = ("_arm", "armed_at", "entries")

    def __init__(self, arm: Callable[[float], object]) -> None:
        """``arm``: called with a deadline that is earlier than ``armed_at``."""
        self._arm = arm
        self.entries: OrderedDict[int, Queued | QueuedSend] = OrderedDict()
        self.armed_at: float = inf
        """When the timer of the deadlines fires; infinite: there is none."""

    def __len__(self) -> int:
        return len(self.entries)

    def join(self, opaque: int, queued: Queued | QueuedSend) -> None:
        """Wait behind all others."""
        self.entries[opaque] = queued
        if queued.deadline < self.armed_at:
            self._arm(queued.deadline)

    def expire(self, now: float) -> tuple[list[Queued | QueuedSend], float]:
        """Take out those whose time is over; with the earliest deadline of the others."""
        entries = self.entries
        overdue = [opaque for opaque, queued in entries.items() if queued.deadline <= now]
        taken = [entries.pop(opaque) for opaque in overdue]
        return taken, min((queued.deadline for queued in entries.values()), default=inf)

    def take_open(self) -> list[Queued | QueuedSend]:
        """Take out all of them."""
        taken = list(self.entries.values())
        self.entries.clear()
        return taken
