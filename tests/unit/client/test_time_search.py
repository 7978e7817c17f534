from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.consuming.time_search import TimeSearch


def search(stored: list[int], time: int, hint: int, *, minimum: int = 0) -> tuple[int, int]:
    """(offset found, messages asked for); ``stored`` are the times from offset ``minimum`` on."""
    made = TimeSearch(minimum, minimum + len(stored), time, hint)
    asked = 0
    while (probe := made.probe()) is not None:
        assert minimum <= probe < minimum + len(stored)
        made.probed(stored[probe - minimum])
        asked += 1
        assert asked <= len(stored)
    return made.result, asked


@given(
    st.lists(st.integers(0, 40), max_size=60).map(sorted),
    st.integers(-1, 42),
    st.integers(-5, 80),
    st.integers(0, 7),
)
def test_the_first_message_of_a_time_or_later_is_found_from_any_hint(stored, time, hint, minimum):
    expected = minimum + bisect_left(stored, time)
    assert search(stored, time, hint, minimum=minimum)[0] == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 9), st.integers(0, 39))
def test_a_clock_that_was_set_back_still_gives_a_place_between_old_and_new(stored, time, hint):
    found, _ = search(stored, time, hint)
    assert found == 0 or stored[found - 1] < time
    assert found == len(stored) or stored[found] >= time


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_good_hint_takes_few_questions(off: int):
    stored = list(range(1_000_000))
    found, asked = search(stored, 500_000, 500_000 + off)
    assert found == 500_000
    assert asked <= 4


def test_a_wrong_hint_costs_no_more_than_a_search_from_both_ends():
    stored = list(range(1_000_000))
    for hint in (0, 999_999):
        found, asked = search(stored, 500_000, hint)
        assert found == 500_000
        assert asked <= 42


def test_messages_that_are_gone_count_as_older():
    made = TimeSearch(0, 10, 0, 0)
    asked = []
    while (probe := made.probe()) is not None:
        asked.append(probe)
        made.probed(None if probe < 6 else 1000)
    assert made.result == 6


def test_an_empty_queue_is_not_asked():
    made = TimeSearch(7, 7, 0, 3)
    assert made.probe() is None
    assert made.result == 7
