"""What several tests of the documentation share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built documentation; a warning is an error."""
    out = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, str(ROOT / "tools" / "build_docs.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
