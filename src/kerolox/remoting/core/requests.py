"""What one end of a connection has asked of the other, and what ends it without a response.

One timer serves all deadlines: it is armed for the earliest and examines every request when it
fires, which is rare, since most are answered long before. Where they are many it fires seldomer,
so that those that come due one by one cost no more than a tenth of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kerolox.errors import ConnectionLostError, KeroloxError, RequestTimeoutError

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand


ENDED_AT_ONCE_MAX = 200
"""Requests that end with an error in one iteration of the event loop."""

_Ended = TypeVar("_Ended")


class Endings:
    """Ends requests in the order in which they were given, some of them in each iteration.

    When a connection with thousands of open requests is lost, each caller goes on and does
    something. Others have turns in between.
    """

    __slots__ = ("_lots", "_next_iteration", "_start")

    def __init__(self, next_iteration: Callable[[], object]) -> None:
        """``next_iteration``: have :meth:`go_on` called in the next iteration of the event loop."""
        self._next_iteration = next_iteration
        self._lots: list[tuple[Sequence[Any], Callable[[Any], object]]] = []
        self._start = 0
        """How many of the first lot are done."""

    def __len__(self) -> int:
        return sum(len(lot) for lot, _ in self._lots) - self._start

    def add(self, ended: Sequence[_Ended], end: Callable[[_Ended], object]) -> None:
        """Call ``end`` with each of them: as many as may be at once, the others in later
        iterations."""
        if not ended:
            return
        self._lots.append((ended, end))
        if len(self._lots) == 1:
            self.go_on()

    def go_on(self) -> None:
        """An iteration: end some, and ask for another iteration if more are left."""
        left = ENDED_AT_ONCE_MAX
        while self._lots and left:
            lot, end = self._lots[0]
            some = lot[self._start : self._start + left]
            left -= len(some)
            self._start += len(some)
            for each in some:
                end(each)
            if self._start >= len(lot):
                del self._lots[0]
                self._start = 0
        if self._lots:
            self._next_iteration()


_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", contravariant=True)


class Waiter(Protocol[_Answer]):
    """Who waits for a response: a future, or what is called as one. It raises nothing."""

    def done(self) -> bool:
        """Nobody waits any more."""

    def set_result(self, result: _Answer, /) -> None:
        """The response has come."""

    def set_exception(self, error: Exception, /) -> None:
        """It will not come."""


class Answer(Generic[_Result]):
    """A waiter that keeps what it is handed, for who looks himself whether it is there."""

    __slots__ = ("_result", "error")

    def __init__(self) -> None:
        self._result: _Result | None = None
        self.error: Exception | None = None
        """Why it will not come."""

    def done(self) -> bool:
        """It is there, or will never be."""
        return self._result is not None or self.error is not None

    def set_result(self, result: _Result, /) -> None:
        """The response has come."""
        self._result = result

    def set_exception(self, error: Exception, /) -> None:
        """It will not come."""
        self.error = error

    def get(self) -> _Result:
        """The response, or raise why it will not come."""
        if self.error is not None:
            raise self.error
        assert self._result is not None
        return self._result


OpenCall = tuple[Waiter[_Result], float, str]
"""Who waits, until when, and what the request is, for errors."""


class OpenCalls(Generic[_Result]):
    """The table of them. Whoever expires it does so when ``armed_at`` has come."""

    __slots__ = ("_arm", "_calls", "armed_at")

    def __init__(self, arm: Callable[[float], object]) -> None:
        """``arm``: called with a deadline that is earlier than ``armed_at``."""
        self._arm = arm
        self._calls: dict[int, OpenCall[_Result]] = {}
        self.armed_at: float = inf
        """When the timer of the deadlines fires; infinite: there is none."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, opaque: int) -> bool:
        return opaque in self._calls

    @property
    def opaques(self) -> dict[int, OpenCall[_Result]]:
        """Those of the calls that are open, at any time: the keys of this table."""
        return self._calls

    def wait(self, waiter: Waiter[_Result], opaque: int, deadline: float, what: str) -> None:
        """Have the response to a request handed to somebody; ``what`` it is, for errors."""
        self._calls[opaque] = (waiter, deadline, what)
        if deadline < self.armed_at:
            self._arm(deadline)

    def complete(self, opaque: int, response: _Result) -> None:
        """Hand a response to its call; one that nobody waits for (too late) is dropped."""
        call = self._calls.pop(opaque, None)
        if call is not None and not call[0].done():
            call[0].set_result(response)

    def drop(self, opaque: int) -> None:
        """Forget a call whose caller went away."""
        self._calls.pop(opaque, None)

    def waiters(self) -> list[Waiter[_Result]]:
        """Who waits."""
        return [call[0] for call in self._calls.values()]

    def expire(self, now: float) -> tuple[list[OpenCall[_Result]], float]:
        """Take out those whose time is over; with the earliest deadline of the others."""
        overdue = [opaque for opaque, call in self._calls.items() if call[1] <= now]
        taken = [self._calls.pop(opaque) for opaque in overdue]
        return taken, min((call[1] for call in self._calls.values()), default=inf)

    def take_open(self) -> list[OpenCall[_Result]]:
        """Take out all of them."""
        taken = list(self._calls.values())
        self._calls.clear()
        return taken


OVERDUE = "no response in time to {}; it is stopped, overloaded or out of reach"

CHECK_SECONDS_MIN, CHECK_SECONDS_PER_CALL = 0.01, 1e-6
"""How long at least between two checks of the deadlines: all in all, and for each request."""

MakeError = Callable[[str], KeroloxError]
"""Makes the error of a request from what it is."""


class Timed(Protocol):
    """A table of requests with deadlines."""

    armed_at: float

    def __len__(self) -> int: ...


class Requests:
    """The requests of one end. Those of a server to its clients; who pulls has more, and a client
    that sends (:mod:`kerolox.remoting.core.client_requests`)."""

    __slots__ = ("_arm", "_endings", "_tables", "calls")

    def __init__(
        self, arm: Callable[[float], object], next_iteration: Callable[[], object]
    ) -> None:
        """Nothing is asked yet.

        ``arm`` is called with a deadline that is earlier than all: ask :meth:`next_check` when the
        timer is to fire, which calls :meth:`expire`. It replaces the one before. ``next_iteration``
        has :meth:`go_on` called in the next iteration of the event loop.
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
        self.end_all(lost_while(remote_address, reason))

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


def lost_while(remote_address: str, reason: str) -> MakeError:
    """What makes the errors of requests whose connection is gone."""
    return lambda what: ConnectionLostError(
        f"connection to {remote_address} closed{reason} during {what}"
    )


def late(what: str) -> KeroloxError:
    """The error of a request without a response in time."""
    return RequestTimeoutError(OVERDUE.format(what))
