"""How threads wait for calls in a loop: on a lock each, which is cheap."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Generic, Protocol, TypeVar

from kerolox.errors import ClientClosedError

_Result = TypeVar("_Result")


class Ended(Protocol):
    """A call of any kind."""

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""


def closed_during_call() -> ClientClosedError:
    """What a call ends with when the loop ends before it."""
    return ClientClosedError("the client was closed during the call")


class Waited(Generic[_Result]):
    """A call whose thread waits. The loop ends it once, by its result or an error."""

    __slots__ = ("_done", "_error", "_is_ended", "_result")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._is_ended = False
        self._result: _Result | None = None
        self._error: BaseException | None = None

    def finish(self, future: asyncio.Future[_Result]) -> None:
        """In the loop: it ends as this future has."""
        if future.cancelled():
            self.end()
        elif (error := future.exception()) is not None:
            self.fail(error)
        elif not self._is_ended:
            self._result = future.result()
            self._is_ended = True
            self._may_go_on()

    def fail(self, error: BaseException) -> None:
        """In the loop's thread: it ends with an error, if it has not ended."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._may_go_on()

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""
        if not self._is_ended:
            self.fail(closed_during_call())

    def cancel(self) -> None:
        """In the loop: the caller gave up."""

    def wake(self) -> None:
        """Let its thread go on; once."""
        self._done.release()

    def _may_go_on(self) -> None:
        """In the loop's thread: it has ended."""
        self.wake()

    def _woken(self) -> None:
        """In the caller's thread, before it goes on."""

    def wait(self, loop: asyncio.AbstractEventLoop) -> _Result:
        """In the caller's thread: the result, or the error."""
        try:
            self._done.acquire()
            self._woken()
        except BaseException:  # an interrupt of the caller ends the call too
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self.cancel)
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers to us: no cycle
        return self._result  # type: ignore[return-value]  # set before the lock is released


class TaskCall(Waited[_Result]):
    """One coroutine on its way through the loop."""

    __slots__ = ("_coroutine", "_task")

    def __init__(self, coroutine: Coroutine[object, None, _Result]) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._task: asyncio.Task[_Result] | None = None

    def start(self) -> None:
        """In the loop: run the coroutine as a task."""
        self._task = asyncio.ensure_future(self._coroutine)
        self._task.add_done_callback(self.finish)

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""
        if not self._is_ended and self._task is None:
            self._coroutine.close()
        super().end()

    def cancel(self) -> None:
        """In the loop: the caller gave up."""
        if self._task is not None:
            self._task.cancel()
