"""Tests that failed in a run with many others run once more, each alone on a quiet machine.

What passes there is flaky: it is named, and up to `FLAKY_MAX` of them do not fail a run. Nothing
else is tried again: what dies with its worker, does not collect, or fails twice has failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from failures import DIED, TEST, VARIABLE
from processors import wait_used
from steps import ROOT

__all__ = [
    "AGAIN_MAX",
    "DATE_FORMAT",
    "FLAKY_MAX",
    "Failure",
    "Run",
    "Runs",
    "Verdict",
    "again",
    "run_pytest",
]

FLAKY_MAX = 3
AGAIN_MAX = 20
"""Where more tests failed than these the cause is not chance: they do not run again."""

DATE_FORMAT = "%Y-%m-%d %H:%M:%S"

RUNS_MAX = 20
"""Of them the list is kept."""

TESTS_FAILED = 1
"""Pytest's status of a run that came to its end."""


@dataclass(frozen=True)
class Failure:
    """What failed; ``kind`` is one of `tools.failures`, ``text`` a line."""

    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Run:
    """How pytest went: ``status`` of its process, ``passed`` tests, each failure once, ``used``
    seconds of a processor."""

    status: int
    passed: int
    failures: tuple[Failure, ...]
    seconds: float
    used: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether all went well."""
        return self.status == 0 and not self.failures


@dataclass(frozen=True)
class Verdict:
    """Names of the tests that failed once, of what has failed, and a line for each."""

    flaky: tuple[Failure, ...] = ()
    failed: tuple[Failure, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the run counts as passed."""
        return not self.failed and len(self.flaky) <= FLAKY_MAX


def read(path: Path) -> tuple[list[Failure], int | None, int]:
    """What the plugin wrote: failures, the status that pytest ended with, tests that passed."""
    failures: dict[tuple[str, str], Failure] = {}
    status, passed = None, 0
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        fields = json.loads(line)
        if "status" in fields:
            status, passed = fields["status"], fields["passed"]
        else:
            failure = Failure(**fields)
            failures.setdefault((failure.kind, failure.name), failure)
    return list(failures.values()), status, passed


def run_pytest(*options: str, folder: Path = ROOT, report: Callable[[str], None]) -> Run:
    """Run tests; ``report`` hears each line of pytest as it comes."""
    plugins = ("-p", "tools.failures", "-p", "tests.support.workers")
    command = [sys.executable, "-m", "pytest", *plugins, "-q", *options]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kerolox-tests-") as temporary:
        path = Path(temporary) / "failures"
        environment = {**os.environ, VARIABLE: str(path), "PYTHONUNBUFFERED": "1"}
        if os.environ.get("CI") == "true":
            # A run that judges a change does the same each time: a simulated cluster goes another
            # way where sets of names have another order.
            environment["PYTHONHASHSEED"] = "0"
        if folder != ROOT:
            environment["PYTHONPATH"] = str(ROOT)
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                report(line)
            used = wait_used(process)
        failures, status, passed = read(path)
    if process.returncode != 0 and (status is None or not failures):
        text = f"it ended with status {process.returncode}"
        failures.append(Failure("pytest", "pytest", text))
    return Run(process.returncode, passed, tuple(failures), time.monotonic() - started, used)


def again(
    first: Run, *, folder: Path = ROOT, options: Sequence[str] = (), report: Callable[[str], None]
) -> Verdict:
    """Run each test that failed once more, alone.

    Args:
        first: the run that they failed in.
        folder: where pytest runs.
        options: for pytest.
        report: hears a line, without its end, for each of them as it ends.
    """
    tried = {failure.name: failure for failure in first.failures if failure.kind == TEST}
    for failure in first.failures:
        if failure.kind == DIED:
            tried.pop(failure.name, None)
    if first.status != TESTS_FAILED or not tried:
        return Verdict(failed=first.failures)
    if len(tried) > AGAIN_MAX:
        report(f"{len(tried)} tests failed: more than {AGAIN_MAX}, so none of them runs again")
        return Verdict(failed=first.failures)
    flaky = []
    failed = [failure for failure in first.failures if failure.name not in tried]
    for name, failure in tried.items():
        report(f"again, alone: {name}")
        lines: list[str] = []
        run = run_pytest(*options, name, folder=folder, report=lines.append)
        if run.is_good and run.passed:
            flaky.append(failure)
            report(f"passed alone: {name} ({run.seconds:.1f} s)")
        else:
            texts = [each.text for each in run.failures] or ["it did not run"]
            failed.append(Failure(TEST, name, texts[0]))
            report(f"{''.join(lines).rstrip()}\nfailed again: {name}: {texts[0]}")
    return Verdict(tuple(flaky), tuple(failed))


class Runs:
    """The last runs, in a file: date, commit, seconds, names of flaky and of failed tests."""

    def __init__(self, path: Path) -> None:
        """``path``: the file; one that can't be read begins anew."""
        self._path = path
        try:
            self.kept: list[dict[str, object]] = list(json.loads(path.read_text()))
        except (OSError, ValueError):
            self.kept = []

    def note(self, commit: str, seconds: float, verdict: Verdict, others: Iterable[str]) -> None:
        """A run has ended; ``others`` are its failed steps that are no tests."""
        run: dict[str, object] = {
            "date": time.strftime(DATE_FORMAT),
            "commit": commit,
            "seconds": round(seconds, 1),
            "flaky": [failure.name for failure in verdict.flaky],
            "failed": [failure.name for failure in verdict.failed] + list(others),
        }
        self.kept = [*self.kept, run][-RUNS_MAX:]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self.kept, indent=1))
        fresh.replace(self._path)

    def lines(self) -> list[str]:
        """For the end of a run: those that had flaky tests; nothing where none had."""
        found = []
        for run in self.kept:
            if names := run["flaky"]:
                assert isinstance(names, list)
                failed = "failed" if run["failed"] else "passed"
                found.append(f"{run['date']} {run['commit']} {failed}: {', '.join(names)}")
        return found and [f"flaky tests of the last {len(self.kept)} runs:", *found]
