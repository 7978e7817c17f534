"""Names that are made and deleted for ever: they take no room from those that come later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kernels import MODULES
from tests.support.stores.bench import NOW, Bench, holding_pull, messages, send

NAMES = 262_144
"""As many as the native kernel's table of topics, or of groups, has room for."""

LONG_NAMES = (32 << 20) // 255
"""As many of the longest names as it has room for."""

PYTHON_NAMES_MAX = 10_000
"""The Python kernel's tables are dictionaries, which have no room that could be used up."""


def count_of(kernel: Any, count: int) -> int:
    """How many of them say something about a kernel."""
    return count if kernel.__name__ == MODULES["native"] else min(count, PYTHON_NAMES_MAX)


def assert_hot_and_held(bench: Bench, topic: str, group: str) -> None:
    """A pull of a new topic by a new group is held, and woken by a send that is hot."""
    bench.store.set_topic(topic, 4, 4, 6, True)
    bench.store.set_group(group, True, 1)
    wire = bench.connect()
    assert wire.ask(holding_pull(topic=topic, consumerGroup=group)) == []
    sent, found = wire.ask(send(b"1", b=topic))
    assert (sent.code, found.code) == (0, 0)
    assert [message.body for message in messages(found)] == [b"1"]


@pytest.mark.parametrize(("count", "digits"), [(NAMES, 6), (LONG_NAMES, 255)], ids=["many", "long"])
def test_deleted_names_leave_room_for_new_ones(bench: Bench, count: int, digits: int) -> None:
    count = count_of(bench.kernel, count)
    for number in range(count):
        name = f"{number:0{digits}}"
        bench.store.set_topic(name, 1, 1, 6, True)
        bench.store.delete_topic(name)
    for number in range(count):
        name = f"{number:0{digits}}"
        bench.store.set_group(name, True, 1)
        bench.store.delete_group(name)
    assert_hot_and_held(bench, "n" * 100, "n" * 250)


def test_subscriptions_that_ended_leave_room_for_new_names(bench: Bench) -> None:
    for number in range(count_of(bench.kernel, NAMES)):
        name = f"{number:06}"
        bench.store.set_subscription("G", name, 1, None)
        bench.store.delete_subscription("G", name)
    assert_hot_and_held(bench, "new", "new")


def test_a_held_pull_of_a_deleted_topic_keeps_its_name(bench: Bench) -> None:
    bench.store.set_topic("Mine", 4, 4, 6, True)
    bench.store.set_group("MyGroup", True, 1)
    wire = bench.connect()
    assert wire.ask(holding_pull(topic="Mine", consumerGroup="MyGroup", sysFlag=7)) == []
    bench.store.delete_topic("Mine")
    for number in range(20_000):
        bench.store.set_topic(f"Other{number % 5_000}", 4, 4, 6, True)
        bench.store.set_group(f"Other{number % 5_000}", True, 1)
        bench.store.delete_topic(f"Other{number % 5_000}")
        bench.store.delete_group(f"Other{number % 5_000}")
    bench.store.set_topic("Last", 4, 4, 6, True)
    other = bench.connect()
    assert len(other.ask(send(b="Last"))) == 1
    assert bench.drain_ready() == {}, "a record of another topic wakes nobody"
    assert bench.store.drain_commits() == [("MyGroup", "Mine", 0, 0)]
    bench.store.set_topic("Mine", 4, 4, 6, True)
    assert len(other.ask(send(b"mine", b="Mine"))) == 1
    assert bench.drain_ready() == {}, "it ends with its topic"
    assert bench.store.tick(NOW)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.ext_fields["maxOffset"]) == (19, "1"), "as of the new topic"


def test_what_a_group_got_stays_its_own_while_names_come_and_go(bench: Bench) -> None:
    bench.append(b"1")
    bench.store.read("T", 0, 0, 32, None, group="Reader")
    known = bench.store.group_stats()
    for number in range(10_000):
        bench.store.set_group(f"Other{number}", True, 1)
        bench.store.delete_group(f"Other{number}")
    assert [row[:2] for row in known] == [("Reader", "T")]
    assert bench.store.group_stats() == known
