"""A plugin of pytest: each failure is reported when it happens, not only at the end of a run.

    python -m pytest -p tools.failures ...

A line with the test's name and its error stands among the dots. The file that `VARIABLE` names gets
a line of JSON for it, and a last one when the run has ended. A test whose worker dies has failed;
xdist's own scheduler would give it to the next worker, and that one might wait for more forever.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadGroupScheduling
    from xdist.workermanage import WorkerController

VARIABLE = "KEROLOX_FAILURES"
"""The file that is written; its folder is there."""

TEST, DIED, WORKER, COLLECTION, INTERNAL = "test", "died", "worker", "collection", "internal"
"""What failed: a test, a test whose worker died, a worker, a file that was collected, pytest."""

TEXT_CHARACTERS_MAX = 300

EXCEPTION = re.compile(
    r"^(?:E\b)?\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE
)
"""A traceback's line of the exception itself."""


def pytest_configure(config: pytest.Config) -> None:
    """Listen where reports of all workers come together."""
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Failures(config, os.environ.get(VARIABLE, os.devnull)))
    config.pluginmanager.register(Scheduler())


def name_of(nodeid: str) -> str:
    """A test's name as pytest takes it, without the group that ends it in a worker."""
    # As xdist itself tells them apart: a parameter, which a bracket ends, may have the sign, too.
    at = nodeid.rfind("@")
    return nodeid[:at] if at > nodeid.rfind("]") and "::" in nodeid[:at] else nodeid


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
            # xdist's own word for a phase that no worker has told of.
            kind = TEST if report.when in ("setup", "call", "teardown") else DIED
            self._note(kind, name_of(report.nodeid), text_of(report.longrepr))
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        """A worker has ended; ``error`` when nobody asked it to."""
        if error:
            self._note(WORKER, f"worker {node.gateway.id}", f"it died: {error}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The run has ended."""
        self._write(status=int(exitstatus), passed=self._passed)


class Scheduler:
    """Gives each test to one worker, and no other one."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> LoadGroupScheduling | None:
        """Xdist's own, but for tests whose worker died."""
        if config.getvalue("dist") != "loadgroup":
            return None
        from xdist.scheduler import LoadGroupScheduling

        class Once(LoadGroupScheduling):  # type: ignore[misc]
            @cached_property
            def _places(self) -> dict[str, int]:
                """Where each test is among those that were collected, which each worker has."""
                return {name: place for place, name in enumerate(self.collection)}

            def _assign_work_unit(self, node: WorkerController) -> None:
                """Give a worker the next unit. Xdist's own looks for each test among all."""
                scope, unit = self.workqueue.popitem(last=False)
                self.assigned_work[node][scope] = unit
                node.send_runtest_some([self._places[name] for name in unit if not unit[name]])

            def mark_test_complete(
                self, node: WorkerController, item_index: int, duration: float = 0
            ) -> None:
                """A test has ended. What a worker is done with is forgotten: xdist's own counts all
                that each worker ever had, at each end of a test."""
                name = self.collection[item_index]
                scope = self._split_scope(name)
                units = self.assigned_work[node]
                units[scope][name] = True
                if all(units[scope].values()):
                    del units[scope]
                self._reschedule(node)

            def remove_node(self, node: WorkerController) -> str | None:
                """A worker is gone; the test that it died with, others get what it left."""
                units = self.assigned_work.pop(node)
                left = [(unit, name) for unit in units.values() for name in unit if not unit[name]]
                for unit, name in left[:1]:
                    unit[name] = True
                for scope, unit in units.items():
                    if not all(unit.values()):
                        self.workqueue[scope] = unit
                for other in self.assigned_work if left else ():
                    self._reschedule(other)
                return left[0][1] if left else None

            def _reschedule(self, node: WorkerController) -> None:
                """Give a worker two tests at least: it waits for what follows its next one."""
                while (
                    self.workqueue
                    and not node.shutting_down
                    and self._pending_of(self.assigned_work[node]) < 2
                ):
                    self._assign_work_unit(node)
                super()._reschedule(node)

        return Once(config, log)
