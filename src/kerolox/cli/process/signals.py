"""Signals of a server: TERM and INT stop it, HUP reloads, USR1 shows what it does, USR2 nothing.

HUP also comes when a terminal closes. A server that was started from one, and not with ``nohup``,
then stops like after TERM: nobody would see it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator

from kerolox.cli.process.logs import log_stream, write_lines

TASKS_SHOWN_MAX = 500
FRAMES_SHOWN_MAX = 20

_RELOADS = signal.SIGHUP
_STOPS = (signal.SIGTERM, signal.SIGINT)
_DUMPS = signal.SIGUSR1
_HARMLESS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ignore_early_signals() -> None:
    """Until the loop takes them: what stops nothing later must not end a start either."""
    for number in _HARMLESS:
        signal.signal(number, signal.SIG_IGN)


class ServerSignals:
    """Takes the signals of the process while a loop runs; a context manager.

    Attributes:
        stopping: set by TERM and INT. A second one ends the process at once.
        reloading: set by HUP; whoever reloads clears it.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.reloading = asyncio.Event()
        self._terminals = [number for number in range(3) if _is_terminal(number)]

    def __enter__(self) -> ServerSignals:
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(_RELOADS, self._hang_up)
        loop.add_signal_handler(_DUMPS, show_tasks)
        # The stacks of all threads at once, even when the loop does not get to its tasks. A server
        # may run without anything to write to.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.register(_DUMPS, file=log_stream(), all_threads=True, chain=True)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        faulthandler.unregister(_DUMPS)
        for number in (*_STOPS, _RELOADS, _DUMPS):
            loop.remove_signal_handler(number)
        ignore_early_signals()

    def _stop(self) -> None:
        if self.stopping.is_set():
            os._exit(130)
        self.stopping.set()

    def _hang_up(self) -> None:
        if self._terminals and not any(map(_is_terminal, self._terminals)):
            # Once: the shell that ends and the terminal itself may both send one.
            self.stopping.set()
        else:
            self.reloading.set()


def show_tasks() -> None:
    """Write where each task of the loop waits, to where the log goes."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    lines = [f"{len(tasks)} tasks of the event loop"]
    for task in tasks[:TASKS_SHOWN_MAX]:
        lines.append(f"Task {task.get_name()}:")
        lines += (f"  {where}" for where in _frames(task.get_coro()))
    if len(tasks) > TASKS_SHOWN_MAX:
        lines.append(f"... and {len(tasks) - TASKS_SHOWN_MAX} more")
    write_lines(lines)


def _frames(waiting: object) -> Iterator[str]:
    """From the task's coroutine down to what it waits for."""
    for _ in range(FRAMES_SHOWN_MAX):
        frame = getattr(waiting, "cr_frame", None)
        if frame is None:
            return
        code = frame.f_code
        yield f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        waiting = getattr(waiting, "cr_await", None)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
