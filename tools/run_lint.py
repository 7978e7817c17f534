"""Every check of the source text: formatting, types, structure, generated files. One line each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTHON_FOLDERS = ["src", "tests", "tools", "benchmarks"]


def checks() -> list[tuple[str, list[str], Path]]:
    """(name, command, folder) of each check that this machine can run."""
    python = [
        ("ruff check", [str(BIN / "ruff"), "check", "--quiet", *PYTHON_FOLDERS], ROOT),
        ("ruff format", [str(BIN / "ruff"), "format", "--check", "--quiet", *PYTHON_FOLDERS], ROOT),
        ("mypy strict", [str(BIN / "mypy")], ROOT),
        ("imports go down only", [str(BIN / "lint-imports"), "--no-cache"], ROOT),
        ("blocking clients are fresh", [sys.executable, "tools/generate_sync.py", "--check"], ROOT),
    ]
    if find_spec("kerolox_kernel") is not None:
        stubtest = [sys.executable, "-m", "mypy.stubtest", "kerolox_kernel"]
        python.append(("stub of the kernel", stubtest, ROOT))
    if shutil.which("cargo") is None:
        print("lint: cargo is not here; the kernel's checks (clippy, rustfmt) are left out")
        return python
    clippy = ["cargo", "clippy", "--quiet", "--all-targets", "--", "-D", "warnings"]
    return [
        *python,
        ("rustfmt", ["cargo", "fmt", "--check"], ROOT / "kernel"),
        ("clippy pedantic", clippy, ROOT / "kernel"),
    ]


def main() -> int:
    failed = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for name, command, folder in checks():
        started = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - started
        print(f"lint: {name:<28} {'ok' if done.returncode == 0 else 'FAILED':<7}{seconds:6.1f} s")
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout[-8000:] + done.stderr[-8000:])
    if failed:
        print(f"lint: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
