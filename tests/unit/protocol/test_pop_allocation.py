from __future__ import annotations

import pytest

from kerolox.message import MessageQueue
from kerolox.protocol.routing.allocation import (
    ALL_QUEUES,
    allocate_averagely,
    allocate_for_pop,
)


def queues(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def share_of(member: str, count: int, members: str, share: int) -> list[int]:
    found = allocate_for_pop(member, queues(count), list(members), allocate_averagely, share)
    return [each.queue_id for each in found]


@pytest.mark.parametrize("share", [-1, 0, 2, 9])
def test_each_member_pops_from_all_queues_of_each_broker(share: int) -> None:
    both = [*queues(4, "a"), *queues(4, "b")]
    assert allocate_for_pop("y", both, ["x", "y", "z"], allocate_averagely, share) == [
        MessageQueue("T", "a", ALL_QUEUES),
        MessageQueue("T", "b", ALL_QUEUES),
    ]


def test_a_member_helps_those_after_it() -> None:
    assert share_of("w", 4, "wxyz", 1) == [0, 1]
    assert share_of("z", 4, "wxyz", 1) == [3, 0]
    assert share_of("y", 8, "wxyz", 2) == [4, 5, 6, 7, 0, 1]


def test_with_more_members_than_queues_each_has_one() -> None:
    assert [share_of(each, 2, "vwxyz", 1) for each in "vwxyz"] == [[0], [1], [0], [1], [0]]


def test_who_is_no_member_pops_from_nothing() -> None:
    assert share_of("q", 4, "wxyz", 1) == []
    assert share_of("w", 0, "wxyz", 1) == []
