"""Processes of ours that tests start: forked from one that has imported what they need.

An interpreter that imports the command line costs a third of a second of a processor, and tests
start hundreds. :func:`start` gives a process with arguments, environment, files, folder, umask and
exit status of its own for a tenth of that: the *fork server*, which has imported everything and
done nothing else, forks it, as a child of whoever asked. Tests of the start itself ask for a
``fresh`` interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["REQUEST_BYTES_MAX", "STANDARD_FILES", "become", "preload", "start"]

ROOT = Path(__file__).resolve().parents[3]
WHOLE = ("kerolox.cli.commands", "kerolox.admin", "kerolox.client")
"""Packages of which all modules are imported: a command that finds its own costs a fifth."""

IMPORTED = (
    *("kerolox.broker.broker", "kerolox.console.app", "kerolox.namesrv.server"),
    *("kerolox._pykernel", "kerolox_kernel", "uvloop", "encodings.idna"),
    *("tests.support.servers.counted", "tests.support.servers.probe"),
)
"""Whatever of these is here."""

INHERITED = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Prefixes of the names of variables that are read when an interpreter starts, or before: each set
of them has a fork server."""

SERVERS_OPTION = "--ready-file"
"""Who has it serves, and ends as any interpreter."""

REQUEST_BYTES_MAX = 1 << 17
STANDARD_FILES = 3
CLONE_CALLS = {"x86_64": 56, "aarch64": 220}
"""Number of the system call ``clone``, by machine."""

CLONE_PARENT = 0x8000


def start(
    module: str,
    arguments: Sequence[object],
    environment: Mapping[str, str],
    *,
    fresh: bool = False,
    preloaded: Sequence[str] = (),
    **files: Any,
) -> subprocess.Popen[Any]:
    """Begin ``python -m module arguments``.

    Args:
        environment: all of its variables.
        preloaded: modules that the fork server imports instead of the command line's: another one
            serves who asks for others.
        fresh: with an interpreter of its own. Benchmarks and measures of coverage always have one.
        files: ``stdin``, ``stdout``, ``stderr``, ``text``, ``cwd`` and ``start_new_session``, as
            for ``subprocess.Popen``.
    """
    command = [module, *map(str, arguments)]
    is_measured = any(name.startswith("COVERAGE_PROCESS") for name in environment)
    has_server = sys.platform == "linux" and os.uname().machine in CLONE_CALLS
    if fresh or is_measured or not has_server or "PYTEST_VERSION" not in os.environ:
        return subprocess.Popen([sys.executable, "-m", *command], env=environment, **files)
    return _Forked(command, preloaded=tuple(preloaded), env=environment, **files)


class _Forked(subprocess.Popen[Any]):
    """A ``Popen`` whose child comes from the fork server."""

    def __init__(self, command: list[str], *, preloaded: tuple[str, ...], **options: Any) -> None:
        self._preloaded = preloaded
        self._has_session = options.get("start_new_session", False)
        super().__init__(command, **options)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """What ``Popen`` calls to have its child, in each version of Python so far."""
        folder, environment, pipes = rest[4], rest[5], rest[9:15]
        stdin, _, _, stdout, _, stderr = pipes
        files = [own if pipe == -1 else pipe for own, pipe in enumerate((stdin, stdout, stderr))]
        inherited = {n: v for n, v in environment.items() if n.startswith(INHERITED)}
        server = _fork_server(tuple(sorted(inherited.items())), self._preloaded)
        self.pid = server.fork(
            args, environment, files, str(folder or os.getcwd()), has_session=self._has_session
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


_one_at_a_time = threading.Lock()


class _ForkServer:
    """The process that forks; it ends when its socket does."""

    def __init__(self, environment: Mapping[str, str], preloaded: Iterable[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *preloaded],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=ROOT,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(
        self,
        command: list[str],
        environment: Mapping[str, str],
        files: list[int],
        folder: str,
        *,
        has_session: bool,
    ) -> int:
        """Begin a process; its number."""
        with _one_at_a_time:
            os.umask(umask := os.umask(0o077))
            asked = [command, dict(environment), folder, umask, has_session]
            request = json.dumps(asked).encode()
            socket.send_fds(self._socket, [request], files)
            answer = self._socket.recv(REQUEST_BYTES_MAX)
        assert answer, "the fork server ended"
        return int(answer)


@functools.cache
def _fork_server(inherited: tuple[tuple[str, str], ...], preloaded: tuple[str, ...]) -> _ForkServer:
    others = {n: v for n, v in os.environ.items() if not n.startswith(INHERITED)}
    return _ForkServer(others | dict(inherited), preloaded)


# -- the fork server ----------------------------------------------------------------------------
def preload(packages: Iterable[str], modules: Iterable[str]) -> None:
    """Import packages with all their modules, and single modules; what is not here is left out. The
    garbage collector of children need not examine it."""
    names = [*packages, *modules]
    for name in packages:
        path = importlib.import_module(name).__path__
        names += [found.name for found in pkgutil.walk_packages(path, f"{name}.")]
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Fork as asked; each child goes on from here as the program that was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, *preloaded = sys.argv[1:]
    if preloaded:
        preload((), preloaded)
    else:
        preload(WHOLE, IMPORTED)
    with socket.socket(fileno=int(number)) as asked:
        while True:
            data, files, *_ = socket.recv_fds(asked, REQUEST_BYTES_MAX, STANDARD_FILES)
            if not data:
                return
            forked = _forked()
            if not forked:
                break
            for file in files:
                os.close(file)
            if forked < 0:
                return
            asked.send(b"%d" % forked)
    become(files, *json.loads(data))


def _forked() -> int:
    """The number of a new process whose parent is that of this one; 0 in the new process.

    ``os.fork`` makes children of this process alone. Copying all that it has twice, for a process
    between them that ends, would cost more than many a command.
    """
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    call, how = CLONE_CALLS[os.uname().machine], CLONE_PARENT | signal.SIGCHLD
    python.PyOS_BeforeFork()
    number: int = system.syscall(call, how, 0, 0, 0, 0)
    if number:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return number


def become(
    files: list[int],
    command: list[str],
    environment: dict[str, str],
    folder: str,
    umask: int,
    has_session: bool = False,
) -> None:
    """Run a module as a new interpreter would."""
    if has_session:
        os.setsid()
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    # The shim of ``tests.support.faults``, if preloaded, reads variables when it is loaded.
    getattr(ctypes.CDLL(None), "kerolox_faults_start", int)()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        old = getattr(sys, name)
        # A fresh one's lines leave at once on a terminal, and on stderr.
        at_once = 1 if name == "stderr" or os.isatty(number) else -1
        stream = os.fdopen(number, mode, at_once, old.encoding, old.errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    module, *sys.argv[1:] = command
    status: object = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code
    if SERVERS_OPTION not in command and (status is None or isinstance(status, int)):
        _end(status or 0)
    sys.exit(status)  # type: ignore[arg-type]


def _end(status: int) -> None:
    """End as an interpreter does, but for what it does to each object that it has: most of the time
    of a short command, since all of them are copied then. It returns where its output can't be
    written: Python has words and a status for that."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
