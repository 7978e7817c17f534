"""Calls that end all at once: those who wait are told in turns, and all of them are."""

from __future__ import annotations

import asyncio

from kerolox.errors import ConnectionLostError
from kerolox.remoting.connection import FAILED_AT_ONCE_MAX, OpenCalls


async def test_calls_of_a_lost_connection_end_in_turns_and_all_end() -> None:
    loop = asyncio.get_running_loop()
    calls = OpenCalls(loop)
    futures = [calls.open(number, loop.time() + 60, "a call") for number in range(1_000)]
    calls.fail(ConnectionLostError)
    assert sum(future.done() for future in futures) == FAILED_AT_ONCE_MAX
    assert len(calls) == 0
    turns = 0
    while not all(future.done() for future in futures):
        await asyncio.sleep(0)
        turns += 1
    assert turns == 1_000 // FAILED_AT_ONCE_MAX - 1
    assert all(isinstance(future.exception(), ConnectionLostError) for future in futures)
