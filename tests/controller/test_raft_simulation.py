"""Whole groups of three and five nodes from seeds; the run says what must hold."""

from __future__ import annotations

import pytest

from kerolox.controller.raft.raft import Raft
from tests.controller.raft_bugs import BUGS, finds
from tests.controller.simulated import World

SEEDS = 24


@pytest.mark.parametrize("size", [3, 5])
def test_what_raft_promises_holds_over_faults(size: int) -> None:
    for seed in range(SEEDS // size):
        world = World(seed, size=size).run()
        assert len(world.committed) > 50


def test_a_seed_decides_all_of_a_run() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.history.operations == second.history.operations


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_deliberate_bug_is_found(bug: type[Raft]) -> None:
    seed = BUGS[bug]
    assert finds(bug, seed)
    assert not finds(Raft, seed)
