"""A loss of power: of what was not flushed anything may be there, torn or gone."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.support.faults.crashing import Crashable, Disk, Ledger, Loss
from tests.support.kernels import KERNELS

if TYPE_CHECKING:
    from pathlib import Path


SEEDS = int(os.environ.get("KEROLOX_CRASH_SEEDS", "20"))


def lose_power_once(crashable: Crashable, ledger: Ledger, disk: Disk, seed: int) -> int:
    """Put messages, flush now and then, lose power; the offset that was flushed."""
    chance = random.Random(seed)
    flushed = 0
    for _ in range(chance.randint(1, 5)):
        ledger.fill(crashable, chance.randint(1, 40))
        kind = chance.random()
        if kind < 0.4:
            flushed = crashable.store.flush()
            disk.flushed()
        elif kind < 0.7:
            flushed = crashable.flush_log()
            disk.flushed("commitlog")
    crashable.kill()
    disk.lose_power(seed)
    return flushed


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_flushed_survives_a_loss_of_power(
    kernel: str, seed: int, memory_path: Path
) -> None:
    crashable, ledger = Crashable(kernel, memory_path / "store"), Ledger(seed)
    disk = Disk(crashable.folder)
    crashable.open()
    disk.flushed()
    for life in range(2):
        flushed = lose_power_once(crashable, ledger, disk, seed * 2 + life)
        report = crashable.open()
        assert not report.clean
        ledger.check(crashable, Loss(flushed))
        # What was found is what the next life builds on.
        crashable.store.flush()
        disk.flushed()
    ledger.check_onward(crashable)
