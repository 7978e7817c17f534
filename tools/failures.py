"""A plugin of pytest: each failure is reported when it happens, not only at the end of a run.

    python -m pytest -p tools.failures ...

A line with the test's name and its error stands among the dots. The file that `VARIABLE` names gets
a line of JSON for it, and a last one when the run has ended.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

VARIABLE = "KEROLOX_FAILURES"
"""The file that is written; its folder is there."""

TEST, DIED, COLLECTION, INTERNAL = "test", "died", "collection", "internal"
"""What failed: a test, a test whose worker died, a file that was collected, pytest."""

TEXT_CHARACTERS_MAX = 300

EXCEPTION = re.compile(
    r"^(?:E\b)?\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE
)
"""A traceback's line of the exception itself."""


def pytest_configure(config: pytest.Config) -> None:
    """Listen where reports of all workers come together."""
    if hasattr(config, "workerinput"):  # pytest-xdist's
        return
    config.pluginmanager.register(Failures(config, os.environ.get(VARIABLE, os.devnull)))


def text_of(longrepr: object) -> str:
    """What a report says, in one line."""
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        lines = str(crash.message).splitlines()
    else:
        # What has no place in a test's code: its last exception, or how it ends.
        text = str(longrepr or "")
        lines = [line for line in text.splitlines() if line.strip()]
        lines = (EXCEPTION.findall(text) or lines)[-1:]
    return (lines[0].strip() if lines else "no more is known")[:TEXT_CHARACTERS_MAX]


class Failures:
    """Reports failures, on the terminal and in a file."""

    IS_OF_CONTROLLER = True

    def __init__(self, config: pytest.Config, path: str) -> None:
        """``path``: the file."""
        self._config = config
        self._passed = 0
        # Each line is whole in the file before the next thing happens.
        self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def _write(self, **fields: object) -> None:
        self._file.write(json.dumps(fields) + "\n")

    def _note(self, kind: str, name: str, text: str) -> None:
        self._write(kind=kind, name=name, text=text)
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            if terminal._tw.width_of_current_line:  # dots; it has no word for them of its own
                terminal.line("")
            terminal.write_line(f"failed: {name}: {text}")
            terminal.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        if report.failed:
            # `workers` has another word for a phase that no worker has told of.
            kind = TEST if report.when in ("setup", "call", "teardown") else DIED
            self._note(kind, report.nodeid, text_of(report.longrepr))
        elif report.passed and report.when == "call":
            self._passed += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was collected."""
        if report.failed:
            self._note(COLLECTION, report.nodeid, text_of(report.longrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Pytest itself failed, here or in a worker."""
        self._note(INTERNAL, "pytest", text_of(str(excrepr)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The run has ended."""
        self._write(status=int(exitstatus), passed=self._passed)
