"""What a process does right now, for operators who ask a consumer (``jstack``)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

CHARACTERS_MAX = 256 * 1024
"""Of all stacks together."""
TASKS_MAX = 1_000
FRAMES_MAX = 64
"""Of one stack, the innermost."""


def asked_stacks(command: RemotingCommand) -> str:
    """The stacks, if a request for what a consumer does asks for them; else nothing."""
    is_asked = command.ext_fields.get("jstackEnable", "").lower() == "true"
    return stacks_text() if is_asked else ""


def stacks_text() -> str:
    """The stacks of all threads and of the running loop's tasks, innermost first, as RocketMQ's
    clients write them (``UtilAll.jstack``): a line for each frame, begun by the thread's name. They
    name functions, files and lines, and no values.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, top in sys._current_frames().items():
        name = names.get(ident, "?")
        lines.append(f"{name:40}TID: {ident} STATE: RUNNABLE")
        lines += _lines(name, _callers(top))
    for task in islice(asyncio.all_tasks(), TASKS_MAX):
        name = task.get_name()
        lines.append(f"{name:40}TID: 0 STATE: {'RUNNABLE' if task.done() else 'WAITING'}")
        frames = deque(_awaited(task.get_coro()), FRAMES_MAX)
        lines += _lines(name, reversed(frames))
    return "\n".join(lines)[:CHARACTERS_MAX]


def _lines(name: str, frames: Iterator[tuple[FrameType, int]]) -> list[str]:
    lines = []
    for frame, number in islice(frames, FRAMES_MAX):
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        lines.append(f"{name:40}{module}.{code.co_qualname}({code.co_filename}:{number})")
    return [*lines, ""]


def _callers(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _awaited(coroutine: object) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine that waits, and of those that it waits for."""
    while coroutine is not None:
        for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if isinstance(frame := getattr(coroutine, f"{kind}_frame", None), FrameType):
                yield frame, frame.f_lineno
                coroutine = getattr(coroutine, inner, None)
                break
        else:
            return
