"""Requests that wait for a response, by opaque, each until its own deadline."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar

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
