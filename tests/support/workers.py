"""A plugin of pytest: tests run in processes that are forked when all tests are collected.

    python -m pytest -p tests.support.workers --workers 5 ...

One process collects, shares the tests out, and reports; it runs none. Tests of one `scope_of` stay
in one worker, which shares their servers. Collecting costs ten seconds of a processor, and workers
that each do so (pytest-xdist's) send three reports of each test besides: what passed is a few
numbers here. A test whose worker dies has failed, and no other worker runs it.

With ``--spare-workers N`` there are up to so many more, which are given tests only while processors
are idle: those of the end, where the short ones are. They have the others' priority, so a test that
has begun has as much of a processor as any; a lower one would take it past the time limits in it.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn

import pytest

from tests.support import idle

__all__ = ["LATE", "MULTIPLE", "SPARES", "USED", "RunInWorkers", "scope_of", "used_so_far"]

MULTIPLE = "--workers"
"""The option: how many."""

SPARES = "--spare-workers"
"""The option: how many more while processors are idle."""

LATE = pytest.StashKey[frozenset[str]]()
"""Of the configuration: scopes that a spare worker does not begin, since they wait for a build."""

IDLE_MIN, IDLE_ENOUGH = 1.0, 5.0
"""Per cent of all processors, over `LOOK_SECONDS`: below the first one spare worker fewer is given
tests, from the second on one more."""

LOOK_SECONDS = 1.0
"""So often the processors are looked at."""

AHEAD = 2
"""So many tests a worker has at least: it ends what a test used by what the next one needs."""

USED = "used"
"""A property of a test's first report: seconds of a processor of the whole test, `used_so_far`."""

LISTEN_SECONDS = 1.0
"""After so long without a word, who has died without one is looked for."""

END_SECONDS_MAX = 30.0
"""So long a worker that is done may take to end."""


Phase = Literal["setup", "call", "teardown"]


def scope_of(item: pytest.Item) -> str:
    """What one worker runs: a group of tests, or one test."""
    groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
    return "_".join(sorted(groups)) or item.nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """The number of workers."""
    group = parser.getgroup("kerolox")
    group.addoption(
        MULTIPLE, type=int, default=0, help="processes that run tests; 0: this one does"
    )
    group.addoption(
        SPARES, type=int, default=0, help="so many more at most, while processors are idle"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take over the loop where workers are asked for."""
    count = config.getoption(MULTIPLE.removeprefix("--"))
    if count > 0 and not config.option.collectonly:
        spares = config.getoption(SPARES.removeprefix("--").replace("-", "_"))
        config.pluginmanager.register(RunInWorkers(config, count, spares))


@dataclass
class Worker:
    """One, as the controller sees it; ``left`` are the tests that it has not ended."""

    name: str
    place: int
    """Its number among those that live: it has ports of its own by it."""
    pid: int
    connection: Connection
    is_spare: bool = False
    left: collections.deque[int] = field(default_factory=collections.deque)
    last: int | None = None
    is_told: bool = False


class WorkerError(Exception):
    """Pytest itself failed in a worker; the text is its own traceback."""


class RunInWorkers:
    """Shares the tests out and reports them."""

    IS_OF_CONTROLLER = True

    def __init__(self, config: pytest.Config, count: int, spares: int = 0) -> None:
        """``count``: of workers at a time; ``spares``: of those that there may be besides."""
        self._config, self._count, self._spares = config, count, spares
        self._begun = 0
        self._admitted = 0
        self._looked = time.monotonic()
        self._idle = idle.Idle(idle.STATISTICS)
        self._workers: list[Worker] = []
        self._units: collections.deque[list[int]] = collections.deque()
        self._scopes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all that is collected; pytest's own loop tells of what could not be."""
        is_broken = session.testsfailed and not self._config.option.continue_on_collection_errors
        if is_broken or not session.items:
            return None
        self._session = session
        self._scopes = [scope_of(item) for item in session.items]
        self._units.extend(units_of(self._scopes, range(len(session.items))))
        # All workers are to make their own in it.
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        try:
            while len(self._workers) < self._count and self._units:
                self._begin()
            while self._workers:
                self._listen()
                self._admit()
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers:
                worker.connection.close()
            for worker in self._workers:
                wait_for(worker.pid)
        return True

    def _begin(self, *, is_spare: bool = False) -> None:
        """Fork a worker and give it its first tests."""
        name = f"gw{self._begun}"
        self._begun += 1
        count = self._count + self._spares
        place = min(set(range(count)) - {worker.place for worker in self._workers})
        ours, theirs = multiprocessing.Pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if not pid:
            ours.close()
            for other in self._workers:
                other.connection.close()
            serve(self._session, name, (place, count), theirs)
        theirs.close()
        worker = Worker(name, place, pid, ours, is_spare)
        self._workers.append(worker)
        self._give(worker)

    def _give(self, worker: Worker) -> None:
        """See that a worker has what it does next, or knows that nothing follows."""
        given: list[int] = []
        while len(worker.left) + len(given) < AHEAD and (unit := self._next(worker)):
            given += unit
        worker.left.extend(given)
        with contextlib.suppress(OSError):  # it is dead, as its other end will say
            if given:
                worker.connection.send(given)
            if not self._units and not worker.is_told:
                worker.is_told = True
                worker.connection.send(None)

    def _next(self, worker: Worker) -> list[int]:
        """Take what a worker is to run; empty where nothing is left, or nothing for a spare one."""
        if not worker.is_spare:
            return self._units.popleft() if self._units else []
        if worker not in self._spare_workers()[: self._admitted]:
            return []
        late = self._config.stash.get(LATE, frozenset())
        for place in reversed(range(len(self._units))):
            if self._scopes[self._units[place][0]] not in late:
                unit = self._units[place]
                del self._units[place]
                return unit
        return []

    def _spare_workers(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.is_spare]

    def _admit(self) -> None:
        """Now and then: one spare worker more or fewer is given tests, as processors are idle."""
        if not self._spares or time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        share = self._idle.share()
        if share >= IDLE_ENOUGH:
            self._admitted = min(self._admitted + 1, self._spares)
        elif share < IDLE_MIN:
            self._admitted = max(self._admitted - 1, 0)
        begun = self._spare_workers()
        if self._units and len(begun) < self._admitted:
            self._begin(is_spare=True)
        for worker in begun:
            self._give(worker)

    def _listen(self) -> None:
        """Hear what workers have to say, or that they are dead."""
        connections = {worker.connection: worker for worker in self._workers}
        heard = multiprocessing.connection.wait(list(connections), LISTEN_SECONDS)
        for connection in heard:
            worker = connections[connection]  # type: ignore[index]
            try:
                kind, *said = worker.connection.recv()
            except (EOFError, OSError):
                self._bury(worker)
            else:
                getattr(self, f"_hear_{kind}")(worker, *said)
        for worker in [] if heard else list(self._workers):
            # A process that it left behind may hold its end open.
            if is_over(worker.pid) and not worker.connection.poll():
                self._bury(worker)

    def _hear_test(
        self, worker: Worker, index: int, phases: list[tuple[Any, ...]], used: float
    ) -> None:
        """A test has ended."""
        worker.left.remove(index)
        worker.last = index
        item, hook = self._session.items[index], self._config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when, duration, start, stop, data in phases:
            if data is None:
                report = passed_report(item, when, duration, start, stop)
            else:
                report = hook.pytest_report_from_serializable(config=self._config, data=data)
            if when == "setup":
                report.user_properties.append((USED, used))
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._give(worker)

    def _hear_warning(self, worker: Worker, told: bytes, where: dict[str, object]) -> None:
        """A warning that a test may give."""
        arguments = {"warning_message": pickle.loads(told), **where}
        self._config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)

    def _hear_failed(self, worker: Worker, text: str) -> None:
        """Pytest itself failed."""
        raise WorkerError(f"in worker {worker.name}\n{text}")

    def _hear_ended(self, worker: Worker) -> None:
        """A worker has done all that it was given."""
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        """Let a worker end; it hears that from the connection's end."""
        self._workers.remove(worker)
        worker.connection.close()
        wait_for(worker.pid)

    def _bury(self, worker: Worker) -> None:
        """A worker is dead: what it ran has failed, another one takes the rest."""
        self._workers.remove(worker)
        worker.connection.close()
        status = wait_for(worker.pid)
        place = worker.left.popleft() if worker.left else worker.last
        left = units_of(self._scopes, worker.left)
        self._units.extendleft(reversed(left))
        item = self._session.items[place or 0]
        text = f"worker {worker.name} died, with status {status}, in or after {item.nodeid}"
        report = pytest.TestReport(
            item.nodeid,
            item.location,
            {},
            "failed",
            text,
            "???",  # type: ignore[arg-type] # neither set-up, call nor tear-down
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        if self._units:
            self._begin(is_spare=worker.is_spare)


def units_of(scopes: Sequence[str], places: Iterable[int]) -> list[list[int]]:
    """Tests by their scopes, in the order of the first of each."""
    units: dict[str, list[int]] = {}
    for place in places:
        units.setdefault(scopes[place], []).append(place)
    return list(units.values())


def passed_report(
    item: pytest.Item, when: Phase, duration: float, start: float, stop: float
) -> pytest.TestReport:
    """The report of a phase of a test in which all went well."""
    return pytest.TestReport(
        item.nodeid,
        item.location,
        {},
        "passed",
        None,
        when,
        duration=duration,
        start=start,
        stop=stop,
    )


_statuses: dict[int, int] = {}


def is_over(pid: int) -> bool:
    """Whether a worker's process has ended."""
    if pid not in _statuses:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _statuses[pid] = os.waitstatus_to_exitcode(status)
    return pid in _statuses


def wait_for(pid: int) -> int:
    """Wait until a worker's process has ended; its status."""
    until = time.monotonic() + END_SECONDS_MAX
    while not is_over(pid):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return _statuses[pid]


# -- a worker -----------------------------------------------------------------------------------
class Terminal:
    """Stands for the controller's reporter, which a worker has no use for, where plugins look for
    something to write to."""

    def __init__(self, writer: object) -> None:
        self._tw = writer


def used_so_far() -> float:
    """Seconds of a processor of this process, and of those that it has waited for."""
    every = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in every)


class RunTests:
    """A plugin of a worker: tells the controller what becomes of its tests."""

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session, self._connection = session, connection
        self._phases: list[tuple[Any, ...]] = []

    def run(self) -> None:
        """Run what is asked for, until nothing follows or the controller is gone."""
        items, session = self._session.items, self._session
        asked = self._asked()
        place = next(asked, None)
        while place is not None:
            following = next(asked, None)
            self._phases = []
            before = used_so_far()
            session.config.hook.pytest_runtest_protocol(
                item=items[place], nextitem=None if following is None else items[following]
            )
            used = used_so_far() - before
            self._connection.send(("test", place, self._phases, used))
            place = None if session.shouldfail or session.shouldstop else following

    def _asked(self) -> Iterator[int]:
        with contextlib.suppress(EOFError, OSError):
            while (places := self._connection.recv()) is not None:
                yield from places

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        data = None
        if not report.passed or hasattr(report, "wasxfail"):
            config = self._session.config
            data = config.hook.pytest_report_to_serializable(config=config, report=report)
        times = report.duration, report.start, report.stop
        self._phases.append((report.when, *times, data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        """A warning that a test may give."""
        try:
            told = pickle.dumps(warning_message)
        except Exception:  # of a class or with arguments that are the test's own
            category = warning_message.category.__name__
            text = UserWarning(f"{category}: {warning_message.message}")
            place = warning_message.filename, warning_message.lineno
            told = pickle.dumps(warnings.WarningMessage(text, UserWarning, *place))
        where = {"when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", told, where))


def serve(
    session: pytest.Session, name: str, place: tuple[int, int], connection: Connection
) -> NoReturn:
    """Be a worker, from the fork to the end of the process; ``place``: its number, of how many."""
    config = session.config
    try:
        become_worker(config, name, place)
        tests = RunTests(session, connection)
        config.pluginmanager.register(tests)
        tests.run()
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
        config._ensure_unconfigure()
        connection.send(("ended",))
    except BaseException:
        text = str(pytest.ExceptionInfo.from_current().getrepr(style="native"))
        with contextlib.suppress(OSError):
            connection.send(("failed", text))
    finally:
        # As an interpreter ends, but for the destruction of all that was collected.
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        os._exit(0)


def become_worker(config: pytest.Config, name: str, place: tuple[int, int]) -> None:
    """Leave to the controller what is its own: terminal, files, plugins that say so."""
    number, count = place
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(count)
    config.workerinput = {"workerid": name, "workercount": count}  # type: ignore[attr-defined]
    plugins = config.pluginmanager
    for plugin in plugins.get_plugins():
        if getattr(plugin, "IS_OF_CONTROLLER", False):
            plugins.unregister(plugin)
    if plugins.hasplugin("terminalreporter"):
        reporter: Any = plugins.unregister(name="terminalreporter")
        plugins.register(Terminal(reporter._tw), "terminalreporter")
    # The files of what is captured are the controller's, too.
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    with open(os.devnull, "r+b", buffering=0) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    own_folder(config._tmp_path_factory, name)  # type: ignore[attr-defined]


def own_folder(factory: pytest.TempPathFactory, name: str) -> None:
    """Temporary files of a worker are in a folder of its own; the controller removes them all."""
    atexit.unregister(factory._exit_stack.close)
    factory._exit_stack.pop_all()
    folder = factory.getbasetemp() / name
    folder.mkdir(mode=0o700)
    factory._given_basetemp = factory._basetemp = folder
