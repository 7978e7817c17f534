"""Runs the command line in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.support.eventually import SECONDS_MAX
from tests.support.servers import forked

__all__ = ["Server", "kerolox", "start"]

MODULE = "kerolox.cli"
COMMAND = [sys.executable, "-m", MODULE]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}


def kerolox(
    *arguments: object, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run to the end; stdout and stderr as text."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with forked.start(MODULE, arguments, _environment() | environment, **pipes) as process:
        try:
            out, err = process.communicate(stdin, timeout=SECONDS_MAX)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out.decode(), err.decode())


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start and go on; stdout is a pipe."""
    return forked.start(
        MODULE,
        arguments,
        _environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Server:
    """A server of the command line; a context manager: ready inside, stopped outside.

    Args:
        folder: for its ready file and its log.
        arguments: of the command line.
        stdout: a descriptor to print to; None: the log.
        closed: start it with the descriptors 0, 1 and 2 closed, and with an interpreter of its own.
        fresh: start it with an interpreter of its own.
        environment: more variables.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        stdout: int | None = None,
        closed: bool = False,
        fresh: bool = False,
        **environment: str,
    ) -> None:
        self.stdout, self.closed, self.fresh = stdout, closed, fresh
        self.environment = environment
        self.ready_file = folder / "ready"
        self.log = folder / "log"
        self.arguments = [*map(str, arguments), "--ready-file", str(self.ready_file)]
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def addresses(self) -> dict[str, str]:
        """Name → address, from the ready file."""
        return dict(line.split("=") for line in self.ready_file.read_text().splitlines())

    def __enter__(self) -> Self:
        with self.log.open("w") as log:
            environment = _environment() | self.environment
            if self.closed:
                closing = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *COMMAND]
                self.process = subprocess.Popen([*closing, *self.arguments], env=environment)
            else:
                self.process = forked.start(
                    MODULE,
                    self.arguments,
                    environment,
                    fresh=self.fresh,
                    stdin=subprocess.DEVNULL,
                    stdout=log if self.stdout is None else self.stdout,
                    stderr=log,
                )
        deadline = time.monotonic() + SECONDS_MAX
        while not self.ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready:\n{self.log.read_text()}")
            time.sleep(0.005)
        return self

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal it and wait until it ended, well."""
        self.process.send_signal(number)
        status = self.process.wait(SECONDS_MAX)
        assert status == 0, f"exit status {status}:\n{self.log.read_text()}"

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
