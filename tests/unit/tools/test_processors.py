"""What a run says about processors: how long they were idle, and what a step used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]

STATISTICS = "cpu  {user} 0 0 {idle} {disk} 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\n"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("processors")


def test_the_idle_share_of_a_run_counts_waits_for_the_disk(
    tool: ModuleType, tmp_path: Path
) -> None:
    statistics = tmp_path / "stat"
    statistics.write_text(STATISTICS.format(user=500, idle=500, disk=0))
    processors = tool.Processors(statistics)
    statistics.write_text(STATISTICS.format(user=575, idle=515, disk=10))
    assert processors.line() == "processors idle: 25 %; by minute: 25"


def test_where_no_statistics_are_nothing_is_said_of_them(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.Processors(tmp_path / "stat").line() == ""


def test_the_seconds_of_a_step_hold_those_of_what_it_started(tool: ModuleType) -> None:
    work = "import time\nwhile time.process_time() < 0.05: pass"
    outer = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer])
    assert tool.wait_used(process) >= 0.05
    assert process.returncode == 0
