"""Calls that threads hand to a loop without a task each: sends.

Whatever threads hand over between two checks by the loop costs one wake-up of it. A call begins in
the loop, in its caller's context, and ends with a future that the loop completes.

Where many calls end together, their threads are woken one by the other. Woken all at once, they
would all try to get the interpreter's lock, again every 5 ms, and take it from those that run.
Meanwhile the loop sleeps, and begins together what they hand over next.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context, copy_context
from typing import Generic, Protocol, TypeVar

from kerolox.client.sync._waits import Waited, closed_during_call
from kerolox.errors import SubmitsFullError

STARTED_AT_ONCE_MAX = 1_000
"""Calls that begin in one iteration of the event loop."""

WOKEN_AT_ONCE_MAX = 4
"""Threads that are woken together; more are woken one by the other."""

WAKING_AT_ONCE = 2
"""Threads that are on their way at any time, where one wakes the other."""

POLL_SECONDS = 0.002
"""How often the loop looks after threads that wake each other: it begins what they handed over.
One that was interrupted wakes nobody: then the loop wakes the others."""

_Result = TypeVar("_Result")


class Handed(Protocol):
    """A call on its way."""

    def start(self) -> None:
        """In the loop: begin."""

    def end(self) -> None:
        """In the loop's thread: nothing will run it any more."""


class Waking(Protocol):
    """A thread that waits."""

    def wake(self) -> None:
        """Let it go on; once."""


class Handover:
    """The calls that wait for one loop to begin them, and those whose threads are to be woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: Collection[object] = ()) -> None:
        """``calls``: all that are open, at any time."""
        self._loop = loop
        self._calls = calls
        self._queue: deque[Handed] = deque()
        self._is_waking = False
        """The loop will examine the queue, whoever else says so."""
        self._context = Context()
        self._ended: deque[Waking] = deque()
        self._is_over = False
        self._wakes_soon = False
        self._is_chain = False
        """Threads wake each other; the loop looks after them."""
        self._has_moved = False
        self._poll_handle: asyncio.TimerHandle | None = None

    def put(self, call: Handed) -> None:
        """In the caller's thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        self._queue.append(call)
        # Appended before the check: the loop sees the call, or is woken, or both.
        if not self._is_waking:
            self._wake_loop()

    def _wake_loop(self) -> None:
        self._is_waking = True
        self._loop.call_soon_threadsafe(self._start, context=self._context)

    def _start(self) -> None:
        if not self._is_chain:
            self._is_waking = False
        queue = self._queue
        for _ in range(STARTED_AT_ONCE_MAX):
            if not queue:
                return
            queue.popleft().start()
        self._is_waking = True
        self._loop.call_soon(self._start, context=self._context)

    # -- waking threads -----------------------------------------------------------------------
    def ended(self, call: Waking) -> None:
        """In the loop's thread: a thread may go on."""
        if self._is_over or len(self._calls) == 1:
            call.wake()
            return
        self._ended.append(call)
        if not self._wakes_soon:
            self._wakes_soon = True
            self._loop.call_soon(self._wake_threads, context=self._context)

    def _wake_threads(self) -> None:
        """In the loop, when all that ended in this iteration is there."""
        self._wakes_soon = False
        if self._is_chain:
            return  # they are woken by those who wake each other already
        if len(self._ended) <= WOKEN_AT_ONCE_MAX:
            self._wake_rest()
            return
        self._is_waking = self._is_chain = True
        if self._poll_handle is None:
            self._poll_later()
        for _ in range(WAKING_AT_ONCE):
            self.woken()

    def woken(self) -> None:
        """In a thread that goes on: let the next one."""
        if not self._is_chain:
            return
        self._has_moved = True
        try:
            following = self._ended.popleft()
        except IndexError:
            self._end_chain()
        else:
            following.wake()

    def _end_chain(self) -> None:
        """In any thread."""
        self._is_chain = False
        # After that: whoever ends now is woken by the loop, or here.
        self._wake_rest()
        self._is_waking = False
        # After that: whoever hands over now wakes the loop itself, or it is done here.
        if self._queue and not self._is_over:
            with contextlib.suppress(RuntimeError):  # it is closed, and has ended all calls
                self._wake_loop()

    def _wake_rest(self) -> None:
        while self._ended:
            try:
                following = self._ended.popleft()
            except IndexError:
                return  # another thread was faster
            following.wake()

    def _poll_later(self) -> None:
        self._poll_handle = self._loop.call_later(POLL_SECONDS, self._poll, context=self._context)

    def _poll(self) -> None:
        self._poll_handle = None
        if not self._is_chain:
            return
        if self._has_moved:
            self._has_moved = False
            self._poll_later()
        else:
            self._end_chain()
        self._start()

    def end(self) -> None:
        """In the loop's thread, when nothing runs there any more."""
        self._is_over = True
        self._is_chain = False
        self._wake_rest()


class WaitedCall(Waited[_Result]):
    """A call whose thread waits."""

    __slots__ = ("_begin", "_context", "_future", "_handover", "_run")

    def __init__(
        self,
        begin: Callable[[], asyncio.Future[_Result]],
        run: Callable[[], Coroutine[object, None, _Result]],
        handover: Handover,
    ) -> None:
        super().__init__()
        self._begin = begin
        self._run = run
        self._handover = handover
        self._context = copy_context()
        self._future: asyncio.Future[_Result] | None = None

    def start(self) -> None:
        """In the loop: begin."""
        if self._is_ended:
            return
        try:
            try:
                future = self._context.run(self._begin)
            except SubmitsFullError:  # that is for those who do not wait
                future = self._context.run(self._begin_task)
        except Exception as error:
            self.fail(error)
        else:
            self._future = future
            future.add_done_callback(self.finish, context=self._context)

    def _begin_task(self) -> asyncio.Future[_Result]:
        return asyncio.ensure_future(self._run())

    def cancel(self) -> None:
        """In the loop: the caller gave up."""
        if self._future is not None:
            self._future.cancel()
        self._is_ended = True

    def _may_go_on(self) -> None:
        self._handover.ended(self)

    def _woken(self) -> None:
        self._handover.woken()


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
            future.add_done_callback(self._finish, context=self._context)

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
            self.future.set_exception(closed_during_call())
