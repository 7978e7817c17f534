"""Threads that can be had until the interpreter's very end.

``concurrent.futures`` takes nothing any more once the main thread has ended, though other threads
still run and ``atexit`` functions are still to come. What takes long (a resolver, a compressor)
goes to daemon threads here; where CPython gives no thread, it runs where it is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from kerolox.errors import ClientError

WORKERS_MAX = min(32, (os.cpu_count() or 1) + 4)
"""Threads of one pool; as many as those of asyncio's default executor."""

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def start(thread: threading.Thread, what: str) -> None:
    """Start a thread; ``what`` needs it. ClientError: CPython gives none, at the end of the
    interpreter, or since the machine has no capacity for it.
    """
    if sys.is_finalizing():  # it would never run, and the start would wait for it for ever
        raise ClientError(ending(what))
    try:
        thread.start()
    except RuntimeError as error:
        raise ClientError(f"{what} can't start a thread: {error}") from error


def ending(what: str) -> str:
    """What a thing says that is used when no thread runs any more."""
    return f"{what} can't be used: the interpreter is ending; end its use before, with close()"


class Pool:
    """Daemon threads that run functions, at most :data:`WORKERS_MAX`."""

    def __init__(self, name: str) -> None:
        """No thread is started yet; they are named after ``name``."""
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, function: Callable[[], _Result]) -> concurrent.futures.Future[_Result]:
        """Run a function in a thread; here, when there is no thread and none can be had."""
        future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        action = partial(_run, function, future)
        with self._lock:
            is_here = not self._has_thread()
        if is_here:
            action()
        else:
            self._work.put(action)
        return future

    def _has_thread(self) -> bool:
        """One is idle, or was started, or will come to it."""
        if self._idle > 0:
            self._idle -= 1
            return True
        if self._threads < WORKERS_MAX:
            name = f"{self._name}-worker-{self._threads}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                start(thread, self._name)
            except ClientError:
                return self._threads > 0
            self._threads += 1
        return True

    def _serve(self) -> None:
        while (action := self._work.get()) is not None:
            action()
            del action  # it refers to its result
            with self._lock:
                self._idle += 1

    def stop(self) -> None:
        """End the threads as they become free, without waiting."""
        with self._lock:
            threads, self._threads, self._idle = self._threads, 0, 0
        for _ in range(threads):
            self._work.put(None)


def _run(function: Callable[[], _Result], future: concurrent.futures.Future[_Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def use_pool(loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
    """Have a loop's default executor be this pool: for ``asyncio.to_thread``, for the names that
    the loop resolves. ``set_default_executor`` takes executors of ``concurrent.futures`` only."""
    run_in_executor = loop.run_in_executor

    def run(executor: object, function: Callable[..., object], *args: object) -> object:
        if executor is not None:
            return run_in_executor(executor, function, *args)  # type: ignore[arg-type]
        return asyncio.wrap_future(pool.submit(partial(function, *args)), loop=loop)

    loop.run_in_executor = run  # type: ignore[method-assign, assignment]


async def to_thread(
    function: Callable[_Params, _Result], /, *args: _Params.args, **named: _Params.kwargs
) -> _Result:
    """As ``asyncio.to_thread``, also in a loop whose default executor has ended with the main
    thread: then in a thread of its own, or here when there is none."""
    loop = asyncio.get_running_loop()
    call = partial(copy_context().run, function, *args, **named)
    try:
        future = loop.run_in_executor(None, call)
    except RuntimeError:
        pool = Pool("kerolox")
        ended = pool.submit(call)
        pool.stop()
        return await asyncio.wrap_future(ended)
    return await future
