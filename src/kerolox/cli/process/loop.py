"""The event loop of a command, and its end in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from kerolox.cli.output import complain

STOP_SECONDS_MAX = 4.5
"""How long a server may take to stop before the process ends anyway."""

_Result = TypeVar("_Result")


def run(work: Coroutine[object, None, _Result], *, many: bool = True) -> _Result:
    """Run in a new event loop. A thread that does not return from the disk holds up the end for
    ``STOP_SECONDS_MAX`` at most.

    Args:
        work: what to run.
        many: many requests are made or answered. Then the loop is uvloop's, where that is
            installed; for few it costs more time than it saves.
    """
    ending = threading.Timer(STOP_SECONDS_MAX, _end_anyway)
    ending.daemon = True
    try:
        with asyncio.Runner(loop_factory=_loop_factory() if many else None) as runner:
            try:
                return runner.run(work)
            finally:
                ending.start()
    finally:
        ending.cancel()


def _end_anyway() -> None:
    with contextlib.suppress(OSError, ValueError):
        complain(f"kerolox: error: a thread waits for the disk longer than {STOP_SECONDS_MAX} s")
        sys.stdout.flush()
    os._exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
