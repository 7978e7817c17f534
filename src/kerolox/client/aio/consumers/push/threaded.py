"""Calls of plain listeners in threads, handed over many at a time.

A thread takes call after call without the loop between them. It wakes the loop once for all that it
has done until the loop checks. One thread runs as long as it makes progress. When no thread has
begun a call since the last check, their listeners wait, and more threads take part, up to the
bound.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from inspect import isawaitable
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.listening import EachMessage
from kerolox.client.aio.consumers.push.running import RunningListeners, note_call
from kerolox.client.aio.user_code import raised_in_thread
from kerolox.client.core.failures import note_failure
from kerolox.message import MessageExt, note_consume_start

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.core.consuming.ready import Ready
    from kerolox.client.core.failures import FailureCallback

HANDED_OVER_MAX = 256
"""Calls that are handed over and not done with, beside those that may run."""

CHECK_SECONDS = 0.001
"""While calls wait for a thread it is checked so often whether those that run get on."""


_log = logging.getLogger(__name__)


class InThread:
    """A listener that runs in threads of its own; the base of those, since it is asked for with
    each pull, and for a protocol that takes long."""

    function: Callable[..., object]
    """The plain function."""

    @property
    def threads_max(self) -> int:
        """Most threads."""
        raise NotImplementedError

    def submit(self, action: Callable[[], None]) -> None:
        """In the loop: have a thread run an action."""
        raise NotImplementedError

    def finished(self) -> None:
        """In the loop: an action has ended."""
        raise NotImplementedError


Listener = tuple[bool, InThread]
"""Whether a listener takes one message, not a list; and what runs it."""


def in_thread(listener: object, size: int) -> Listener | None:
    """A listener whose calls are of at most so many messages, if it runs in threads."""
    is_one = type(listener) is EachMessage and size == 1
    if type(listener) is EachMessage and is_one:
        listener = listener.listener
    return (is_one, listener) if isinstance(listener, InThread) else None


class ThreadCall:
    """One call of a listener."""

    __slots__ = (
        "argument",
        "assignment",
        "awaited",
        "elapsed_ms",
        "error",
        "function",
        "messages",
        "result",
    )

    def __init__(
        self,
        assignment: Assignment,
        messages: list[MessageExt],
        function: Callable[..., object],
        argument: object,
    ) -> None:
        self.assignment = assignment
        self.messages = messages
        self.function = function
        self.argument = argument
        self.elapsed_ms = -1
        """-1: it did not begin."""
        self.result: object = None
        self.error: Exception | None = None
        self.awaited: concurrent.futures.Future[object] | None = None
        """What the thread waits for, when an async listener goes on in the loop."""


class ThreadedCalls:
    """The calls of one consumer that threads run."""

    def __init__(
        self,
        running: RunningListeners,
        done: Callable[[ThreadCall], Coroutine[object, object, None] | None],
        on_failure: FailureCallback | None = None,
    ) -> None:
        """
        Args:
            running: each call counts there, from when it is handed over until it is done with.
            done: called in the loop with each call that has ended; what it gives is awaited before
                the call is done with.
            on_failure: told of what that raises.
        """
        self._running = running
        self._on_done = done
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._waiting: deque[ThreadCall] = deque()
        self._ended: deque[ThreadCall | None] = deque()
        """None: a thread has stopped to take calls."""
        self._is_waking = False
        """The loop is about to examine what has ended."""
        self._open: set[ThreadCall] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads_of: InThread | None = None
        self._threads = 0
        """Those that take calls."""
        self._started = self._started_before = 0
        """How many calls have begun, and had at the last check."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_over = False

    async def hand_over(self, listener: Listener, entry: Ready[Assignment]) -> None:
        """Have threads run all calls for messages of one pull; waits for capacity."""
        is_one, threads = listener
        self._threads_of = threads
        by_call, most = self._running.by_call, HANDED_OVER_MAX + threads.threads_max
        while entry and not self._is_over:
            if len(self._open) >= most:
                await self._wait_for_capacity()
                continue
            messages = entry.take()
            argument = messages[0] if is_one else messages.copy()
            call = ThreadCall(entry.queue, messages, threads.function, argument)
            by_call[call] = None
            self._open.add(call)
            self._waiting.append(call)
            if self._threads == 0:
                self._check()
            elif self._check_timer is None:
                self._check_soon()

    def stop(self) -> None:
        """Begin no further call."""
        self._is_over = True
        while self._waiting:
            with contextlib.suppress(IndexError):  # a thread was faster
                self._forget(self._waiting.popleft())
        if self._check_timer is not None:
            self._check_timer.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def abandon(self) -> list[asyncio.Task[None]]:
        """What ends now counts no more, and async listeners that still run are cancelled, but for
        those that wait for the close; the tasks that settle what has ended."""
        for call in self._open:
            if call.awaited is not None and not self._running.waits_for_close(call):
                call.awaited.cancel()
        self._on_done = _ignore
        return list(self._tasks)

    async def _wait_for_capacity(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._let_in()
            raise

    def _let_in(self) -> None:
        """Somebody may hand over more."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # -- threads --------------------------------------------------------------------------------
    def _check(self) -> None:
        """Ask for a thread when calls wait and none gets on with them."""
        self._check_timer = None
        listener, started = self._threads_of, self._started
        if not self._waiting or listener is None or self._is_over:
            return
        if not self._threads or started == self._started_before:
            more = min(max(self._threads, 1), listener.threads_max - self._threads)
            for _ in range(min(more, len(self._waiting))):
                listener.submit(self._take_calls)
                self._threads += 1
        self._started_before = started
        if self._threads < listener.threads_max:
            self._check_soon()

    def _check_soon(self) -> None:
        self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _take_calls(self) -> None:
        """In a thread: call after call, until none waits."""
        waiting, context = self._waiting, self._context
        while True:
            try:
                call = waiting.popleft()
            except IndexError:
                break
            self._started += 1
            context.copy().run(self._run, call)
            self._notify(call)
        self._notify(None)

    def _notify(self, call: ThreadCall | None) -> None:
        """In a thread: a call has ended, or no more are taken."""
        self._ended.append(call)
        # Appended before the check: the loop sees it, or is woken, or both.
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._collect, context=self._context)

    def _run(self, call: ThreadCall) -> None:
        """In a thread, and in a context of its own: one call."""
        if self._is_over or call.assignment.process_queue.is_dropped:
            return
        note_call(call)
        start_ms = clock.steady_ms()
        try:
            note_consume_start(call.messages, start_ms)
            result = call.function(call.argument)
            if result is not None and isawaitable(result):
                # What an async one returns is awaited in the loop; this thread is taken meanwhile.
                call.awaited = asyncio.run_coroutine_threadsafe(_result_of(result), self._loop)
                result = call.awaited.result()
            call.result = result
        except BaseException as error:
            call.error = raised_in_thread(error)
        call.elapsed_ms = clock.steady_ms() - start_ms

    # -- what has ended -------------------------------------------------------------------------
    def _collect(self) -> None:
        self._is_waking = False
        ended = self._ended
        for _ in range(len(ended)):
            call = ended.popleft()
            if call is None:
                self._threads -= 1
                if self._threads_of is not None:
                    self._threads_of.finished()
            elif call.elapsed_ms < 0:
                self._forget(call)
            else:
                self._settle(call)
        if self._waiting and self._threads == 0:
            self._check()

    def _settle(self, call: ThreadCall) -> None:
        settling = self._on_done(call)
        if settling is None:
            self._forget(call)
            return
        task = asyncio.ensure_future(settling)
        self._running.by_call[call] = task
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._settled(call, task))

    def _settled(self, call: ThreadCall, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            what = f"consuming of {call.assignment.queue} failed"
            note_failure(self._on_failure, _log, what, error)
        self._forget(call)

    def _forget(self, call: ThreadCall) -> None:
        """It is done with."""
        self._open.discard(call)
        self._running.by_call.pop(call, None)
        self._running.note_end()
        if self._waiters:
            self._let_in()


async def _result_of(result: Awaitable[object]) -> object:
    return await result


def _ignore(call: ThreadCall) -> None:
    """The consumer is closed."""
