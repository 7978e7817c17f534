"""What the checks of pops say of runs that are written down by hand."""

from __future__ import annotations

import pytest

from kerolox.protocol.names import DLQ_PREFIX
from tests.simulation.check_pops import check_popped
from tests.simulation.checks import Contents, Kept
from tests.simulation.history import (
    CRASHED,
    PLAIN,
    STARTED,
    Event,
    Group,
    History,
    Received,
    Reset,
    Rewind,
)
from tests.simulation.process import EPOCH_SECONDS

RESET_AT = 20.0
LOG_END = 300


def _faults(
    letter: Kept | None, *, clock_jumps: int = 0, came_at: float = 10.0, queue_id: int = 0
) -> list[str]:
    """A message of 5.0 in queue 0 that a member had at ``came_at``, and the offset of a queue set
    back at 20.0."""
    group = Group("g", ("t",), is_popped=True, is_rewound=True, retries_max=0)
    group.rewinds["t", "b", queue_id] = Rewind(RESET_AT, LOG_END)
    history = History(groups={"g": group}, clock_jumps=clock_jumps)
    history.send("k", "t", PLAIN, 5.0).told(5.0, "SEND_OK", "b", 0, 0, 100)
    history.received.append(Received(came_at, "g", "g-0", "k", "t", "b", 0, 0, popped_at=came_at))
    contents = Contents()
    for kept in (Kept("k", "b", "t", 0, 0, 100, False), letter):
        if kept is not None:
            contents.by_topic[kept.topic][kept.key].append(kept)
            contents.queues[kept.broker, kept.topic, kept.queue_id].append(kept)
    return check_popped(history, contents)


def _letter(first_pop: float, physical_offset: int = 400, broker: str = "b") -> Kept:
    first_pop_ms = round((EPOCH_SECONDS + first_pop) * 1_000)
    return Kept(
        "k", broker, DLQ_PREFIX + "g", 0, 0, physical_offset, False, first_pop_ms=first_pop_ms
    )


@pytest.mark.parametrize(
    "letter",
    [None, _letter(10.0), _letter(21.0, broker="b2")],
    ids=["none", "of-before", "of-another-broker"],
)
def test_a_message_that_does_not_come_again_after_a_reset_is_told(letter: Kept | None) -> None:
    assert [fault for fault in _faults(letter) if "again after 20.000" in fault]


def test_a_message_that_comes_again_after_a_reset_is_well() -> None:
    assert _faults(None, came_at=21.0) == []


def test_a_reset_does_not_concern_the_queues_that_it_did_not_set() -> None:
    assert _faults(None, queue_id=1) == []


def test_a_dead_letter_of_a_pop_after_a_reset_came_again() -> None:
    assert _faults(_letter(21.0)) == []


@pytest.mark.parametrize(("physical_offset", "is_well"), [(LOG_END, True), (200, False)])
def test_the_log_tells_of_a_dead_letter_where_clocks_jump(
    physical_offset: int, is_well: bool
) -> None:
    faults = _faults(_letter(10.0, physical_offset), clock_jumps=1)

    assert (faults == []) is is_well


@pytest.mark.parametrize(("other_popped_at", "is_well"), [(1.5, False), (0.9, True)])
def test_a_pop_counts_from_when_its_broker_gave_it_out(
    other_popped_at: float, is_well: bool
) -> None:
    """A member comes late for what was popped before a crash, when another one has it again."""
    group = Group("g", ("t",), is_popped=True)
    history = History(groups={"g": group}, clock_jumps=1)
    history.event(Event(1.0, CRASHED, "b", "b"))
    first = Received(1.6, "g", "g-0", "k", "t", "b", 0, 0, popped_at=1.4)
    late = Received(1.8, "g", "g-1", "k", "t", "b", 0, 0, popped_at=other_popped_at)
    history.received += [first, late]

    assert (check_popped(history, Contents()) == []) is is_well


def test_of_two_lives_with_one_pop_time_the_one_counts_whose_answer_had_come() -> None:
    history = History()
    delivery = ("g", "b", "t", 0, 0, 1_000)
    history.came("g-0", delivery, 1.2)
    history.popped(delivery, 1.0)
    history.popped(delivery, 2.0)

    assert history.popped_at("g-0", delivery, 3.0) == 1.0
    assert history.popped_at("g-1", delivery, 3.0) == 2.0


def test_what_no_broker_gave_out_is_told() -> None:
    group = Group("g", ("t",), is_popped=True)
    history = History(groups={"g": group})
    history.received.append(Received(1.6, "g", "g-0", "k", "t", "b", 0, 0))

    [fault] = check_popped(history, Contents())
    assert "no broker gave out" in fault


def _again(*events: Event, reset: Reset | None = None) -> list[str]:
    """A message that a member had at 1.0, and another one at 3.0."""
    group = Group("g", ("t",), is_popped=True, resets=[] if reset is None else [reset])
    history = History(groups={"g": group}, snapshot_seconds=0.5)
    for event in events:
        history.event(event)
    for at in (1.0, 3.0):
        history.received.append(Received(at, "g", "g-0", "k", "t", "b", 0, 0, popped_at=at))
    return check_popped(history, Contents())


@pytest.mark.parametrize(
    ("given_back_at", "popped_again_at", "is_well"),
    [(4.5, 4.1, True), (4.5, 3.9, False), (2.0, 2.1, True), (2.0, 1.9, False)],
    ids=["too-late", "too-late-and-given-twice", "in-time", "given-twice"],
)
def test_what_is_given_back_is_held_until_then_or_to_the_end_of_its_time(
    given_back_at: float, popped_again_at: float, is_well: bool
) -> None:
    """An ordered pop at 1.0 for 3 s; a slow answer may come when its time is over."""
    group = Group("g", ("t",), is_popped=True, is_ordered=True)
    history = History(groups={"g": group})
    first = Received(1.5, "g", "g-0", "k", "t", "b", 0, 0, popped_at=1.0, visible_at=4.0)
    first.given_back(given_back_at)
    again = Received(popped_again_at, "g", "g-1", "k", "t", "b", 0, 0, popped_at=popped_again_at)
    history.received += [first, again]

    assert (check_popped(history, Contents()) == []) is is_well


@pytest.mark.parametrize(("found", "is_well"), [(99, True), (100, False)])
def test_a_log_that_lost_its_end_tells_nothing_of_what_is_out(found: int, is_well: bool) -> None:
    crash = Event(2.8, CRASHED, "b", "b", log_end=100)

    assert (_again(crash, Event(2.9, STARTED, "b", "b", log_end=found)) == []) is is_well


@pytest.mark.parametrize(
    ("reset", "is_well"),
    [
        (Reset(0.2, 0.9, is_at_once=False), False),
        (Reset(0.9, 1.1, is_at_once=False), True),
        (Reset(0.9, 1.1, is_at_once=True), False),
        (Reset(2.7, 2.9, is_at_once=True), True),
    ],
    ids=["before", "by-the-tool", "by-the-broker", "amid-a-crash"],
)
def test_what_is_out_may_come_again_while_an_operator_sets_offsets(
    reset: Reset, is_well: bool
) -> None:
    crash = Event(2.8, CRASHED, "b", "b", log_end=100)

    assert (_again(crash, reset=reset) == []) is is_well
