"""Which checks of the kernel have passed with the same files: they need not run again here.

Building for them costs minutes of a processor, beside the tests in Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from steps import ROOT, Step, StepOutcome

sys.path.insert(0, str(ROOT))

from tests.support.kept import digest_of

__all__ = ["Passed", "kernel_files", "state_of"]

VARIABLES = ("RUSTFLAGS", "KEROLOX_FUZZ_TRIES", "PROPTEST_CASES")
"""Of the environment, what changes a check."""


def kernel_files() -> Iterator[Path]:
    """All that the checks of the kernel read."""
    for folder, names, files in os.walk(ROOT / "kernel"):
        names[:] = [name for name in names if name != "target"]
        yield from (Path(folder, name) for name in files)
    yield ROOT / "rust-toolchain.toml"
    yield from (ROOT / "tests" / "golden").rglob("*.xz")


def state_of(
    files: Iterable[Path],
    compiler: str,
    environment: Mapping[str, str],
    commands: Iterable[Sequence[str]] = (),
) -> str:
    """A hash of some files, of the compiler's version, of commands and of what else changes a
    check."""
    text = "\0".join((compiler, *map(" ".join, commands)))
    text += "".join(f"{name}={environment.get(name, '')}\n" for name in VARIABLES)
    return digest_of(files, ROOT, text)


def compiler() -> str:
    """The compiler that the kernel's folder names, with its version."""
    command = ["rustc", "--version", "--verbose"]
    return subprocess.run(command, cwd=ROOT / "kernel", capture_output=True, text=True).stdout


class Passed:
    """Steps by name, each with the state of the files with which it has passed."""

    def __init__(self, path: Path, state: str) -> None:
        """``path`` keeps them; ``state`` is that of the files now."""
        self._path = path
        self._state = state
        try:
            self._states: dict[str, str] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._states = {}

    def left(self, steps: Iterable[Step]) -> list[Step]:
        """Those that have not passed with these files."""
        return [step for step in steps if self._states.get(step.name) != self._state]

    def note(self, outcome: StepOutcome) -> None:
        """A step was run."""
        if outcome.succeeded:
            self._states[outcome.name] = self._state
        else:
            self._states.pop(outcome.name, None)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._states))
