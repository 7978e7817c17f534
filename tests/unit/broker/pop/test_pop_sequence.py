"""Which queues a pop reads, in which order."""

from __future__ import annotations

import pytest

from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.pop.sequence import queues_to_read
from kerolox.protocol.pop_names import TopicKind

V1 = ("%RETRY%g_T", 0)


def read(
    chance: int,
    queue_id: int = -1,
    kinds: tuple[TopicKind, ...] = (TopicKind.RETRY_V1,),
    *,
    is_order: bool = False,
) -> list[tuple[str, int]]:
    found = queues_to_read(
        "g", "T", queue_id, queue_count=3, retry_kinds=kinds, chance=chance, is_order=is_order
    )
    assert {each.group for each in found} <= {"g"}
    return [(each.topic, each.queue_id) for each in found]


def test_all_queues_are_read_in_turn_and_retries_last() -> None:
    assert read(50) == [("T", 2), ("T", 0), ("T", 1), V1]


def test_one_pop_of_five_reads_retries_first() -> None:
    firsts = [read(chance)[0] for chance in range(100)]
    assert firsts.count(V1) == 20
    assert {firsts.count(("T", number)) for number in range(3)} <= {26, 27}


def test_one_queue_is_read_with_the_retries() -> None:
    assert read(50, 1) == [("T", 1), V1]
    assert read(0, 1) == [V1, ("T", 1)]


@pytest.mark.parametrize("chance", [0, 99])
def test_an_ordered_pop_reads_no_retries(chance: int) -> None:
    assert V1 not in read(chance, is_order=True)


def test_a_group_without_retries_reads_none() -> None:
    assert read(0, kinds=()) == [("T", 0), ("T", 1), ("T", 2)]


def test_of_both_versions_of_retries_each_pop_reads_one() -> None:
    both = (TopicKind.RETRY_V1, TopicKind.RETRY_V2)
    assert [read(chance, 0, both)[-1] for chance in (50, 51)] == [V1, ("%RETRY%g+T", 0)]


def test_a_topic_without_queues_has_nothing_but_retries() -> None:
    found = queues_to_read(
        "g", "T", -1, queue_count=0, retry_kinds=(TopicKind.RETRY_V1,), chance=50, is_order=False
    )
    assert found == [QueueKey("g", *V1)]
