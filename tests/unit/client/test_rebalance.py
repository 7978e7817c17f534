from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.consuming.rebalance import (
    STRATEGIES,
    allocate,
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_by_consistent_hash,
    queue_changes,
    sort_as_java,
    strategy_of,
)
from kerolox.client.core.consuming.strategies import (
    allocate_by_config,
    allocate_by_machine_room,
    allocate_nearby,
)
from kerolox.errors import ClientError, ConfigError
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
    if name == "CONSISTENT_HASH":
        return
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


# -- strategies that are told more -------------------------------------------------------------
def test_config_gives_each_member_its_own_list_and_shares_the_retries() -> None:
    strategy = allocate_by_config([QUEUES[4], QUEUES[1], MessageQueue("other", "b", 0)])
    assert allocate(strategy, IDS[0], QUEUES, IDS[:2]) == [QUEUES[1], QUEUES[4]]
    retries = [MessageQueue("%RETRY%g", "b", 0)]
    shares = [allocate(strategy, client_id, retries, IDS[:2]) for client_id in IDS[:2]]
    assert shares == [retries, []]
    named = allocate_by_config(retries)
    assert allocate(named, IDS[1], retries, IDS[:2]) == retries


def test_machine_room_shares_the_queues_of_its_rooms_alone() -> None:
    names = ("east@a", "east@b", "west@c", "nowhere", "east@x@y")
    queues = [MessageQueue("T", name, queue_id) for name in names for queue_id in (0, 1, 2)]
    strategy = allocate_by_machine_room(["east"])
    shares = [allocate(strategy, client_id, queues, IDS[:4]) for client_id in IDS[:4]]
    assert [[(q.broker_name, q.queue_id) for q in share] for share in shares] == [
        [("east@a", 0), ("east@b", 1)],
        [("east@a", 1), ("east@b", 2)],
        [("east@a", 2)],
        [("east@b", 0)],
    ]


def test_nearby_reads_its_own_room_and_shares_rooms_without_members() -> None:
    queues = [MessageQueue("T", name, queue_id) for name in "xyz" for queue_id in (0, 1)]
    strategy = allocate_nearby(
        room_of_queue=lambda queue: queue.broker_name, room_of_client=lambda client_id: client_id[0]
    )
    members = ["x1", "y1", "y2"]
    shares = [allocate(strategy, member, queues, members) for member in members]
    x, y, z = queues[:2], queues[2:4], queues[4:]
    assert shares == [[*x, z[0]], [y[0], z[1]], [y[1]]]
    lost = allocate_nearby(room_of_queue=lambda _: "", room_of_client=lambda _: "r")
    with pytest.raises(ClientError, match="has no machine room"):
        allocate(lost, "x1", queues, members)


def test_consistent_hash_shares_as_java_does() -> None:
    names = ("broker-a", "broker-b")
    queues = [MessageQueue("TopicTest", name, number) for name in names for number in range(8)]
    members = ["10.0.0.1@1#11", "10.0.0.2@2#22", "10.0.0.3@3#33"]
    # What AllocateMessageQueueConsistentHash of 4.9.8 gives.
    expected = ["a2 a5 a6 b1 b6", "a3 a4 b2 b4 b5 b7", "a0 a1 a7 b0 b3"]
    for member, share in zip(members, expected, strict=True):
        ours = allocate(allocate_by_consistent_hash(), member, queues, members)
        assert [f"{q.broker_name[-1]}{q.queue_id}" for q in ours] == share.split()


@given(queues=queues, members=members, gone=st.data())
def test_consistent_hash_moves_only_the_queues_of_who_goes(
    queues: set[MessageQueue], members: set[str], gone: st.DataObject
) -> None:
    leaver = gone.draw(st.sampled_from(sorted(members)))
    strategy = allocate_by_consistent_hash()
    for member in members - {leaver}:
        before = set(allocate(strategy, member, queues, members))
        assert before <= set(allocate(strategy, member, queues, members - {leaver}))


def test_a_strategy_of_the_user_is_taken_and_its_faults_are_named() -> None:
    assert allocate(strategy_of(lambda *_: [QUEUES[2]]), "c", QUEUES, ["c"]) == [QUEUES[2]]
    with pytest.raises(ClientError, match=r"gave MessageQueue.*'foreign'.* is not there"):
        allocate(lambda *_: [MessageQueue("foreign", "b", 0)], "c", QUEUES, ["c"])
    with pytest.raises(ClientError, match="failed: ZeroDivisionError"):
        allocate(lambda *_: [QUEUES[1 // 0]], "c", QUEUES, ["c"])
    with pytest.raises(ConfigError, match="must be one of AVG, AVG_BY_CIRCLE, CONSISTENT_HASH"):
        strategy_of("MACHINE_ROOM")
