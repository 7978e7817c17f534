from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.consuming.rebalance import (
    STRATEGIES,
    allocate,
    allocate_averagely,
    allocate_averagely_by_circle,
    queue_changes,
    sort_as_java,
)
from kerolox.message import MessageQueue

QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(6)]
IDS = [f"192.168.24.{index}@default" for index in range(1, 8)]

# The vectors of the Go client's strategy tests (and RocketMQ's own): client, members, queue ids.
AVERAGELY = [
    (0, 2, [0, 1, 2]),
    (1, 3, [2, 3]),
    (1, 4, [2, 3]),
    (3, 4, [5]),
    (6, 7, []),
]
BY_CIRCLE = [
    (0, 2, [0, 2, 4]),
    (1, 3, [1, 4]),
    (1, 4, [1, 5]),
    (3, 4, [3]),
    (6, 7, []),
]


@pytest.mark.parametrize(("index", "members", "expected"), AVERAGELY)
def test_averagely_gives_neighbours(index: int, members: int, expected: list[int]) -> None:
    given = allocate_averagely(IDS[index], QUEUES, IDS[:members])
    assert [queue.queue_id for queue in given] == expected


@pytest.mark.parametrize(("index", "members", "expected"), BY_CIRCLE)
def test_by_circle_deals_out(index: int, members: int, expected: list[int]) -> None:
    given = allocate_averagely_by_circle(IDS[index], QUEUES, IDS[:members])
    assert [queue.queue_id for queue in given] == expected


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_client_that_is_no_member_gets_nothing(name: str) -> None:
    assert STRATEGIES[name]("unknown", QUEUES, IDS) == []
    assert STRATEGIES[name](IDS[0], [], IDS) == []
    assert STRATEGIES[name](IDS[0], QUEUES, []) == []


queues = st.sets(
    st.builds(MessageQueue, st.just("T"), st.sampled_from("abc"), st.integers(0, 40)), max_size=40
)
members = st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=12)


@given(queues=queues, members=members, name=st.sampled_from(list(STRATEGIES)))
def test_every_queue_has_exactly_one_member(
    queues: set[MessageQueue], members: set[str], name: str
) -> None:
    shares = [allocate(STRATEGIES[name], member, queues, members) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_ids_sort_by_utf16_units_as_java_strings_do() -> None:
    # U+10000 is the units D800 DC00, which come before U+FFFD.
    assert sort_as_java(["\ufffd", "\U00010000", "a"]) == ["a", "\U00010000", "\ufffd"]


@given(owned=queues, allocated=queues)
def test_changes_lead_from_what_is_owned_to_what_is_allocated(
    owned: set[MessageQueue], allocated: set[MessageQueue]
) -> None:
    lost, gained = queue_changes(owned, allocated)
    assert (owned - set(lost)) | set(gained) == allocated
    assert not set(lost) & set(gained)
