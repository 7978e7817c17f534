"""What the checks of consumers say of runs that are written down by hand."""

from __future__ import annotations

import pytest

from tests.simulation.checks import Contents, Kept, check_received, may_be_lost
from tests.simulation.history import (
    CRASHED,
    KILLED,
    OK,
    PLAIN,
    PROMOTED,
    SEND_OK,
    STARTED,
    Event,
    Group,
    History,
    Received,
    Subscribed,
)
from tests.simulation.run import run_seed
from tests.simulation.scenario import Fault, Scenario, quiet

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


@pytest.mark.parametrize(
    ("is_slave", "at", "is_well"), [(True, 2.5, True), (False, 2.5, False), (True, 1.5, False)]
)
def test_a_slave_may_give_out_an_earlier_life_of_a_topic_that_it_has_not_heard_of(
    is_slave: bool, at: float, is_well: bool
) -> None:
    history = History(groups={"g": Group("g", ("t",))}, deleted_topics={"t": 2.0})
    history.event(Event(0.0, STARTED, "b", "b-slave", is_master=not is_slave))
    for key, began in (("old", 1.0), ("new", 3.0)):
        history.send(key, "t", PLAIN, began)
    history.received.append(Received(at, "g", "c", "old", "t", "b", 0, 0, result=OK))
    contents = Contents()
    contents.queues["b", "t", 0].append(Kept("new", "b", "t", 0, 0, LOST_FROM, False))
    assert (check_received(history, contents) == []) is is_well


@pytest.mark.parametrize(
    ("killed", "is_back", "may_be"),
    [
        ("slave-1", False, True),
        ("slave-1", True, False),
        ("slave-0", False, False),
        ("", False, False),
    ],
)
def test_what_one_slave_had_may_be_lost_when_another_is_promoted(
    killed: str, is_back: bool, may_be: bool
) -> None:
    history = History("ASYNC_FLUSH", "SYNC_MASTER")
    sent = history.send("k", "t", PLAIN, 1.0)
    sent.told(1.5, SEND_OK, "b", 0, 0, LOST_FROM)
    if killed:
        history.event(Event(2.0, KILLED, "b", killed, is_master=False))
    if is_back:
        history.event(Event(2.5, STARTED, "b", killed, is_master=False))
    history.event(Event(3.0, PROMOTED, "b", "slave-0", LOST_FROM, LOST_FROM))
    assert may_be_lost(history, sent) is may_be


def reset_late(seed: int) -> Scenario:
    """A broker stands still while an operator resets offsets, and does it when that one gave up:
    messages that came meanwhile are skipped, too."""
    scenario = quiet(seed)
    scenario.producers[0].count = 20
    scenario.groups[0].is_popped = True
    scenario.faults = [
        Fault(0.3, "pause", "broker-0", seconds=4.0),
        Fault(0.5, "reset_offsets", "operator", other="readers", amount=0.1),
    ]
    return scenario


def test_a_reset_that_a_broker_does_late_skips_what_is_there_then() -> None:
    result = run_seed(0, scenario=reset_late)

    assert any("operator command fails: RequestTimeoutError" in line for line in result.lines)
    assert result.faults == []
