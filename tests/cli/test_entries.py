from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["kerolox", "kerolox.cli"])
def test_python_m_runs_the_command_line(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kerolox")
