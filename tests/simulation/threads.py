"""The store's threads, as steps of the loop.

While no sync takes time, a turn of a thread (``run_once``) is one callback, in the context of its
process, when its pause is over or a little after it was woken. On a slow disk the turn runs on a
stack of its own, so that the loop goes on while it waits in a sync: an operating system thread that
runs while the loop's stands still, and gives back whenever its code waits. One of them runs at a
time, and each switch is at a virtual time that the seed draws.

A lock that a waiting turn holds lets the process of whoever wants it stand still until it is free,
as on a machine.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from kerolox.store import flush, index
from kerolox.store.files import deletions, thread
from kerolox.store.files.thread import StoreThread
from kerolox.store.flush import IndexFollower
from kerolox.store.log import preallocate, transient_pool
from tests.simulation.disk import Died, Disk
from tests.simulation.patches import Patches
from tests.simulation.process import Process, current

WAKE_SECONDS_MAX = 0.001
"""A thread that is woken runs so soon."""
LATE_SECONDS_MAX = 0.05
"""One in a while is that late."""
INDEX_PAUSE_SECONDS = 0.7
"""What follows the log into the index looks so often: each check costs the test time."""

_Done = Callable[[object, BaseException | None], None]


class Stack:
    """A second stack of the process's code: it runs until it waits, and goes on when told."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._go, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._job: tuple[contextvars.Context, Callable[[], object]] | None = None
        self._error: BaseException | None = None
        self._is_ending = False
        self.wakes_at = 0.0
        """Virtual time at which it goes on."""
        self.process: Process | None = None
        self.is_done = True
        threading.Thread(target=self._main, daemon=True).start()

    def run(self, function: Callable[[], object]) -> None:
        """Run a function until it ends or waits, in a copy of this context."""
        self._job = contextvars.copy_context(), function
        self.process = current()
        self.is_done = False
        self.go_on()

    def go_on(self) -> None:
        """Run on until the function ends or waits; raises what it raised."""
        before, self._threads.running = self._threads.running, self
        self._go.release()
        self._back.acquire()
        self._threads.running = before
        error, self._error = self._error, None
        if error is not None and not isinstance(error, Died):
            raise error

    def unwind(self) -> None:
        """The process died: let the function end without effect."""
        if not self.is_done:
            self._is_ending = True
            while not self.is_done:
                self.go_on()
            self._is_ending = False

    def end(self) -> None:
        """Let go of the operating system's thread."""
        self.unwind()
        self._job = None
        self._go.release()

    # -- on the stack ---------------------------------------------------------------------------
    def wait(self, seconds: float) -> None:
        """Let the loop go on for so long."""
        self.wakes_at = self._threads.loop.time() + seconds
        self._back.release()
        self._go.acquire()
        if self._is_ending:
            raise Died

    def _main(self) -> None:
        while True:
            self._go.acquire()
            if self._job is None:
                return
            context, function = self._job
            try:
                context.run(function)
            except BaseException as error:
                self._error = error
            self.is_done = True
            self._back.release()


class Threads:
    """The threads of all stores of a run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, disks: Iterable[Disk]) -> None:
        self.loop = loop
        self.running: Stack | None = None
        """The stack whose code runs; None: the loop's."""
        self._idle: list[Stack] = []
        self._waiting: list[Stack] = []
        self._disks = {disk.root.name: disk for disk in disks}
        for disk in self._disks.values():
            disk.wait = self.wait
            disk.unwind = lambda name=disk.root.name: self.unwind(name)  # type: ignore[misc]

    def install(self, patches: Patches) -> None:
        """Replace threads, locks and sleeps of the store."""
        kind = SimpleNamespace(
            Lock=lambda: _Lock(self),
            Event=lambda: _Event(self),
            Thread=lambda **_: SimpleNamespace(is_alive=lambda: False),
        )
        for module in (thread, deletions, flush, index, preallocate, transient_pool):
            patches.set(module, "threading", kind)
        patches.set(flush, "time", _Time(self.sleep))
        patches.set(StoreThread, "start", lambda each: _Turns(each, self).start())
        patches.set(StoreThread, "stop", _stop)

    def close(self) -> None:
        """The run is over."""
        for stack in [*self._waiting, *self._idle]:
            stack.end()
        self._waiting.clear()
        self._idle.clear()

    # -- steps ----------------------------------------------------------------------------------
    def call(self, function: Callable[[], object], done: _Done) -> None:
        """Call a function that may wait for the disk; ``done(result, error)`` is called on the
        loop when it ended. In the context of the process whose thread it is."""
        outcome: list[object] = [None, None]

        def work() -> None:
            try:
                outcome[0] = function()
            except Exception as error:
                outcome[1] = error

        process = current()
        disk = None if process is None else self._disks.get(process.name)
        if disk is None or not disk.sync_seconds:
            with contextlib.suppress(Died):
                work()
            if process is None or process.is_alive:
                done(*outcome)  # type: ignore[arg-type]
            return
        stack = self._idle.pop() if self._idle else Stack(self)
        stack.run(work)
        self._after(stack, lambda: done(*outcome))  # type: ignore[arg-type]

    def _after(self, stack: Stack, done: Callable[[], None]) -> None:
        """See what became of a stack."""
        if stack.is_done:
            self._idle.append(stack)
            if stack.process is None or stack.process.is_alive:
                done()
            return
        self._waiting.append(stack)

        def go_on() -> None:
            if stack not in self._waiting:
                # Somebody who needed its lock waited for it.
                self._after_finished(stack, done)
                return
            if self.loop.time() >= stack.wakes_at:
                stack.go_on()
            self._waiting.remove(stack)
            self._after(stack, done)

        self.loop.call_at(stack.wakes_at, go_on)

    def _after_finished(self, stack: Stack, done: Callable[[], None]) -> None:
        self._idle.append(stack)
        done()

    def finish(self, is_enough: Callable[[], bool]) -> None:
        """The loop's code waits for another thread of its process: let those run on, one after the
        other, and the process stand still for as long as it takes."""
        process = current()
        while not is_enough():
            mine = [stack for stack in self._waiting if stack.process is process]
            if not mine:
                raise RuntimeError("the store waits for what no thread of it does")
            stack = min(mine, key=lambda each: each.wakes_at)
            if process is not None:
                late = stack.wakes_at - max(self.loop.time(), process.stalled_until)
                process.stall(max(late, 0.0))
            stack.go_on()
            if stack.is_done:
                self._waiting.remove(stack)

    # -- waiting --------------------------------------------------------------------------------
    def wait(self, seconds: float) -> None:
        """A sync takes so long: of a stack's code, or else of the loop's."""
        process = current()
        if self.running is not None:
            self.running.wait(seconds)
        elif process is not None:
            process.stall(seconds)

    def sleep(self, seconds: float) -> None:
        """``time.sleep`` of a store's thread. Without a stack of its own it does not wait."""
        if self.running is not None and seconds:
            self.running.wait(seconds)

    def unwind(self, name: str) -> None:
        """The process of that name is dead."""
        for stack in [each for each in self._waiting if each.process and each.process.name == name]:
            self._waiting.remove(stack)
            stack.unwind()
            self._idle.append(stack)


class _Time:
    """What a module of threads has for ``time``."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Turns:
    """The turns of one thread of a store."""

    def __init__(self, owner: StoreThread, threads: Threads) -> None:
        self._owner = owner
        self._threads = threads
        self._timer: asyncio.TimerHandle | None = None
        self.is_running = False
        self._event: Any = owner._wake

    def start(self) -> None:
        """It begins with a pause."""
        self._event.on_set = self._woken
        self._owner._thread = self  # type: ignore[assignment]
        self._pause()

    def _pause(self) -> None:
        owner = self._owner
        if owner._is_stopping:
            return
        if owner._wake.is_set():
            self._woken()
            return
        seconds = owner.pause_seconds()
        if isinstance(owner, IndexFollower):
            seconds = max(seconds, INDEX_PAUSE_SECONDS)
        self._set_timer(seconds)

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._threads.loop.call_later(seconds, self._turn)

    def _woken(self) -> None:
        if self.is_running or self._owner._is_stopping:
            return
        process = current()
        chance = process.random.random() if process is not None else 0.5
        seconds = LATE_SECONDS_MAX if chance > 0.98 else chance * WAKE_SECONDS_MAX
        self._set_timer(seconds)

    def _turn(self) -> None:
        owner = self._owner
        self._timer = None
        self._event.clear()
        if owner._is_stopping:
            return
        self.is_running = True
        self._threads.call(owner.run_once, self._ended)

    def _ended(self, _result: object, error: BaseException | None) -> None:
        self.is_running = False
        if error is not None:
            self._threads.loop.call_exception_handler(
                {"message": f"{type(self._owner).__name__} ended", "exception": error}
            )
            return
        self._pause()

    def stop(self) -> bool:
        """Wait for the turn that runs, and let no other begin."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_running:
            owner = self._threads
            mine = [each for each in owner._waiting if each.process is current()]
            if mine:
                owner.finish(lambda: all(each.is_done for each in mine))
        return True


def _stop(owner: StoreThread) -> bool:
    owner._is_stopping = True
    turns: Any = owner._thread
    return bool(turns.stop()) if isinstance(turns, _Turns) else True


class _Lock:
    """A lock of the store."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False

    def __enter__(self) -> bool:
        if self._is_held:
            self._wait()
        self._is_held = True
        return True

    def __exit__(self, *_: object) -> None:
        self._is_held = False

    def _wait(self) -> None:
        if self._threads.running is None:
            self._threads.finish(lambda: not self._is_held)
        while self._is_held:
            self._threads.sleep(0.001)


class _Event:
    """An event of the store's threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_set = False
        self.on_set: Callable[[], None] = lambda: None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.on_set()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, _timeout: float | None = None) -> bool:
        if not self._is_set and self._threads.running is None:
            self._threads.finish(self.is_set)
        while not self._is_set:
            self._threads.sleep(0.001)
        return True
