"""Random steps, taken by a store and by a plain model of it: they agree after each.

Puts of every kind, batches, chunks of the hot path, ends of files, flushes, clean stops, kills,
losses of power, deletions, retention, reads by offset, time, key and physical offset. With one
kernel, and with both in turn on one store.

``KEROLOX_MODEL_STEPS`` says how many steps each takes at least; with it, scenarios that were never
told before are among them. A failure tells the seed of its scenario; with it in
``KEROLOX_MODEL_SEED`` the scenario is told again, and made as small as it can be.
"""

from __future__ import annotations

import importlib
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import StoreMachine, machine_of
from tests.support.kernels import KERNELS, MODULES

IS_LONG = "KEROLOX_MODEL_STEPS" in os.environ
STEPS = int(os.environ.get("KEROLOX_MODEL_STEPS", "400"))
SCENARIO_STEPS, SCENARIOS = 60, 4
GIVEN_SEED = int(os.environ.get("KEROLOX_MODEL_SEED", "0"))
SEED = GIVEN_SEED or random.SystemRandom().randrange(1, 1 << 31)
KNOWN_SEED = 20_260_101
SEEDS = {"known": KNOWN_SEED, **({"new": SEED} if IS_LONG or GIVEN_SEED else {})}
# To make a scenario that fails small takes minutes.
PHASES = (Phase.generate, Phase.shrink) if GIVEN_SEED else (Phase.generate,)

PAIRS = [(name,) for name in KERNELS] + ([("python", "native")] if len(KERNELS) > 1 else [])


@pytest.mark.parametrize("first_seed", SEEDS.values(), ids=SEEDS)
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_a_store_does_what_its_model_does(
    names: tuple[str, ...], first_seed: int, tmp_path: Path
) -> None:
    machine = machine_of(
        tuple(importlib.import_module(MODULES[name]) for name in names), tmp_path / "store"
    )
    StoreMachine.steps = 0
    number = first_seed
    while StoreMachine.steps < STEPS:
        try:
            seed(number)(machine)
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=SCENARIOS,
                    stateful_step_count=SCENARIO_STEPS,
                    deadline=None,
                    database=None,
                    report_multiple_bugs=False,
                    phases=PHASES,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except BaseException:
            print(f"KEROLOX_MODEL_SEED={number} tells this scenario again")
            raise
        number += 1
    print(f"{StoreMachine.steps} steps, seeds {first_seed} to {number - 1}")
