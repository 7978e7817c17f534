"""Members of Java and of our own client in the same groups, one read in order, one not: they join,
leave and are killed, the broker is killed and starts again, under load."""

from __future__ import annotations

import sys

import pytest

from tests.interop.test_order import (
    GROUP,
    QUEUES,
    SETTINGS,
    SHARE,
    TOPIC,
    Diary,
    Members,
    Sender,
    check_one_at_a_time,
    check_order,
    hang_and_kill,
    java_members,
    numbers_of,
)
from tests.support.eventually import wait_until
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java-order")]

TWINS = FREE_GROUP, FREE_TOPIC = "free", "Free"

MODULE = "tests.interop.kerolox_members"


def our_members(up: Up, diary: Diary) -> Members:
    arguments = (up.namesrv, GROUP, TOPIC, str(diary.path), *TWINS)
    return Members([sys.executable, "-m", MODULE, *arguments])


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diary, int, int]:
    """Gives the diary, and how many messages were sent to either topic."""
    folder = tmp_path_factory.mktemp("mixed")
    diary = Diary(folder / "diary")

    def until_consuming(name: str, since: str = "") -> None:
        for what in ("begin", "took"):
            wait_until(
                lambda what=what: diary.consumed_by(name, since=since, what=what) >= SHARE,  # type: ignore[misc]
                what=f"a share of member {name} {since}: {what}",
            )

    with (
        Up(folder, settings=SETTINGS) as up,
        Sender(up) as sender,
        Sender(up, FREE_TOPIC) as free_sender,
        java_members(up, diary, *TWINS) as java,
        our_members(up, diary) as ours,
        our_members(up, diary) as victims,
    ):
        java.tell("join java")
        until_consuming("java")
        ours.tell("join ours")
        until_consuming("ours")
        victims.tell("join victim")
        until_consuming("victim")
        diary.note("three")
        for name in ("java", "ours", "victim"):
            until_consuming(name, since="three")
        java.tell("leave java")
        diary.note("left")
        until_consuming("ours", since="left")
        java.tell("join java2")
        until_consuming("java2")
        victims.kill()
        diary.note("killed")
        ours.tell("leave ours")
        ours.tell("join ours2")
        until_consuming("ours2", since="killed")
        hang_and_kill(up)
        diary.note("restarted")
        up.start()
        until_consuming("java2", since="restarted")
        until_consuming("ours2", since="restarted")
        sender.stop()
        free_sender.stop()
        for what, count in (("begin", sender.count), ("took", free_sender.count)):
            wait_until(
                lambda what=what, count=count: (  # type: ignore[misc]
                    sum(len(set(numbers)) for numbers in numbers_of(diary, what=what)) >= count
                ),
                what=f"the end of {count} messages: {what}",
            )
        return diary, sender.count, free_sender.count


def test_in_a_mixed_group_no_message_is_left_out_and_none_overtakes(
    scenario: tuple[Diary, int, int],
) -> None:
    diary, count, _ = scenario
    for numbers in numbers_of(diary):
        check_order(numbers, count // QUEUES)


def test_in_a_mixed_group_a_queue_has_one_consumer_at_a_time(
    scenario: tuple[Diary, int, int],
) -> None:
    check_one_at_a_time(scenario[0], "java")


def test_a_mixed_group_that_reads_in_any_order_loses_nothing(
    scenario: tuple[Diary, int, int],
) -> None:
    diary, _, count = scenario
    for numbers in numbers_of(diary, what="took"):
        assert set(range(count // QUEUES)) <= set(numbers)


def test_members_of_both_kinds_have_their_shares(scenario: tuple[Diary, int, int]) -> None:
    diary, *_ = scenario
    # Between the join of the third and the first leave: four queues among three members.
    for what in ("begin", "took"):
        lines = [line for line in diary.lines if line[0] in (what, "three", "left")]
        three, left = (
            next(at for at, line in enumerate(lines) if line[0] == event)
            for event in ("three", "left")
        )
        owners = {line[1] for line in lines[three + 1 : left]}
        assert owners == {"java", "ours", "victim"}
