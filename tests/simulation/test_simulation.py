"""Simulated clusters: some seeds in each run of the tests, many with ``tools/simulate.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run_seed
from tests.simulation.scenario import quiet

ROOT = Path(__file__).resolve().parents[2]


def test_a_cluster_without_faults_delivers_each_message_once() -> None:
    result = run_seed(1, scenario=quiet)

    assert result.faults == []
    assert result.counts["sent"] == result.counts["told"] == result.counts["received"] == 10


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_takes_the_same_course(seed: int) -> None:
    once, again = run_seed(seed), run_seed(seed)

    assert (again.digest, again.steps) == (once.digest, once.steps)
    assert run_seed(seed + 1_000).digest != once.digest


def test_another_process_takes_the_same_course() -> None:
    code = "from tests.simulation.run import run_seed; print([run_seed(n).digest for n in (3, 4)])"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    outputs = {
        subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True
        ).stdout
        for _ in range(2)
    }

    assert len(outputs) == 1


def test_a_failing_seed_is_told_with_its_last_steps() -> None:
    command = [sys.executable, "tools/simulate.py", "--seed", "1", "--trace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)

    assert "seed 1: " in done.stdout
    assert "start broker-0" in done.stdout
