"""How a blocking client runs its asyncio client: an event loop in a thread of its own.

Each blocking client owns one :class:`Portal`. ``run`` hands a coroutine to the loop and waits for
its result; many threads may do so at the same time. Listeners are plain functions and run in a
bounded number of daemon threads, so a listener that never returns can't keep the program alive.
Stopping is bounded: tasks are cancelled, the loop ends, the thread is waited for.

anyio's portal does the same at twice the CPU of a blocking send: 176 to 284 us against 90 to 134.
Each of its calls has a future, a cancel scope and a context of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import inspect
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar, cast

from kerolox import owners
from kerolox.client import threads
from kerolox.client.aio.consumers.push.threaded import InThread
from kerolox.client.aio.user_code import raised_in_thread
from kerolox.client.core.checking import not_callable
from kerolox.client.core.life import CLOSE_SECONDS_MAX
from kerolox.client.sync._handover import Handed, Handover, SubmittedCall, WaitedCall
from kerolox.client.sync._waits import Ended, TaskCall
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from kerolox.tasks import end_tasks

STOP_SECONDS_MAX = 5.0
"""How long ``stop`` waits for the loop's thread."""

LISTENER_STOP_SECONDS_MAX = 1.0
"""How long ``stop`` waits for listener threads; one whose listener never returns is left."""

_Result = TypeVar("_Result")
_Argument = TypeVar("_Argument")


class _PortalCalls:
    """The calls that are in a loop, or on their way into it. Each ends, if only with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[Ended] = set()
        self._are_over = False
        self.handover = Handover(loop, self._open)

    def hand_over(self, call: Handed) -> bool:
        """As :meth:`begin`, together with what other threads hand over."""
        self._open.add(call)
        if not self._are_over:
            with contextlib.suppress(RuntimeError):  # it is closed
                self.handover.put(call)
                return True
        self._open.discard(call)
        return False

    def begin(self, call: TaskCall[Any]) -> bool:
        """In the caller's thread: False when the loop has ended."""
        # Added before the check: a call is seen by `end`, or sees it, or both.
        self._open.add(call)
        if not self._are_over:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(call.start)
                return True
        self._open.discard(call)
        return False

    def done(self, call: Ended) -> None:
        """It has its result."""
        self._open.discard(call)

    def end(self) -> None:
        """In the loop's thread, when nothing runs there any more."""
        self._are_over = True
        self.handover.end()
        for call in list(self._open):
            call.end()


class _Threads:
    """At most so many daemon threads that run listeners."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, action: Callable[[], None]) -> None:
        """Called in the loop's thread only. Runs ``action`` when a thread is free."""
        if self._idle == 0 and len(self._threads) < self._threads_max:
            name = f"{self._name}-listener-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                threads.start(thread, self._name)
            except ClientError:
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
        else:
            self._idle = max(self._idle - 1, 0)
        self._work.put(action)

    def finished(self) -> None:
        """Called in the loop's thread: an action ended."""
        self._idle += 1

    def _run(self) -> None:
        while (action := self._work.get()) is not None:
            action()

    def stop(self, deadline: float) -> None:
        """End the threads as they become free; wait a little for those that are, but not beyond
        the deadline (``time.monotonic()``)."""
        for _ in self._threads:
            self._work.put(None)
        deadline = min(deadline, time.monotonic() + LISTENER_STOP_SECONDS_MAX)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))


class Portal:
    """The event loop, its thread and the listener threads of one blocking client."""

    def __init__(self, name: str, *, of: Portal | None = None) -> None:
        """Nothing is started yet.

        Args:
            name: that of the threads.
            of: another one whose loop this one uses, with listener threads of its own.
        """
        self._name = name
        self._of = of
        self._users: weakref.WeakSet[Portal] = weakref.WeakSet()
        """Those that use this one's loop."""
        self._joining = threading.Lock()
        self.threads_max = 1
        """Most listeners that run at the same time; counts at :meth:`open`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._threads: _Threads | None = None
        self._calls: _PortalCalls = None  # type: ignore[assignment]  # until opened
        self._was_shut = False
        self._finalizer: weakref.finalize[..., Portal] | None = None
        self._changing = threading.Lock()
        self._made_in = owners.generation()

    @property
    def is_open(self) -> bool:
        """The loop runs."""
        return self._loop is not None

    def open(self, start: Callable[[], Coroutine[object, None, _Result]]) -> _Result:
        """Start the loop, then run the client's start; when that fails the loop ends again."""
        self._check_process()
        with self._changing:
            if self._loop is None:
                if self._of is None:
                    self._begin()
                else:
                    self._join(self._of)
                self._threads = _Threads(self._name, self.threads_max)
                owners.watch(self)
        try:
            return self.run(start())
        except BaseException:
            self._stop()
            raise

    def _begin(self) -> None:
        loop = _new_loop()
        self._calls = _PortalCalls(loop)
        pool = threads.Pool(self._name)
        threads.use_pool(loop, pool)
        thread = threading.Thread(
            target=_run_loop, args=(loop, self._calls, pool), name=f"{self._name}-loop", daemon=True
        )
        try:
            threads.start(thread, self._name)
        except ClientError:
            loop.close()
            raise
        self._thread = thread
        self._finalizer = weakref.finalize(self, _end, loop, thread)
        # `_end_all` ends it, behind the program's own `atexit` functions, which may still use it.
        self._finalizer.atexit = False
        _running[thread] = loop
        self._loop = loop

    def _join(self, other: Portal) -> None:
        if other._loop is None:
            raise ClientClosedError(f"the connection that made this {self._name} is not open")
        with other._joining:
            other._users.add(self)
        self._calls, self._thread, self._loop = other._calls, other._thread, other._loop

    def shut(self, close: Callable[[], Coroutine[object, None, None]]) -> None:
        """Run the client's close, then end the loop. Idempotent.

        Threads that call it at the same time wait for the same close. An interrupt ends the wait,
        but not the close.
        """
        if self._loop is None:
            # Not started, or of a parent: the client only has to remember that it is closed.
            coroutine = close()
            with contextlib.suppress(StopIteration):
                coroutine.send(None)
            coroutine.close()
            return
        self._was_shut = True
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        try:
            # It runs in the caller's context, which tells the client whether that is a listener.
            self.run(close())
        except ClientClosedError:
            pass  # another thread was faster
        except Exception:
            self._stop(deadline)
            raise
        self._stop(deadline)

    def run(self, coroutine: Coroutine[object, None, _Result]) -> _Result:
        """Run a coroutine in the loop and wait for its result or error.

        Raises:
            ClientClosedError: the client is not running.
            ClientError: called from the loop's own thread, where waiting would never end; or in
                a forked child, which does not have that thread.
        """
        calls = self._calls
        try:
            loop = self._running()
        except BaseException:
            coroutine.close()
            raise
        call = TaskCall(coroutine)
        if not calls.begin(call):
            coroutine.close()
            raise ClientClosedError(f"{self._name} was closed by another thread")
        try:
            return call.wait(loop)
        finally:
            calls.done(call)

    def settle(
        self,
        begin: Callable[[], asyncio.Future[_Result]],
        run: Callable[[], Coroutine[object, None, _Result]],
    ) -> _Result:
        """Begin in the loop what needs no task, and wait for it. Errors as those of :meth:`run`.

        ``run`` does the same in a task, when so much is submitted that ``begin`` takes no more.
        """
        calls = self._calls
        loop = self._running()
        call = WaitedCall(begin, run, calls.handover)
        if not calls.hand_over(call):
            raise ClientClosedError(f"{self._name} was closed by another thread")
        try:
            return call.wait(loop)
        finally:
            calls.done(call)

    def submit(
        self, begin: Callable[[], asyncio.Future[_Result]]
    ) -> concurrent.futures.Future[_Result]:
        """As :meth:`settle`, without waiting."""
        calls = self._calls
        self._running()
        call = SubmittedCall(begin, calls.done)
        if not calls.hand_over(call):
            raise ClientClosedError(f"{self._name} was closed by another thread")
        return call.future

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, for a call of another thread."""
        loop = self._loop
        if loop is None:
            self._check_process()
            raise ClientClosedError(
                f"{self._name} is not running; call start(), or use it in a with statement"
            )
        if threading.current_thread() is self._thread:
            raise ClientError(
                f"{self._name} can't be used in its own event loop; use kerolox.client there"
            )
        if sys.is_finalizing():  # the loop's thread runs no more
            raise ClientClosedError(threads.ending(self._name))
        return loop

    def next(self, following: Callable[[], Coroutine[object, None, _Result]]) -> _Result:
        """The next item of an iteration, which ends when the client is closed.

        Raises:
            StopIteration: it is closed.
            ClientClosedError: it was never started.
        """
        try:
            return self.run(following())
        except StopAsyncIteration:
            raise StopIteration from None
        except ClientClosedError:
            if self._was_shut:
                raise StopIteration from None
            raise

    def __reduce__(self) -> str:
        raise TypeError(owners.not_pickled(self._name))

    def _inherited(self) -> None:
        """In a forked child: the loop has no thread here, and its pipe is the parent's."""
        self._kept = self._loop, self._thread, self._threads
        self._loop = self._thread = self._threads = None
        _running.clear()
        # A thread of the parent may have had the others.
        self._changing, self._joining = threading.Lock(), threading.Lock()
        if self._finalizer is not None:
            self._finalizer.detach()

    def _check_process(self) -> None:
        if self._made_in != owners.generation():
            raise ClientError(owners.in_child(self._name))

    def call(self, function: Callable[..., _Result], *args: object, **named: object) -> _Result:
        """Call a plain function in the loop, if it runs, and wait for its result."""

        async def call() -> _Result:
            return function(*args, **named)

        if self._loop is None or threading.current_thread() is self._thread:
            return function(*args, **named)
        return self.run(call())

    def read(self, getter: Callable[[], _Result]) -> _Result:
        """What a property says, examined in the loop while it runs: elsewhere the tables behind
        it change during the check."""
        try:
            return self.call(getter)
        except ClientClosedError:
            return getter()

    def iterate(
        self, begin: Callable[[], AsyncIterator[_Result]]
    ) -> Generator[_Result, None, None]:
        """What an asynchronous iterator gives, one by one; each is waited for. It ends with this
        generator's end, or with the portal's."""
        over = object()

        async def first() -> AsyncIterator[_Result]:
            return begin()

        async def step() -> _Result | object:
            return await anext(source, over)

        async def end() -> None:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

        source = self.run(first())
        try:
            while (item := self.run(step())) is not over:
                yield cast(_Result, item)
        finally:
            with contextlib.suppress(ClientClosedError):
                self.run(end())

    def listener(
        self,
        function: Callable[[_Argument], Awaitable[_Result] | _Result],
        name: str = "listener",
    ) -> Callable[[_Argument], Awaitable[_Result]]:
        """The asyncio listener that runs a plain one in a listener thread; what an async one
        returns there is awaited in the loop.

        Raises:
            ConfigError: it can't be called with one argument.
        """
        if (fault := not_callable(function)) is not None:
            raise ConfigError(f"{name} {fault}")

        async def listen(argument: _Argument) -> _Result:
            assert self._threads is not None
            listeners = self._threads
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Awaitable[_Result] | _Result] = loop.create_future()

            def finish(
                result: Awaitable[_Result] | _Result | None, error: BaseException | None
            ) -> None:
                listeners.finished()
                if future.done():
                    return
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)  # type: ignore[arg-type]  # its own type

            def act() -> None:
                result: Awaitable[_Result] | _Result | None = None
                failure: BaseException | None = None
                try:
                    result = function(argument)
                except BaseException as error:
                    failure = raised_in_thread(error)
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(finish, result, failure)

            listeners.submit(partial(copy_context().run, act))
            result = await future
            return await result if inspect.isawaitable(result) else result

        return _ThreadFunction(function, listen, self)

    def in_thread(self, action: Callable[[], None]) -> None:
        """Called in the loop's thread only. Runs ``action`` when a listener thread is free."""
        assert self._threads is not None
        self._threads.submit(action)

    def finished_in_thread(self) -> None:
        """Called in the loop's thread only: such an action has ended."""
        if self._threads is not None:
            self._threads.finished()

    def _stop(self, deadline: float = math.inf) -> None:
        with self._joining:
            users = list(self._users)
        for user in users:
            user._stop(deadline)
        with self._changing:
            if self._threads is not None:
                self._threads.stop(deadline)
            self._loop = self._thread = self._threads = None
            finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer()


class _ThreadFunction(InThread, Generic[_Argument, _Result]):
    """The asyncio function that runs a plain one in a thread. A push consumer may have threads run
    many calls of the plain one in a row (``kerolox.client.aio.consumers.push.threaded``)."""

    def __init__(
        self,
        function: Callable[[_Argument], Awaitable[_Result] | _Result],
        listen: Callable[[_Argument], Awaitable[_Result]],
        portal: Portal,
    ) -> None:
        self.function = function
        self._listen = listen
        self._portal = portal
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, argument: _Argument) -> Awaitable[_Result]:
        return self._listen(argument)

    @property
    def threads_max(self) -> int:
        return self._portal.threads_max

    def submit(self, action: Callable[[], None]) -> None:
        self._portal.in_thread(action)

    def finished(self) -> None:
        self._portal.finished_in_thread()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except (ImportError, RuntimeError):  # it can't be imported once the main thread has ended
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_running: weakref.WeakKeyDictionary[threading.Thread, asyncio.AbstractEventLoop] = (
    weakref.WeakKeyDictionary()
)
"""The loops of this process that run, by their threads."""


@atexit.register  # before a program can register a close of its own, so it comes behind that
def _end_all() -> None:
    for thread, loop in list(_running.items()):
        _end(loop, thread)


def _run_loop(loop: asyncio.AbstractEventLoop, calls: _PortalCalls, pool: threads.Pool) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        loop.run_until_complete(end_tasks(*tasks, seconds_max=STOP_SECONDS_MAX / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        calls.end()
        pool.stop()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended already
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(STOP_SECONDS_MAX)
