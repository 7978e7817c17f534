"""Plain functions that asyncio clients call as listeners: they run in threads of a portal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from kerolox.client.aio.consumers.push.threaded import InThread

_Result = TypeVar("_Result")
_Argument = TypeVar("_Argument")


class ListenerThreads(Protocol):
    """The threads of one blocking client that run listeners."""

    @property
    def threads_max(self) -> int:
        """Most of them."""

    def in_thread(self, action: Callable[[], None]) -> None:
        """In the loop: have a thread run an action."""

    def finished_in_thread(self) -> None:
        """In the loop: an action has ended."""


class ThreadFunction(InThread, Generic[_Argument, _Result]):
    """The asyncio function that runs a plain one in a thread. A push consumer may have threads run
    many calls of the plain one in a row (``kerolox.client.aio.consumers.push.threaded``)."""

    def __init__(
        self,
        function: Callable[[_Argument], Awaitable[_Result] | _Result],
        listen: Callable[[_Argument], Awaitable[_Result]],
        threads: ListenerThreads,
    ) -> None:
        self.function = function
        self._listen = listen
        self._threads = threads
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, argument: _Argument) -> Awaitable[_Result]:
        """Call the plain one in a thread."""
        return self._listen(argument)

    @property
    def threads_max(self) -> int:
        """Most threads."""
        return self._threads.threads_max

    def submit(self, action: Callable[[], None]) -> None:
        """In the loop: have a thread run an action."""
        self._threads.in_thread(action)

    def finished(self) -> None:
        """In the loop: an action has ended."""
        self._threads.finished_in_thread()
