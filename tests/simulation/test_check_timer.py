"""What the checks of the timer say of runs that are written down by hand."""

from __future__ import annotations

import pytest

from kerolox.protocol.names import TIMER_TOPIC
from tests.simulation.check_timer import check_timer
from tests.simulation.checks import Contents, Kept
from tests.simulation.history import DELAYED, History

STEP_MS = 200
DELAY_MS = 700


def _faults(
    waited_ms: int, came_ms: int, *kinds: str, has_pool: bool = False, dequeued_ms: int = 0
) -> list[str]:
    """A message whose step is 1,000 to 1,200: its record of the timer's topic has the time
    ``waited_ms``, and its copy ``came_ms``."""
    history = History(timer_step_ms=STEP_MS, kinds=frozenset(kinds), has_pool=has_pool)
    history.send("k", "t", DELAYED, 0.0).delay_ms = DELAY_MS
    contents = Contents()
    for topic, stored_ms in ((TIMER_TOPIC, waited_ms), ("t", came_ms)):
        kept = Kept("k", "b", topic, 0, 0, 100, False, 1_000, stored_ms, dequeued_ms)
        contents.by_topic[topic]["k"].append(kept)
    return check_timer(history, contents)


@pytest.mark.parametrize(("came_ms", "is_well"), [(1_149, False), (1_150, True)])
def test_a_message_that_comes_before_its_moment_is_told(came_ms: int, is_well: bool) -> None:
    assert (_faults(450, came_ms, "clock") == []) is is_well
    assert (_faults(450, 100, "clock", dequeued_ms=came_ms) == []) is is_well


@pytest.mark.parametrize(("came_ms", "is_well"), [(999, False), (1_200, True)])
def test_a_log_whose_times_wait_for_a_clock_that_was_set_back_tells_the_step_alone(
    came_ms: int, is_well: bool
) -> None:
    assert (_faults(1_100, came_ms, "clock") == []) is is_well


@pytest.mark.parametrize(("came_ms", "is_well"), [(1_270, True), (1_271, False)])
def test_a_message_that_comes_late_while_all_is_well_is_told(came_ms: int, is_well: bool) -> None:
    assert (_faults(450, came_ms) == []) is is_well
    assert _faults(450, came_ms, has_pool=True) == []
