"""What the checks of consumers say of runs that are written down by hand."""

from __future__ import annotations

import pytest

from tests.simulation.checks import Contents, Kept, check_received
from tests.simulation.history import CRASHED, PLAIN, STARTED, Event, Group, History, Subscribed

LOST_FROM = 500
"""Where the log ends after a crash; it was longer before."""


@pytest.mark.parametrize(
    ("tags", "queue_end", "position", "is_well"),
    [
        ("a", 1, LOST_FROM, True),
        ("a", 0, LOST_FROM, False),
        ("a", 1, LOST_FROM - 1, False),
        ("*", 1, LOST_FROM, False),
    ],
)
def test_a_message_at_the_place_of_one_that_was_not_wanted_and_is_lost_may_be_passed(
    tags: str, queue_end: int, position: int, is_well: bool
) -> None:
    history = History(groups={"g": Group("g", ("t",))})
    history.groups["g"].subscriptions.append(Subscribed(0.0, 0.0, tags))
    history.event(Event(1.0, CRASHED, "b", "b", 900, queue_ends={("t", 0): queue_end}))
    history.event(Event(2.0, STARTED, "b", "b", LOST_FROM))
    history.send("k", "t", PLAIN, 3.0).tag = "a"
    contents = Contents()
    contents.queues["b", "t", 0].append(Kept("k", "b", "t", 0, 0, position, False))
    assert (check_received(history, contents) == []) is is_well
