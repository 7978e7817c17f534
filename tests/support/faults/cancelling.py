"""Cancels an operation at its n-th await: a loop over n reaches every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

__all__ = ["cancelled_at", "each_await"]


CLIENTS = ("kerolox/client/", "kerolox/remoting/client")
"""Tasks of these are the operation's; a broker in the same loop has others."""


class _Counter:
    """Counts the awaits that really wait, of an operation and of all tasks that it starts."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.target: asyncio.Task[Any] | None = None

    def count(self) -> None:
        self.left -= 1
        if self.left == 0 and self.target is not None:
            self.target.cancel()


class _Counted:
    def __init__(self, inner: Coroutine[Any, Any, Any], counter: _Counter) -> None:
        self.inner = inner
        self.counter = counter

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited = self.inner.send(value) if error is None else self.inner.throw(error)
            except StopIteration as end:
                return end.value
            self.counter.count()
            value = error = None
            try:
                value = yield waited
            except BaseException as thrown:
                error = thrown


async def cancelled_at(at: int, operation: Coroutine[Any, Any, Any]) -> bool:
    """Run an operation of a client as a task and cancel it at its ``at``-th await, those of the
    tasks that it starts included. False: it had ended before, with whatever it raises."""
    loop = asyncio.get_running_loop()
    counter = _Counter(at)

    async def counted(inner: Coroutine[Any, Any, Any]) -> Any:
        return await _Counted(inner, counter)

    def make(loop: asyncio.AbstractEventLoop, inner: Any, **named: Any) -> asyncio.Task[Any]:
        file = inner.cr_code.co_filename
        if inner is not operation and not any(part in file for part in CLIENTS):
            return asyncio.Task(inner, loop=loop, **named)
        task = asyncio.Task(counted(inner), loop=loop, **named)
        # One that is cancelled before its first step would leave a coroutine that never ran.
        task.add_done_callback(lambda _: inner.close())
        return task

    before = loop.get_task_factory()
    loop.set_task_factory(make)
    try:
        counter.target = task = asyncio.ensure_future(operation)
        await asyncio.wait([task])
    finally:
        loop.set_task_factory(before)
        counter.target = None
    if not task.cancelled():
        task.result()
    return counter.left <= 0


async def each_await(
    attempt: Callable[
        [], Awaitable[tuple[Coroutine[Any, Any, Any], Callable[[], Awaitable[None]]]]
    ],
) -> int:
    """Cancel at the first await, at the second and so on, until the operation ends before.

    Args:
        attempt: prepares one time: gives the operation, and what is to be checked after it.

    Returns:
        How many awaits there were.
    """
    at = 0
    while True:
        at += 1
        operation, check = await attempt()
        was_reached = await cancelled_at(at, operation)
        await check()
        if not was_reached:
            return at - 1
