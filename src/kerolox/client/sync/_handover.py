"""Calls that threads hand to a loop without a task each: sends.

Whatever threads hand over between two looks of the loop costs one wake-up of it. A call begins in
the loop, in its caller's context, and ends with a future that the loop completes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Generic, Protocol, TypeVar

from kerolox.errors import ClientClosedError

STARTED_AT_ONCE_MAX = 1_000
"""Calls that begin in one turn of the loop."""

_Result = TypeVar("_Result")


class Handed(Protocol):
    """A call on its way."""

    def start(self) -> None:
        """In the loop: begin."""

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""


class Handover:
    """The calls that wait for one loop to begin them."""

    def __init__(self) -> None:
        self._queue: deque[Handed] = deque()
        self._is_waking = False

    def put(self, call: Handed, loop: asyncio.AbstractEventLoop) -> None:
        """In the caller's thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        self._queue.append(call)
        # Appended before the look: the loop sees the call, or is woken, or both.
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon_threadsafe(self._start, loop, context=Context())

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_waking = False
        queue = self._queue
        for _ in range(STARTED_AT_ONCE_MAX):
            if not queue:
                return
            queue.popleft().start()
        self._is_waking = True
        loop.call_soon(self._start, loop)


class WaitedCall(Generic[_Result]):
    """A call whose thread waits on a lock, which is cheap."""

    __slots__ = ("_begin", "_context", "_done", "_error", "_future", "_is_ended", "_result")

    def __init__(self, begin: Callable[[], asyncio.Future[_Result]]) -> None:
        self._begin = begin
        self._context = copy_context()
        self._done = threading.Lock()
        self._done.acquire()
        self._is_ended = False
        self._future: asyncio.Future[_Result] | None = None
        self._result: _Result | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """In the loop: begin."""
        if self._is_ended:
            return
        try:
            self._future = future = self._context.run(self._begin)
        except Exception as error:
            self._fail(error)
        else:
            future.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[_Result]) -> None:
        if future.cancelled():
            self.end()
            return
        error = future.exception()
        if error is not None:
            self._fail(error)
        elif not self._is_ended:
            self._result = future.result()
            self._is_ended = True
            self._done.release()

    def _fail(self, error: BaseException) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._done.release()

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""
        self._fail(ClientClosedError("the client was closed during the call"))

    def cancel(self) -> None:
        """In the loop: the caller gave up."""
        if self._future is not None:
            self._future.cancel()
        self._is_ended = True

    def wait(self, loop: asyncio.AbstractEventLoop) -> _Result:
        """In the caller's thread: the result, or the error."""
        try:
            self._done.acquire()
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


class SubmittedCall(Generic[_Result]):
    """A call with a future for any thread."""

    __slots__ = ("_begin", "_context", "_forget", "future")

    def __init__(
        self,
        begin: Callable[[], asyncio.Future[_Result]],
        forget: Callable[[SubmittedCall[_Result]], None],
    ) -> None:
        """``forget`` is called with the call, in the loop, when it is over."""
        self._begin = begin
        self._context = copy_context()
        self._forget = forget
        self.future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def start(self) -> None:
        """In the loop: begin, unless the future was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            self._forget(self)
            return
        try:
            future = self._context.run(self._begin)
        except Exception as error:
            self._forget(self)
            self.future.set_exception(error)
        else:
            future.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[_Result]) -> None:
        self._forget(self)
        if self.future.done():
            return
        if future.cancelled():
            self.end()
            return
        error = future.exception()
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(future.result())

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""
        if not self.future.done():
            self.future.set_exception(ClientClosedError("the client was closed during the call"))
