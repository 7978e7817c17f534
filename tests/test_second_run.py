"""Runs of small suites: what `tools/second_run.py` says of them, and workers that die or wait."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = "from tests.conftest import pytest_collection_modifyitems\n"
SETTINGS = "[pytest]\naddopts = --import-mode=importlib\nmarkers = xdist_group\n"

MIXED = """
import os
import pytest

def is_alone(): return "PYTEST_XDIST_WORKER" not in os.environ

@pytest.fixture(scope="module")
def server():
    assert is_alone(), "the server did not start\\nand more"
    return 7

def test_fine(): pass

def test_fails_twice(): assert 1 == 2, "never right"

@pytest.mark.xdist_group("some group")
@pytest.mark.parametrize("value", ["a::b]@c [d", "\\u00e9\\n"])
def test_odd(value): assert is_alone(), value

def test_of_a_server(server): assert server == 7
"""

DIES = """
import os
def test_dies():
    with open("runs", "a") as file: file.write("x")
    os._exit(9)
def is_placed():
    return os.environ["PYTEST_XDIST_WORKER"] in ("gw0", "gw1")
def test_fine_one(): assert is_placed()
def test_fine_two(): assert is_placed()
"""

MEASURED = """
from pathlib import Path
from tests.support import idle, workers
idle.STATISTICS = Path("stat")
workers.LOOK_SECONDS = 0.01
"""

SPARES = """
import os
import time
from pathlib import Path
import pytest
from tests.support.eventually import wait_until

TICKS = {"used": 100, "idle": 100}
COUNT = 30

def machine(what):
    TICKS[what] += 100
    Path("new").write_text("cpu {used} 0 0 {idle} 0 0 0 0 0 0".format(**TICKS))
    os.replace("new", "stat")

def others():
    return set(Path().glob("ran-*"))

def test_waits():
    def has_begun():
        machine("idle")
        return others()
    wait_until(has_begun, what="a test of a spare worker")
    assert Path(f"ran-{COUNT - 1}") in others(), "it begins with the last"
    def stays():
        seen = others()
        for _ in range(10):
            machine("used")
            time.sleep(0.02)
        return others() == seen
    wait_until(stays, what="busy processors")
    assert len(others()) < COUNT

@pytest.mark.parametrize("number", range(COUNT))
def test_one(number):
    Path(f"ran-{number}").touch()
    worker = os.environ["PYTEST_XDIST_WORKER"]
    Path(f"place-{worker}-{os.environ['PYTEST_XDIST_WORKER_COUNT']}").touch()
    time.sleep(0.01)
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    # A worker's own variables would make the tests of a small suite think that they have one.
    # With that of the run around them their failures would be among its own.
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "COV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(importlib.import_module("failures").VARIABLE, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of a small run's time
    return importlib.import_module("second_run")


class Suite:
    """A folder with tests, and what the runs of them said."""

    def __init__(self, tool: ModuleType, folder: Path, **modules: str) -> None:
        self.tool, self.folder = tool, folder
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text(SETTINGS)
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        self.lines: list[str] = []
        self.first: Any = None

    def judged(self, *options: str, workers: int = 1) -> Any:
        """The verdict after both runs."""
        self.first = self.tool.run_pytest(
            "--workers", str(workers), *options, folder=self.folder, report=self.lines.append
        )
        return self.tool.again(self.first, folder=self.folder, report=self.lines.append)


def names(failures: Any) -> list[str]:
    return sorted(failure.name for failure in failures)


def test_what_passes_alone_is_flaky_and_what_fails_twice_has_failed(
    tool: ModuleType, tmp_path: Path
) -> None:
    suite = Suite(tool, tmp_path, test_mixed=MIXED)
    verdict = suite.judged(workers=2)
    flaky = {failure.name: failure.text for failure in verdict.flaky}
    odd = [name for name in flaky if "test_odd" in name]
    assert odd == [r"test_mixed.py::test_odd[a::b]@c [d]", r"test_mixed.py::test_odd[\xe9\n]"]
    assert flaky.keys() - odd == {"test_mixed.py::test_of_a_server"}
    assert flaky["test_mixed.py::test_of_a_server"].startswith(
        "AssertionError: the server did not start"
    )
    assert names(verdict.failed) == ["test_mixed.py::test_fails_twice"]
    assert "never right" in verdict.failed[0].text
    assert not verdict.is_good
    # Each is told when it happens, before pytest's own summary, and so is its second run.
    told = "".join(suite.lines)
    summary = told.index("= FAILURES =")
    for name in names(suite.first.failures):
        assert 0 < told.index(f"\nfailed: {name}: ") < summary < told.index(f"again, alone: {name}")
    assert f"passed alone: {odd[0]}" in told
    assert "failed again: test_mixed.py::test_fails_twice" in told


def test_three_flaky_tests_do_not_fail_a_run_and_a_fourth_does(tool: ModuleType) -> None:
    failures = tuple(tool.Failure("test", f"a.py::b[{number}]", "x") for number in range(4))
    assert tool.Verdict(flaky=failures[:3]).is_good
    assert not tool.Verdict(flaky=failures).is_good
    assert not tool.Verdict(failed=failures[:1]).is_good


def test_a_test_whose_worker_dies_has_failed_and_runs_no_second_time(
    tool: ModuleType, tmp_path: Path
) -> None:
    suite = Suite(tool, tmp_path, test_dies=DIES)
    verdict = suite.judged(workers=2)
    assert not verdict.is_good
    assert not verdict.flaky
    assert names(verdict.failed) == ["test_dies.py::test_dies"]
    assert "worker gw" in verdict.failed[0].text
    assert "died, with status 9" in verdict.failed[0].text
    assert suite.first.passed == 2
    assert (tmp_path / "runs").read_text() == "x"


def test_a_spare_worker_runs_the_last_tests_while_processors_are_idle(
    tool: ModuleType, tmp_path: Path
) -> None:
    suite = Suite(tool, tmp_path, test_spare=SPARES)
    (tmp_path / "conftest.py").write_text(CONFTEST + MEASURED)
    verdict = suite.judged("--spare-workers", "1")
    assert verdict.is_good, suite.lines
    assert suite.first.passed == 31
    # Each has a share of the ports for servers, of as many as there are workers.
    places = sorted(path.name for path in tmp_path.glob("place-*"))
    assert places == ["place-gw0-2", "place-gw1-2"]


@pytest.mark.parametrize(
    ("modules", "kind", "text"),
    [
        ({"test_a": "import nothing_of_this_name"}, "collection", "nothing_of_this_name"),
        (
            {"test_a": "def test_fine(): pass", "conftest": "def pytest_runtest_call(): 1 / 0"},
            "test",
            "ZeroDivisionError",
        ),
        (
            {
                "test_a": "def test_fine(): pass",
                "conftest": "def pytest_runtest_protocol(item): raise KeyError('inside')",
            },
            "internal",
            "inside",
        ),
        ({"test_a": "import os\nos._exit(3)"}, "pytest", "ended with status 3"),
    ],
    ids=["collection", "hook", "internal error", "end of the process"],
)
def test_what_is_no_failed_test_is_a_failure_at_once(
    tool: ModuleType, tmp_path: Path, modules: dict[str, str], kind: str, text: str
) -> None:
    suite = Suite(tool, tmp_path, **modules)
    verdict = suite.judged()
    assert not verdict.is_good
    assert not verdict.flaky
    assert any(each.kind == kind and text in each.text for each in verdict.failed), verdict.failed
    assert kind == "test" or "again, alone" not in "".join(suite.lines)


def test_many_failures_are_not_chance(tool: ModuleType) -> None:
    failures = tuple(tool.Failure("test", f"a.py::b[{n}]", "x") for n in range(tool.AGAIN_MAX + 1))
    lines: list[str] = []
    verdict = tool.again(tool.Run(1, 0, failures, 1.0), report=lines.append)
    assert verdict == tool.Verdict(failed=failures)
    assert len(lines) == 1


def test_a_run_that_is_killed_has_told_what_failed_before(tool: ModuleType, tmp_path: Path) -> None:
    waits = "import signal\ndef test_a(): assert 0, 'early'\ndef test_b(): signal.pause()\n"
    Suite(tool, tmp_path, test_waits=waits)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.failures"]
    command += ["-p", "tests.support.workers", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        found = next(line for line in process.stdout if line.startswith("failed: "))
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
    assert found == "failed: test_waits.py::test_a: AssertionError: early\n"


def test_the_list_of_runs_keeps_the_last_ones_and_shows_flaky_names(
    tool: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "cache" / "runs.json"
    flaky = tool.Verdict(flaky=(tool.Failure("test", "a.py::b", "x"),))
    tool.Runs(path).note("abc", 61.0, flaky, ["clippy"])
    assert tool.Runs(path).kept[0]["failed"] == ["clippy"]
    assert tool.Runs(path).lines()[1].endswith("abc failed: a.py::b")
    for number in range(tool.RUNS_MAX):
        tool.Runs(path).note(f"c{number}", 60.0, tool.Verdict(), [])
    assert len(tool.Runs(path).kept) == tool.RUNS_MAX
    assert tool.Runs(path).lines() == []
    path.write_text("{")
    assert tool.Runs(path).kept == []


def test_runs_on_a_busy_machine_end_with_each_test_that_failed(tool: ModuleType) -> None:
    loaded = importlib.import_module("run_loaded")
    runs = [
        {"flaky": ["a.py::often", "a.py::once"], "failed": []},
        {"flaky": ["a.py::often"], "failed": ["b.py::broken"]},
    ]
    assert loaded.summary(runs) == [
        "a.py::often: run 1 passed alone, run 2 passed alone",
        "a.py::once: run 1 passed alone",
        "b.py::broken: run 2 failed",
    ]
