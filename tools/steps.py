"""Commands that are steps of a longer run: each is timed, and what it printed is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from processors import wait_used

__all__ = ["BIN", "ROOT", "Step", "StepOutcome", "has_rust", "run_step", "sequence"]

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
OUTPUT_CHARACTERS_MAX = 16_000


def has_rust() -> bool:
    """Whether the kernel can be built here: it is written for Linux, and needs cargo."""
    return sys.platform == "linux" and shutil.which("cargo") is not None


@dataclass(frozen=True)
class Step:
    """One command of a run."""

    name: str
    command: Sequence[str]
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepOutcome:
    """How a step went; ``used`` are seconds of a processor, 0 where nobody counted them."""

    name: str
    succeeded: bool
    seconds: float
    output: str
    used: float = 0.0

    def __str__(self) -> str:
        line = f"{self.name:<28} {'ok' if self.succeeded else 'FAILED':<7}{self.seconds:6.1f} s"
        if self.used:
            line += f"{self.used:9.1f} s of a processor"
        return line if self.succeeded else f"{line}\n{self.output[-OUTPUT_CHARACTERS_MAX:]}"


def run_step(step: Step) -> StepOutcome:
    """Run a step to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **step.environment}
    started = time.monotonic()
    with subprocess.Popen(
        step.command,
        cwd=step.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        used = wait_used(process)
    seconds = time.monotonic() - started
    return StepOutcome(step.name, process.returncode == 0, seconds, output, used)


def sequence(
    pool: ThreadPoolExecutor,
    steps: Iterable[Step],
    report: Callable[[StepOutcome], None] = lambda outcome: None,
) -> Future[list[StepOutcome]]:
    """Run steps one after the other beside other work; ``report`` hears of each as it ends."""

    def run() -> list[StepOutcome]:
        outcomes = []
        for step in steps:
            outcomes.append(run_step(step))
            report(outcomes[-1])
        return outcomes

    return pool.submit(run)
