"""Pulls of a group of a topic that the broker wants to judge itself, and who reads a topic."""

from __future__ import annotations

from tests.support.stores.bench import Bench, holding_pull, pull, send

NOW_MS = 1_000_000_000_000_000
EMPTY = 19


def test_pulls_of_a_group_of_a_topic_are_slow_and_others_fast(bench: Bench) -> None:
    bench.store.set_topic("U", 4, 4, 6, True)
    bench.store.set_group("H", True, 1)
    wire = bench.connect()
    wire.ask(send(b"1"), send(b"2", b="U"))
    asked = pull(), pull(topic="U"), pull(consumerGroup="H")
    assert [wire.is_cold(each) for each in asked] == [False, False, False]
    bench.store.set_slow_pulls("G", "T", True)
    assert [wire.is_cold(each) for each in asked] == [True, False, False]
    bench.store.set_slow_pulls("G", "T", False)
    assert [wire.is_cold(each) for each in asked] == [False, False, False]


def test_pulls_stay_slow_when_topic_and_group_are_made_again(bench: Bench) -> None:
    bench.store.set_slow_pulls("MyGroup", "Mine", True)
    asked = pull(topic="Mine", consumerGroup="MyGroup")
    wire = bench.connect()
    for _ in range(2):
        bench.store.set_topic("Mine", 4, 4, 6, True)
        bench.store.set_group("MyGroup", True, 1)
        assert wire.is_cold(asked)
        bench.store.delete_topic("Mine")
        bench.store.delete_group("MyGroup")
        for number in range(10_000):
            bench.store.set_topic(f"o{number % 100}", 1, 1, 6, True)
            bench.store.delete_topic(f"o{number % 100}")
    bench.store.set_topic("Mine", 4, 4, 6, True)
    bench.store.set_group("MyGroup", True, 1)
    bench.store.set_slow_pulls("MyGroup", "Mine", False)
    assert not wire.is_cold(asked)


def test_a_held_pull_that_becomes_slow_ends_and_no_record_wakes_it(bench: Bench) -> None:
    wire, other = bench.connect(), bench.connect()
    assert wire.ask(holding_pull()) == []
    bench.store.set_slow_pulls("G", "T", True)
    other.ask(send(b"1"))
    assert bench.drain_ready() == {}
    assert bench.store.tick(NOW_MS - 1)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (EMPTY, "0")


def test_held_pulls_of_a_deleted_topic_end_though_it_is_made_again_at_once(bench: Bench) -> None:
    wire, other = bench.connect(), bench.connect()
    assert wire.ask(holding_pull()) == []
    bench.store.wait_for_offset(7, "H", "T", 0, 0, NOW_MS)
    bench.store.delete_topic("T")
    bench.store.set_topic("T", 4, 4, 6, True)
    other.ask(send(b"1"))
    assert bench.drain_ready() == {}
    assert bench.store.tick(0)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (EMPTY, "0")
    assert bench.store.drain_arrived() == [7]


def test_who_reads_a_topic_is_known_by_what_it_got_and_what_it_waits_for(bench: Bench) -> None:
    bench.store.set_group("H", True, 1)
    bench.store.set_topic("U", 4, 4, 6, True)
    wire = bench.connect()
    wire.ask(send(b"1"))
    assert bench.store.readers_of("T") == []
    assert bench.store.readers_of("unknown") == []
    wire.ask(pull())
    assert bench.store.readers_of("T") == ["G"]
    wire.ask(holding_pull(consumerGroup="H", queueId="1"))
    bench.store.wait_for_offset(7, "A", "T", 2, 0, NOW_MS)
    bench.store.wait_for_offset(8, "B", "U", 0, 0, NOW_MS)
    assert bench.store.readers_of("T") == ["A", "G", "H"]
    assert bench.store.readers_of("U") == ["B"]
    bench.store.delete_topic("T")
    bench.store.tick(0)
    bench.drain_ready()
    bench.store.drain_arrived()
    assert bench.store.readers_of("T") == []
