"""Calls of the functions that users give: listeners, local transactions, checks."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, TypeVar

from kerolox.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


async def run_user(
    function: Callable[[_Argument], Awaitable[_Result] | _Result], argument: _Argument
) -> _Result:
    """What the function returns, be it async or plain; a plain one runs here, in the loop. What it
    raises is raised here."""
    result = function(argument)
    return await result if inspect.isawaitable(result) else result


async def call_user(
    function: Callable[[_Argument], Awaitable[_Result] | _Result], argument: _Argument
) -> _Result:
    """As :func:`run_user`, for tasks that go on whatever the function does. CancelledError: the
    calling task itself was cancelled. ClientError: the function raised a CancelledError of its own,
    of a future that was cancelled, say: for the caller that is a failure like any other.
    """
    cancels = _cancels()
    try:
        return await run_user(function, argument)
    except asyncio.CancelledError as error:
        if _cancels() > cancels:
            raise
        raise cancelled_within(function, error) from error


def cancelled_within(function: object, error: asyncio.CancelledError) -> ClientError:
    """The failure of a function that raised a CancelledError of its own."""
    name = getattr(function, "__qualname__", repr(function))
    failure = ClientError(
        f"{name} raised CancelledError, but its caller goes on: something that it waited for"
        " was cancelled; catch that there"
    )
    failure.__cause__ = error
    return failure


def raised_in_thread(error: BaseException) -> Exception:
    """What a function in a thread raised, for who waits for it: SystemExit and the like end no
    thread of ours, and no future takes StopIteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = ClientError(f"listener raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _cancels() -> int:
    """How often the running task was cancelled; libraries that never uncancel leave some."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
