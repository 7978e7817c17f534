"""Drivers of Spark as processes of their own, which tests watch, kill, or have kill themselves."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.clients.spark import SECONDS_OF_SPARK
from tests.support.eventually import wait_until
from tests.support.servers import forked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]

GROUP = "KEROLOX_TEST_GROUP"
"""The variable by which Python workers know the driver's process group; PySpark's daemons make
groups of their own."""

LOG_CHARACTERS = 10_000
"""Of a driver's log, the end, that a failure shows."""


class Driver:
    """A program in a process group of its own, with its JVMs and Python workers.

    Args:
        module: the program's, as ``python -m`` takes it.
        arguments: of the program.
        log: a file for what it prints.
        preloaded: modules that a fork server has imported for it; without them it has an
            interpreter of its own.
    """

    def __init__(
        self, module: str, *arguments: object, log: Path, preloaded: Sequence[str] = ()
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = forked.start(
                module,
                arguments,
                driver_variables(),
                fresh=not preloaded,
                preloaded=preloaded,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def group(self) -> int:
        """Its process group."""
        return self._process.pid

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that comes while the driver lives, or by its end.

        Raises:
            AssertionError: it does not come in time, or the driver has ended without it.
        """

        def came() -> bool:
            has_ended = self._process.poll() is not None
            if condition():
                return True
            if has_ended:
                log, status = self._log.read_text(), self._process.returncode
                raise AssertionError(f"it ended with {status}: {log[-LOG_CHARACTERS:]}")
            return False

        wait_until(came, seconds=2 * SECONDS_OF_SPARK, what=what)

    def wait(self, status: int = 0) -> None:
        """Wait until it ends by itself, with this exit status."""
        self.wait_for(lambda: self._process.poll() == status, f"a driver that ends with {status}")

    def kill(self) -> None:
        """As on a machine that fails: nothing of it is left. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait(60)


def driver_variables() -> dict[str, str]:
    """Variables with which Spark's processes find Kerolox and these tests."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    return os.environ | {"PYTHONPATH": path}


def run_to_its_death(
    module: str, *arguments: object, log: Path, preloaded: Sequence[str] = ()
) -> None:
    """Run a program, which is to kill itself."""
    with Driver(module, *arguments, log=log, preloaded=preloaded) as driver:
        driver.wait(-signal.SIGKILL)


def tell_workers() -> None:
    """Have the Python workers of this driver know its process group."""
    os.environ[GROUP] = str(os.getpgid(0))


def die() -> None:
    """Kill the driver with its JVM, and the worker that calls this."""
    own = os.getpgid(0)
    for group in (int(os.environ.get(GROUP, own)), own):
        os.killpg(group, signal.SIGKILL)
