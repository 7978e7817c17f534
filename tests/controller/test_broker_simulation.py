"""Controllers with brokers under them, from seeds; the run says what must hold."""

from __future__ import annotations

import pytest

from tests.controller.broker_bugs import BUGS, finds
from tests.controller.broker_world import BrokerWorld, Told, check_told
from tests.controller.simulated import InvariantError

SEEDS = 8


def test_masters_change_and_nothing_that_was_acknowledged_is_lost() -> None:
    worlds = [BrokerWorld(seed).run() for seed in range(SEEDS)]
    epochs = [max(each.epoch for each in world.told) for world in worlds]
    assert sum(len(world.acknowledged) for world in worlds) > 50 * SEEDS
    assert max(epochs) > 1, "no master was replaced"


def test_a_seed_decides_all_of_a_run_with_brokers() -> None:
    first, second = BrokerWorld(3).run(), BrokerWorld(3).run()
    assert first.told == second.told
    assert first.acknowledged == second.acknowledged


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_deliberate_bug_of_brokers_or_controllers_is_found(bug: type[BrokerWorld]) -> None:
    assert finds(bug, BUGS[bug])
    assert not finds(BrokerWorld, BUGS[bug])


def told(invoked: int, completed: int, epoch: int, set_epoch: int, master: int = 1) -> Told:
    return Told(invoked, completed, epoch, set_epoch, master, (1,))


def test_answers_that_have_no_order_are_found() -> None:
    check_told([told(0, 5, 1, 1), told(3, 8, 1, 2), told(4, 9, 1, 1), told(9, 12, 2, 3, 2)])
    for wrong, why in (
        ([told(0, 5, 1, 2), told(6, 8, 1, 1)], "older than"),
        ([told(0, 5, 1, 1), told(0, 5, 1, 1, master=2)], "two states"),
        ([told(0, 5, 1, 1), told(0, 5, 1, 2, master=2)], "two masters"),
    ):
        with pytest.raises(InvariantError, match=why):
            check_told(wrong)
