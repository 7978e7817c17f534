"""Lint, then every test that this machine can run; says what is left out and how to get it.

With ``CI=true`` nothing may be left out: a missing tool is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.spark.java import require_java

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.golden import copy_golden  # noqa: E402 - found through the line above


def missing_tools() -> list[tuple[str, str]]:
    """(marker of the tests that can't run, why) for each tool that is not here."""
    missing = []
    try:
        require_java()
    except ConfigError as error:
        missing += [("java", f"{error}, and Maven"), ("spark", str(error))]
    else:
        if shutil.which("mvn") is None:
            missing += [("java", "no mvn on the PATH; install Maven")]
    if shutil.which("go") is None:
        missing += [("go", "no go on the PATH; install Go 1.20 or newer")]
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing += [("node", "no node and npm on the PATH; install Node.js 18 or newer")]
    return missing


def cargo_test() -> int:
    """The engine's own tests and the corpus of its fuzz targets, with a fresh copy of the golden
    store."""
    target = ROOT / ".cache" / "golden"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    environment = {**os.environ, "KEROLOX_GOLDEN": str(copy_golden(target).folder)}
    command = ["cargo", "test", "--quiet", "--release", "-p", "kerolox-core", "-p", "kerolox-fuzz"]
    command += ["--", "--include-ignored"]
    return subprocess.run(command, cwd=ROOT / "kernel", env=environment).returncode


def main() -> int:
    missing = missing_tools()
    for marker, why in missing:
        print(f"tests: the {marker} tests are left out: {why}")
    if missing and os.environ.get("CI") == "true":
        print("tests: CI=true, so nothing may be left out")
        return 1
    lint = subprocess.run([sys.executable, str(ROOT / "tools" / "run_lint.py")]).returncode
    if lint:
        return lint
    if shutil.which("cargo") is not None and (cargo_test() or find_spec("kerolox_kernel") is None):
        print("tests: the kernel's tests failed, or the kernel was not built (make setup)")
        return 1
    chosen = " and ".join(f"not {marker}" for marker, _ in missing)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["--durations=15", *(["-m", chosen] if chosen else []), *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
