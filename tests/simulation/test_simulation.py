"""Simulated clusters: some seeds in each run of the tests, many with ``tools/simulate.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.bugs import NOT_STORED, SeededBug, plant
from tests.simulation.dedup_bugs import DEDUP_BUGS
from tests.simulation.grpc_bugs import GRPC_BUGS
from tests.simulation.pop_bugs import POP_BUGS
from tests.simulation.run import run_seed
from tests.simulation.scenario import (
    CHANGES,
    Fault,
    Scenario,
    by_grpc,
    copies_left_behind,
    deduped,
    drawn,
    mixed,
    popped,
    quiet,
    timed,
)
from tests.simulation.timer_bugs import TIMER_BUGS

ROOT = Path(__file__).resolve().parents[2]
TRIED_SEEDS = 25
"""That have a kind of change. A bug in it is found by one of the first ten or so."""


def test_a_cluster_without_faults_delivers_each_message_once() -> None:
    result = run_seed(1, scenario=quiet)

    assert result.faults == []
    assert result.counts["sent"] == result.counts["told"] == result.counts["received"] == 10


def crashed_on_a_disk_that_fills(seed: int) -> Scenario:
    """Its disk is full from its start on, which needs space for the timer's wheel."""
    scenario = timed(seed)
    crash = Fault(0.1, "crash", "broker-0", seconds=0.5)
    scenario.faults = [crash, Fault(crash.at + crash.seconds, "full_disk", "broker-0", seconds=0.3)]
    return scenario


@pytest.mark.parametrize("seed", [0, 1])
def test_a_broker_whose_disk_fills_as_it_starts_is_started_again(seed: int) -> None:
    """Before the start, or in it: the seed decides what is first in one moment."""
    result = run_seed(seed, scenario=crashed_on_a_disk_that_fills)

    assert any("refuses to start" in line for line in result.lines)
    assert result.faults == []


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_takes_the_same_course(seed: int) -> None:
    once, again = run_seed(seed), run_seed(seed)

    assert (again.digest, again.steps) == (once.digest, once.steps)
    assert run_seed(seed + 1_000).digest != once.digest


def test_the_folder_of_a_run_says_nothing(tmp_path: Path) -> None:
    runs = [run_seed(50_052, scenario=mixed, root=tmp_path / each) for each in ("one", "other")]

    assert any("can't be used: /broker-0" in line for line in runs[0].lines)
    assert runs[0].digest == runs[1].digest


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


def test_open_transactions_survive_a_slave_that_lacks_their_copies() -> None:
    for seed in range(3):
        assert run_seed(seed, scenario=copies_left_behind).faults == []
    # The scenario is the one: it fails where the slave's position of halves is ahead of its log.
    bug = plant("half-positions-ahead")
    results = [run_seed(n, scenario=copies_left_behind, on_patched=bug) for n in range(3)]
    faults = [fault for result in results for fault in result.faults]
    assert any("was to be committed and is not there" in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("bug", "kind", "found_by"),
    [
        ("offsets-outlive-topic", "remake_topic", 26),
        ("delayed-to-lost-queue", "queues", 2),
        ("highest-version-counts", "subscribe", 57),
    ],
)
def test_a_bug_in_what_changes_meanwhile_is_found(bug: str, kind: str, found_by: int) -> None:
    seeds = (n for n in range(1_000) if any(fault.kind == kind for fault in drawn(n).faults))
    tried = [found_by, *(next(seeds) for _ in range(TRIED_SEEDS))]
    assert any(run_seed(seed, on_patched=plant(bug)).faults for seed in tried)


def test_all_changes_are_drawn() -> None:
    drawn_kinds = {fault.kind for seed in range(100) for fault in drawn(seed).faults}
    assert drawn_kinds >= set(CHANGES)


def test_a_failing_seed_is_told_with_its_last_steps() -> None:
    command = [sys.executable, "tools/simulate.py", "--seed", "1", "--trace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)

    assert "seed 1: " in done.stdout
    assert "start broker-0" in done.stdout


STORED_POP_BUGS = [name for name, bug in POP_BUGS.items() if bug.seed != NOT_STORED]
STORED_TIMER_BUGS = [name for name, bug in TIMER_BUGS.items() if bug.seed != NOT_STORED]
POP_SEEDS = sorted({POP_BUGS[name].seed for name in STORED_POP_BUGS})
TIMER_SEEDS = sorted({TIMER_BUGS[name].seed for name in STORED_TIMER_BUGS})
"""Each is well without a bug."""
STUCK_SECONDS = 40.0
"""Longer than these seeds need without a bug."""


@pytest.mark.parametrize("seed", POP_SEEDS)
def test_messages_that_are_popped_reach_their_groups(seed: int) -> None:
    assert run_seed(seed, scenario=popped, rest_seconds=STUCK_SECONDS).faults == []


@pytest.mark.parametrize("bug", STORED_POP_BUGS)
def test_a_bug_in_pops_is_found(bug: str) -> None:
    assert _is_found(POP_BUGS[bug], popped)


@pytest.mark.parametrize("bug", GRPC_BUGS)
def test_a_bug_in_calls_by_grpc_is_found(bug: str) -> None:
    found = GRPC_BUGS[bug]
    assert run_seed(found.seed, scenario=by_grpc, rest_seconds=STUCK_SECONDS).faults == []
    assert _is_found(found, by_grpc)


@pytest.mark.parametrize("seed", TIMER_SEEDS)
def test_messages_for_a_moment_reach_their_groups(seed: int) -> None:
    assert run_seed(seed, scenario=timed, rest_seconds=STUCK_SECONDS).faults == []


@pytest.mark.parametrize("bug", STORED_TIMER_BUGS)
def test_a_bug_in_the_timer_is_found(bug: str) -> None:
    assert _is_found(TIMER_BUGS[bug], timed)


@pytest.mark.parametrize("kind", [popped, timed])
def test_pops_and_the_timer_take_the_same_course(kind: Callable[[int], Scenario]) -> None:
    once, again = (run_seed(2, scenario=kind) for _ in range(2))
    assert (again.digest, again.steps) == (once.digest, once.steps)


@pytest.mark.parametrize("bug", DEDUP_BUGS)
def test_a_bug_in_the_windows_of_keys_is_found(bug: str) -> None:
    assert _is_found(DEDUP_BUGS[bug], deduped)


@pytest.mark.parametrize("seed", sorted({bug.seed for bug in DEDUP_BUGS.values()}))
def test_topics_store_no_key_twice(seed: int) -> None:
    assert run_seed(seed, scenario=deduped).faults == []


def _is_found(bug: SeededBug, kind: Callable[[int], Scenario]) -> bool:
    """By its seed, or by one of some others where a change of the source has moved it; then
    ``tools/simulate.py --bug`` finds the seed to be stored."""
    return any(
        run_seed(seed, scenario=kind, on_patched=bug.install, rest_seconds=STUCK_SECONDS).faults
        for seed in (bug.seed, *range(TRIED_SEEDS))
    )
