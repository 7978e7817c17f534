"""What one end of a connection has asked of the other, and what ends it without a response.

One timer serves all deadlines: it is armed for the earliest and examines every request when it
fires, which is rare, since most are answered long before. Where they are many it fires seldomer,
so that those that come due one by one cost no more than a tenth of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from kerolox.errors import ConnectionLostError, KeroloxError, RequestTimeoutError
from kerolox.remoting.core.endings import Endings
from kerolox.remoting.core.open_calls import OpenCall, OpenCalls

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

OVERDUE = "no response in time to {}; it is stopped, overloaded or out of reach"

CHECK_SECONDS_MIN, CHECK_SECONDS_PER_CALL = 0.01, 1e-6
"""How long at least between two checks of the deadlines: all in all, and for each request."""

MakeError = Callable[[str], KeroloxError]
"""Makes the error of a request from what it is."""

_Result = TypeVar("_Result")


class Timed(Protocol):
    """A table of requests with deadlines."""

    armed_at: float

    def __len__(self) -> int: ...


class Requests:
    """The requests of one end. Those of a server to its clients; who pulls has more
    (:mod:`kerolox.remoting.core.pulls`), and a client that sends
    (:mod:`kerolox.remoting.core.client_requests`)."""

    __slots__ = ("_arm", "_endings", "_tables", "calls")

    def __init__(
        self, arm: Callable[[float], object], next_iteration: Callable[[], object]
    ) -> None:
        """Nothing is asked yet.

        Args:
            arm: called with a deadline that is earlier than all: ask :meth:`next_check` when the
                timer is to fire, which calls :meth:`expire`. It replaces the one before.
            next_iteration: have :meth:`go_on` called in the next iteration of the event loop.
        """
        self._arm = arm
        self._endings = Endings(next_iteration)
        self.calls: OpenCalls[RemotingCommand] = OpenCalls(arm)
        """Requests that wait for a response."""
        self._tables: tuple[Timed, ...] = (self.calls,)

    def complete(self, response: RemotingCommand) -> None:
        """A response has come; one that nobody waits for is dropped."""
        self.calls.complete(response.opaque, response)

    def next_check(self, deadline: float, now: float) -> float:
        """When the timer is to fire that is armed now, the earliest request being due then."""
        when = max(deadline, now + max(CHECK_SECONDS_MIN, self.open_count * CHECK_SECONDS_PER_CALL))
        self._set_armed(when)
        return when

    def expire(self, now: float) -> None:
        """The timer has fired: requests whose time is over end."""
        self._set_armed(inf)
        overdue, earliest = self.calls.expire(now)
        self._end_calls(overdue, late)
        self._rearm(earliest)

    def lost(self, remote_address: str, reason: str) -> None:
        """The connection is gone, and so are all that wait."""

        def lost(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {remote_address} closed{reason} during {what}"
            )

        self.end_all(lost)

    def end_all(self, make_error: MakeError) -> None:
        """All that wait end with such an error."""
        self._set_armed(inf)
        self._end_calls(self.calls.take_open(), make_error)

    @property
    def open_count(self) -> int:
        """How many wait."""
        return sum(map(len, self._tables))

    @property
    def is_ending(self) -> bool:
        """Some end with an error, and go on with :meth:`go_on`."""
        return bool(len(self._endings))

    def go_on(self) -> None:
        """Another iteration: end some more of those that end with an error."""
        self._endings.go_on()

    def _rearm(self, earliest: float) -> None:
        if earliest < self.calls.armed_at:
            self._arm(earliest)

    def _set_armed(self, when: float) -> None:
        for table in self._tables:
            table.armed_at = when

    def _end_calls(self, calls: list[OpenCall[_Result]], make_error: MakeError) -> None:
        def end(call: OpenCall[_Result]) -> None:
            waiter, _deadline, what = call
            if not waiter.done():
                waiter.set_exception(make_error(what))

        self._endings.add(calls, end)


def late(what: str) -> KeroloxError:
    """The error of a request without a response in time."""
    return RequestTimeoutError(OVERDUE.format(what))
