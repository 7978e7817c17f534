"""Waits for an offset of a queue, whose owners read for themselves."""

from __future__ import annotations

import pytest

from kerolox.kernel.held_pulls import ARRIVED_AT_ONCE_MAX, OFFSET_WAITS_MAX
from tests.support.stores.bench import NOW, Bench, send

LATER = NOW + 60_000


def wait(bench: Bench, wait_id: int, offset: int = 0, *, deadline_ms: int = LATER) -> bool:
    added: bool = bench.store.wait_for_offset(wait_id, "G", "T", 0, offset, deadline_ms)
    return added


def arrived(bench: Bench) -> list[int]:
    """What became ready, and the waits that are over."""
    assert bench.drain_ready() == {}
    told: list[int] = bench.store.drain_arrived()
    return told


def test_a_send_ends_the_waits_for_its_offset_alone(bench: Bench) -> None:
    assert wait(bench, 1)
    assert wait(bench, 2, offset=1)
    assert arrived(bench) == []
    wire = bench.connect()
    wire.ask(send(b"other queue", e="1"))
    assert arrived(bench) == []
    wire.ask(send(b"first"))
    assert arrived(bench) == [1]
    bench.append()
    bench.wait_notified()
    assert arrived(bench) == [2]
    assert bench.store.stats()["held_pulls"] == 0


def test_a_wait_of_no_group_is_the_brokers_own_and_no_held_pull(bench: Bench) -> None:
    assert bench.store.wait_for_offset(1, "", "T", 0, 0, LATER)
    assert bench.store.stats()["held_pulls"] == 0
    assert wait(bench, 2, offset=1)
    assert bench.store.stats()["held_pulls"] == 1
    bench.append()
    assert arrived(bench) == [1]
    assert bench.store.stats()["held_pulls"] == 1
    bench.store.cancel_wait(2)
    assert bench.store.stats()["held_pulls"] == 0


def test_a_wait_is_no_read_of_its_group(bench: Bench) -> None:
    wait(bench, 1)
    bench.append()
    assert arrived(bench) == [1]
    assert bench.store.group_stats() == []
    assert bench.store.stats()["get_found"] == 0


def test_a_wait_for_what_is_there_is_over_at_once(bench: Bench) -> None:
    bench.append()
    assert wait(bench, 1)
    bench.wait_notified()
    assert arrived(bench) == [1]


def test_a_wait_is_over_at_its_deadline(bench: Bench) -> None:
    wait(bench, 1, deadline_ms=NOW + 10)
    wait(bench, 2, deadline_ms=1 << 70)
    assert not bench.store.tick(NOW + 9)
    assert bench.store.tick(NOW + 10)
    assert arrived(bench) == [1]


@pytest.mark.parametrize("who", ["group", "topic", "subscription", "all"])
def test_waits_end_where_held_pulls_would_be_answered(bench: Bench, who: str) -> None:
    bench.store.set_subscription("G", "T", 1, None)
    wait(bench, 1)
    if who == "group":
        bench.store.set_group("G", False, 0)
    elif who == "topic":
        bench.store.set_topic("T", 4, 4, 2, True)
    elif who == "subscription":
        bench.store.set_subscription("G", "T", 2, [7])
    else:
        bench.store.stop_holding()
    assert bench.store.tick(NOW)
    assert arrived(bench) == [1]


def test_a_cancelled_wait_is_not_told(bench: Bench) -> None:
    wait(bench, 1)
    wait(bench, 2)
    bench.store.cancel_wait(1)
    bench.append()
    bench.store.cancel_wait(2)
    bench.store.cancel_wait(3)
    assert arrived(bench) == []
    assert bench.store.stats()["held_pulls"] == 0


def test_a_wait_in_a_transient_pool_is_over_with_the_commit(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(transient_store_pool_enable=True, transient_store_pool_size=2)
    wait(bench, 1)
    bench.append()
    bench.store.flush()
    bench.wait_notified()
    assert arrived(bench) == [1]


def test_waits_are_bounded_and_told_a_few_at_a_time(bench: Bench) -> None:
    assert all(wait(bench, number) for number in range(OFFSET_WAITS_MAX))
    assert not wait(bench, OFFSET_WAITS_MAX)
    bench.append()
    bench.wait_notified()
    assert arrived(bench) == list(range(ARRIVED_AT_ONCE_MAX))
    bench.wait_notified()
    assert len(arrived(bench)) == ARRIVED_AT_ONCE_MAX


def test_a_closed_store_waits_for_nothing(bench: Bench) -> None:
    wait(bench, 1)
    bench.store.close()
    assert bench.store.drain_arrived() == []
    assert bench.store.stats()["held_pulls"] == 0
