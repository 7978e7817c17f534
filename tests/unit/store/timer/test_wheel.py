"""The wheel against RocketMQ's layout, and against a map of moments."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.store.timer.wheel import (
    NO_POSITION,
    PAGE_BYTES,
    PRECISIONS_MS,
    SLOT,
    SLOTS,
    Slot,
    TimerWheel,
    wheel_bytes,
)

SMALL = 10
"""Slots of a wheel of 20."""


def small(precision_ms: int = 1_000) -> tuple[bytearray, TimerWheel]:
    data = bytearray(wheel_bytes(SMALL))
    return data, TimerWheel(data, precision_ms, slots=SMALL)


def test_the_file_has_the_length_of_rocketmq_s() -> None:
    assert wheel_bytes() == 38_707_200
    assert SLOT.size == 32
    assert SLOTS == 604_800


def test_a_slot_lies_where_rocketmq_has_it_and_counts_time_in_steps() -> None:
    data, wheel = small()
    wheel.put(Slot(1_043_000, 52, 104, 2, 7))
    at = 1_043 % 20 * 32
    assert bytes(data[at : at + 32]) == struct.pack(">qqqii", 1_043, 52, 104, 2, 7)
    assert not any(data[:at])
    assert not any(data[at + 32 :])
    assert wheel.slot(1_043_999) == Slot(1_043_000, 52, 104, 2, 7)


@pytest.mark.parametrize("precision", PRECISIONS_MS)
def test_a_slot_holds_what_is_due_within_one_step(precision: int) -> None:
    _, wheel = small(precision)
    wheel.add(5 * precision, 0)
    assert wheel.slot(6 * precision - 1) == Slot(5 * precision, 0, 0, 1)
    assert wheel.slot(6 * precision) is None
    assert wheel.slot(4 * precision) is None


def test_a_slot_of_another_turn_is_empty_and_is_written_over() -> None:
    _, wheel = small()
    wheel.add(3_000, 52)
    assert wheel.slot(23_000) is None
    assert wheel.previous(23_000) == NO_POSITION
    wheel.add(23_000, 104)
    assert wheel.slot(23_000) == Slot(23_000, 104, 104, 1)
    assert wheel.slot(3_000) is None


def test_a_command_to_delete_counts_less_and_joins_the_chain() -> None:
    _, wheel = small()
    wheel.add(3_000, 0)
    assert wheel.previous(3_000) == 0
    wheel.add(3_000, 52, -1)
    assert wheel.slot(3_000) == Slot(3_000, 0, 52, 0)


def test_a_wheel_of_zeros_has_no_messages() -> None:
    _, wheel = small()
    assert all(wheel.slot(time_ms) is None for time_ms in range(0, 40_000, 500))
    assert wheel.waiting(0) == 0
    assert wheel.forget_lost(0) is None


@pytest.mark.parametrize("size", [0, 32, wheel_bytes(SMALL) - 1, wheel_bytes(SMALL) + 32])
def test_a_file_of_another_length_is_refused_with_both_lengths(size: int) -> None:
    with pytest.raises(ValueError, match=f"has {size} bytes, and 640 are expected"):
        TimerWheel(bytearray(size), 1_000, slots=SMALL)


def test_what_the_log_lost_is_forgotten_in_whatever_turn() -> None:
    _, wheel = small()
    for slot in (Slot(12_000, 52, 156, 2), Slot(13_000, 0, 104, 2), Slot(9_000, 520, 520, 1)):
        wheel.put(slot)
    assert wheel.waiting(10_000) == 4
    assert wheel.waiting(13_000) == 2
    assert wheel.forget_lost(521) is None
    # The slot of 9 s stands for 29 s in a turn that begins with 10 s.
    assert wheel.forget_lost(520) == 520
    assert wheel.slot(9_000) is None
    assert wheel.forget_lost(156) == 52
    assert wheel.slot(12_000) is None
    assert wheel.slot(13_000) == Slot(13_000, 0, 104, 2)
    assert wheel.forget_lost(52) == 0
    assert wheel.slot(13_000) is None


def test_what_changed_is_given_once_and_again_when_it_was_not_written() -> None:
    data, wheel = small()
    assert wheel.take_changed() == {}
    wheel.add(3_000, 52)
    wheel.put(Slot(4_000, 104, 104, 1))
    assert wheel.take_changed() == {0: bytes(data)}
    assert wheel.take_changed() == {}
    wheel.forget_lost(60)
    assert wheel.slot(4_000) is None
    found = wheel.take_changed()
    assert found == {0: bytes(data)}
    wheel.give_back(found)
    assert wheel.take_changed() == found


def test_of_a_large_wheel_the_pages_that_changed_are_given() -> None:
    slots = 200
    data = bytearray(wheel_bytes(slots))
    wheel = TimerWheel(data, 1_000, slots=slots)
    for step in (1, 2, 127, 128, 399):
        wheel.add(step * 1_000, step * 52)
    changed = wheel.take_changed()
    assert list(changed) == [0, PAGE_BYTES, 3 * PAGE_BYTES]
    again = bytearray(len(data))
    for at, page in changed.items():
        again[at : at + len(page)] = page
    assert again == data
    assert wheel.waiting(1_000) == 5
    assert wheel.waiting(128_000) == 2


def test_messages_ahead_are_counted_between_bounds() -> None:
    _, wheel = small()
    for seconds in (10, 10, 11, 14, 29):
        wheel.add(seconds * 1_000, seconds * 52)
    assert wheel.ahead(10_000, [1_000, 4_000, 5_000]) == [2, 1, 1]
    assert wheel.ahead(11_000, [60_000]) == [3]


_UNITS = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 1, 1, -1])), max_size=40)


@given(_UNITS)
def test_a_wheel_knows_the_last_units_of_each_moment_of_a_turn(
    units: list[tuple[int, int]],
) -> None:
    """The model has the newest moment of each slot."""
    _, wheel = small()
    model: dict[int, tuple[int, int, int, int]] = {}
    for number, (step, weight) in enumerate(units):
        known = model.get(step % 20)
        first, count = number * 52, 0
        if known is not None and known[0] == step:
            first, count = known[1], known[3]
        wheel.add(step * 1_000, number * 52, weight)
        model[step % 20] = step, first, number * 52, count + weight
    for step, first, last, count in model.values():
        assert wheel.slot(step * 1_000) == Slot(step * 1_000, first, last, count)
    begin = 40
    turn = [count for step, _, _, count in model.values() if begin <= step < begin + 20]
    assert wheel.waiting(begin * 1_000) == sum(turn)


@given(_UNITS, st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_wheel_that_is_revised_by_the_log_is_the_one_of_that_log(
    units: list[tuple[int, int]], flushed: int, begin: int, lost: int
) -> None:
    """Whatever of the wheel was on the disk, wherever before that the reading of the log begins,
    and whatever the log has lost. The units are of one turn."""
    turn = [(step % 20 + 20, weight) for step, weight in units]
    kept = max(len(turn) - lost, 0)
    data, again = small()
    for number, (step, weight) in enumerate(turn[:flushed]):
        again.add(step * 1_000, number * 52, weight)
    first = again.forget_lost(kept * 52)
    for number, (step, weight) in enumerate(turn[:kept]):
        if number * 52 >= min(begin * 52, flushed * 52, kept * 52 if first is None else first):
            again.revise(step * 1_000, number * 52, weight)
    expected, wheel = small()
    for number, (step, weight) in enumerate(turn[:kept]):
        wheel.add(step * 1_000, number * 52, weight)
    assert data == expected
