"""An event loop whose time is virtual, and whose processes pause, stall and die.

Time moves only while nothing is ready: to the next timer. Timers of the same moment run in an
order that the seed draws; what is ready runs in the order in which it became so, as asyncio
promises. There are no sockets (:mod:`tests.simulation.network`) and no threads: what
``asyncio.to_thread`` is given runs as a step a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
import select
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any

from tests.simulation.disk import Died
from tests.simulation.network import Network
from tests.simulation.process import _CURRENT, Process, current

START_SECONDS = 1_000.0
"""Virtual time at the start."""

STEPS_AT_A_MOMENT_MAX = 20_000
"""Steps that may run before virtual time moves; more is a loop that never rests."""
STEPS_MAX = 500_000
"""Steps of a run; more is work that never ends."""

THREAD_SECONDS_MAX = 0.002
"""What runs in a thread elsewhere takes up to so long here."""


Done = Callable[[object, BaseException | None], None]
CallInThread = Callable[[Callable[[], object], Done], None]


def _call_here(function: Callable[[], object], done: Done) -> None:
    try:
        result = function()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)


class StuckError(Exception):
    """Nothing is left that could happen, or time stands still."""


class _Numbered:
    """Hashed by a number in place of an address, so that sets of it have one order."""

    _numbers = itertools.count()
    number: int

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(_Numbered, asyncio.Future[Any]):
    """A future of the loop, which numbers it."""

    __hash__ = _Numbered.__hash__


class _Handle:
    """What asyncio's handles are, without what nobody needs here: each step makes one."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        if context is None:
            context = contextvars.copy_context()
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when = when
        self.process: Process | None = context.get(_CURRENT)
        """Whose step it is."""

    def cancel(self) -> None:
        """Let it not run."""
        self._cancelled = True
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        """Whether it does not run."""
        return self._cancelled

    def when(self) -> float:
        """Virtual time of a timer."""
        return self._when


class SimulatedTask(_Numbered, asyncio.Task[Any]):
    """A task of the loop, which numbers it before it is known."""

    __hash__ = _Numbered.__hash__


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. Close it with :meth:`dismantle`."""

    def __init__(self, seed: int) -> None:
        """Nothing runs before ``run_until_complete``."""
        super().__init__()
        _Numbered._numbers = itertools.count()
        self._random = random.Random(seed)
        self._now = START_SECONDS
        self._draw = self._random.random
        self._steps: deque[_Handle] = deque()
        """What is ready, in the order in which it became so."""
        self._timers: list[tuple[float, float, int, _Handle]] = []
        self._count = itertools.count()
        self._steps_here = 0
        self.steps = 0
        """Callbacks that ran."""
        self._readers: dict[int, _Handle] = {}
        self._poll = select.poll()
        self._parked: dict[Process, deque[_Handle]] = {}
        self._graveyard: list[object] = []
        """What belongs to dead processes: to free it would run its ``finally``."""
        self._tasks: dict[Process | None, list[SimulatedTask]] = {}
        self.network = Network(self, random.Random(self._random.getrandbits(64)))
        self.call_in_thread: CallInThread = _call_here
        """How what ``asyncio.to_thread`` is given runs (:class:`tests.simulation.threads`)."""
        self.errors: list[str] = []
        """What callbacks and tasks raised that nobody caught."""
        self.set_exception_handler(self._note_error)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    # -- time -----------------------------------------------------------------------------------
    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def get_debug(self) -> bool:
        """Never: each handle asks."""
        return False

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """See ``AbstractEventLoop``."""
        handle = _Handle(callback, args, context)
        self._steps.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """See ``AbstractEventLoop``."""
        timer = _Handle(callback, args, context, when)
        heappush(self._timers, (when, self._draw(), next(self._count), timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """See ``AbstractEventLoop``."""
        when = self._now + delay if delay > 0.0 else self._now
        timer = _Handle(callback, args, context, when)
        heappush(self._timers, (when, self._draw(), next(self._count), timer))
        return timer

    def _run_once(self) -> None:
        """Run all steps until the loop is stopped: each costs time, and a frame less."""
        steps, parked = self._steps, self._parked
        while not self._stopping:  # type: ignore[attr-defined]
            if not steps:
                if self._readers:
                    self._look_at_readers()
                if not steps:
                    self._move_time(steps)
            while steps:
                handle = steps.popleft()
                if handle._cancelled:
                    continue
                process = handle.process
                if process is not None and (
                    parked
                    or not process.is_alive
                    or process.is_paused
                    or self._now < process.stalled_until
                ):
                    if not process.is_alive:
                        self._graveyard.append(handle)
                        continue
                    held = parked.get(process)
                    if held is not None or not process.may_run(self._now):
                        if held is None:
                            held = parked[process] = deque()
                        held.append(handle)
                        continue
                self.steps += 1
                self._steps_here += 1
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._failed(handle, error)
                if self._steps_here > STEPS_AT_A_MOMENT_MAX:
                    raise StuckError(
                        f"{self._steps_here} steps, and time stands still at {self._now}"
                    )
            if self.steps > STEPS_MAX:
                raise StuckError(f"{self.steps} steps until {self._now:.1f}, and no end")

    def _failed(self, handle: _Handle, error: BaseException) -> None:
        name = getattr(handle._callback, "__qualname__", "a callback")
        context = {"message": f"Exception in callback {name}", "exception": error}
        # As the process whose step it was.
        handle._context.run(self.call_exception_handler, context)

    def _move_time(self, steps: deque[_Handle]) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][3]._cancelled:
            heappop(timers)
        if not timers:
            raise StuckError("nothing is left that could happen")
        if timers[0][0] > now:
            now = self._now = timers[0][0]
            self._steps_here = 0
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[3]
            if not handle._cancelled:
                steps.append(handle)

    # -- processes ------------------------------------------------------------------------------
    def adopt(self, process: Process) -> None:
        """Be told of what happens to a process."""
        process.on_change = self._process_changed

    def _process_changed(self, process: Process) -> None:
        if not process.is_alive:
            self._graveyard.append(self._parked.pop(process, None))
            self._graveyard.append(self._tasks.pop(process, None))
            self.network.process_died(process)
        elif process.may_run(self._now):
            held = self._parked.pop(process, None)
            if held:
                # What became ready meanwhile comes after what waits.
                self._steps.extend(held)
        elif not process.is_paused:
            context = contextvars.Context()
            self.call_at(process.stalled_until, self._process_changed, process, context=context)

    def tasks_of(self, process: Process) -> list[SimulatedTask]:
        """The tasks of a process that are not done."""
        return [task for task in self._tasks.get(process, ()) if not task.done()]

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: contextvars.Context | None = None,
    ) -> SimulatedTask:
        task = SimulatedTask.__new__(SimulatedTask)
        number = task.number = next(_Numbered._numbers)
        task.__init__(coro, loop=self, name=f"task-{number}", context=context)  # type: ignore[misc]
        owner = _CURRENT.get() if context is None else context.get(_CURRENT)
        tasks = self._tasks.setdefault(owner, [])
        tasks.append(task)
        if len(tasks) > 500 and not len(tasks) % 100:
            self._tasks[owner] = [each for each in tasks if not each.done()]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        """See ``AbstractEventLoop``."""
        future = SimulatedFuture(loop=self)
        future.number = next(_Numbered._numbers)
        return future

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Died):
            return  # so a process ends within a call
        process = current()
        name = "-" if process is None else process.name
        self.errors.append(f"{self._now:.6f} {name} {context.get('message')}: {error!r}")

    # -- what a selector would do ---------------------------------------------------------------
    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """For descriptors that are no sockets: a store's ``notify_fd``."""
        self._readers[fd] = _Handle(callback, args, None)
        self._poll.register(fd, select.POLLIN)

    def remove_reader(self, fd: Any) -> bool:
        """See ``AbstractEventLoop``."""
        if self._readers.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    def forget_readers(self, process: Process) -> None:
        """The descriptors of a dead process are about to be closed."""
        for fd, handle in list(self._readers.items()):
            if handle.process is process:
                self.remove_reader(fd)

    def _look_at_readers(self) -> None:
        found = {fd for fd, _ in self._poll.poll(0)}
        for fd, handle in self._readers.items():
            process = handle.process
            if fd in found and (process is None or process.may_run(self._now)):
                self._steps.append(handle)

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # -- threads and sockets --------------------------------------------------------------------
    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it as a step, a little later; on a slow disk it takes a while."""
        future = self.create_future()

        def done(result: object, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            self.call_in_thread(partial(func, *args), done)

        self.call_later(self._random.random() * THREAD_SECONDS_MAX, run)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Addresses are numbers here."""
        raise OSError(f"{host}: names are not looked up in a simulation")

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """See ``AbstractEventLoop``; plain connections alone."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        start_serving: bool = True,
        **_: Any,
    ) -> asyncio.AbstractServer:
        """See ``AbstractEventLoop``; ``sock`` is a :class:`~tests.simulation.network.Listening`."""
        return self.network.serve(protocol_factory, sock, start_serving=start_serving)

    # -- the end --------------------------------------------------------------------------------
    def _all_tasks(self) -> list[Any]:
        """Of all processes, dead ones, too."""
        lists = (each for each in [*self._tasks.values(), *self._graveyard] if type(each) is list)
        return [task for tasks in lists for task in tasks]

    def dismantle(self) -> None:
        """Drop all that is left. The disks are off by now: what runs here changes nothing."""
        self.network.forget()
        closed = 0
        while closed < len(tasks := self._all_tasks()):
            # What ends may begin other tasks.
            closed = len(tasks)
            for task in tasks:
                task._log_destroy_pending = False
                if not task.done():
                    with contextlib.suppress(BaseException):
                        task.get_coro().close()
        self._steps.clear()
        self._timers.clear()
        self._parked.clear()
        self._readers.clear()
        self._tasks.clear()
        self._graveyard.clear()
        self.close()
