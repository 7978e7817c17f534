"""Fresh Python environments with the built wheels in them, and with nothing of this checkout."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["OWN", "PYTHONS", "Environment", "build"]

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 600
BIN = Path(sys.executable).parent
OWN = "{}.{}".format(*sys.version_info)
"""The Python of this run."""

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def _interpreters() -> dict[str, str]:
    """Version to executable, of those that are on the PATH or that pyenv has."""
    found = {OWN: getattr(sys, "_base_executable", sys.executable)}
    folders = os.environ["PATH"].split(os.pathsep)
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True)
        versions = Path(root.stdout.strip()) / "versions"
        folders = [*(str(folder) for folder in sorted(versions.glob("*/bin"))), *folders]
    path = os.pathsep.join(folders)
    for version in VERSIONS:
        command = shutil.which(f"python{version}", path=path)
        # A shim may be there without an interpreter behind it.
        if command and subprocess.run([command, "-c", ""], capture_output=True).returncode == 0:
            found.setdefault(version, command)
    return dict(sorted(found.items()))


PYTHONS = _interpreters()


def build(out: Path, *, only: str | None = None) -> list[Path]:
    """The wheels, or ``only`` one of them, in a new folder, as ``make dist`` builds them."""
    command = [sys.executable, str(ROOT / "tools" / "build_dist.py"), "--out", str(out)]
    command += ["--only", only] if only else []
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache" / "dist.lock").open("w") as lock:
        # Two builds at once write the same files of kernel/target: one wheel would be damaged.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(out.glob("*.whl"))


class Environment:
    """A virtual environment whose commands see no other programs than its own.

    Args:
        folder: where it is made.
        python: the interpreter.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.bin = folder, folder / "bin"
        command = [python, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, timeout=SECONDS_MAX, env=self._variables())

    def _variables(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KEROLOX_", "PYTHON", "COV_", "PYENV_", "VIRTUAL_ENV"))
        }
        return inherited | {"PATH": str(self.bin)}

    def install(self, *wheels: Path | str, extra: str = "") -> None:
        """Install wheels, or packages by name, and what they ask for in the locked versions."""
        # No hashes here: those of the wheels and of their ranges would be asked for, too.
        locked = (ROOT / "constraints.txt").read_text()
        versions = self.folder / "versions.txt"
        versions.write_text("\n".join(re.findall(r"^\w[^\\\n]+", locked, re.MULTILINE)))
        python = str(self.bin / "python")
        asked = ["--quiet", "-c", str(versions), *(f"{wheel}{extra}" for wheel in wheels)]
        uv = [str(BIN / "uv"), "pip", "install", "--python", python]
        pip = [sys.executable, "-m", "pip", "--python", python, "install"]
        # What the set-up has brought needs no network. uv links files; pip copies them.
        for command in ([*uv, "--offline"], uv, pip) if Path(uv[0]).exists() else [pip]:
            done = subprocess.run(
                [*command, *asked], capture_output=True, text=True, timeout=SECONDS_MAX
            )
            if done.returncode == 0:
                return
        raise AssertionError(done.stderr)

    def start(self, command: str, *arguments: object, log: Path) -> subprocess.Popen[bytes]:
        """Start one of its commands; all that it prints goes to the log."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [self.bin / command, *map(str, arguments)],
                cwd=self.folder,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def run(self, command: str, *arguments: object, **variables: str) -> str:
        """Run one of its commands to its end, which must be a good one; what it printed."""
        done = subprocess.run(
            [self.bin / command, *map(str, arguments)],
            cwd=self.folder,
            env=self._variables() | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
