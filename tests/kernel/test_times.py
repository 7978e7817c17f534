"""How long hot sends took, for the statistics."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.kernel.metrics import LATENCY_ENDS_MS
from kerolox.kernel.values import Batch
from tests.support.stores.bench import (
    NOW,
    Bench,
    holding_pull,
    properties,
    pull,
    send,
    send_batch,
)

ITEMS = [(0, b"one", b""), (0, b"two", b"")]


def test_the_sends_of_a_feed_take_as_long_as_the_feed(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(b"1"), send(b"2"), send_batch(ITEMS))
    wire.feed(send(b"3", oneway=True))
    assert bench.store.drain_put_times() == [(0, 4)]
    assert bench.store.drain_put_times() == []
    wire.ask(pull())
    assert wire.is_cold(send(b"x", b="unknown"))
    assert bench.store.drain_put_times() == []


@pytest.fixture
def sync_bench(closed_bench: Bench) -> Bench:
    closed_bench.open(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=5_000)
    return closed_bench


def test_a_send_that_waits_for_a_flush_takes_until_it_is_answered(sync_bench: Bench) -> None:
    bench = sync_bench
    wire = bench.connect()
    wire.feed(send(b"1"), send(b"2"), send_batch(ITEMS))
    assert bench.store.drain_put_times() == []
    bench.store.set_clock(NOW + 7)
    count = 0
    while count < 3:
        count += sum(len(answers) for answers in bench.wait_ready().values())
    assert bench.store.drain_put_times() == [(7, 3)]
    wire.ask(send(b"3", i=properties(WAIT="false")))
    assert bench.store.drain_put_times() == [(0, 1)]


def test_deliveries_are_counted_by_the_age_of_their_first_message(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(latency_recorded=True)
    wire = bench.connect()
    wire.ask(send(b"1"))
    bench.store.set_clock(NOW + 40)
    wire.ask(send(b"2"))
    bench.store.set_clock(NOW + 45)
    wire.ask(pull())  # two messages, the first 45 ms old
    wire.ask(pull(queueOffset=1))  # 5 ms
    wire.ask(pull(queueOffset=2))  # nothing
    bench.store.read("T", 0, 0, 32, None, "G")  # the slow path
    bench.store.read("T", 0, 0, 32, None, None)  # nobody's
    counts, total_us = bench.store.delivery_times()
    by_end = dict(zip(LATENCY_ENDS_MS, counts, strict=False))
    assert {end: count for end, count in by_end.items() if count} == {5: 1, 50: 2}
    assert total_us == 95_000


def test_a_held_pull_counts_its_delivery(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(latency_recorded=True)
    wire = bench.connect()
    wire.feed(holding_pull())
    assert sum(bench.store.delivery_times()[0]) == 0
    bench.connect().ask(send(b"1"))
    bench.wait_ready()
    assert sum(bench.store.delivery_times()[0]) == 1


def test_each_flush_is_timed(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(latency_recorded=True)
    for body in (b"1", b"2"):
        bench.connect().ask(send(body))
        bench.store.flush()
    counts, total_us = bench.store.flush_times()
    assert sum(counts) == bench.store.stats()["flush_count"] >= 2
    assert total_us > 0


def test_without_figures_nothing_is_timed(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(b"1"))
    wire.ask(pull())
    bench.store.flush()
    nothing = [0] * (len(LATENCY_ENDS_MS) + 1), 0
    assert bench.store.flush_times() == bench.store.delivery_times() == nothing


def test_the_counters_are_those_of_the_face(bench: Bench) -> None:
    assert bench.store.stats().keys() == {
        "put_count", "put_bytes", "get_found", "get_miss", "get_count", "get_bytes", "flush_count",
        "held_pulls", "index_pending", "dispatch_behind_bytes", "get_time_max_ms", "file_wait_ms",
        "uncommitted_bytes",
    }  # fmt: skip


def test_a_batch_that_is_as_long_as_a_message_may_be_is_taken(
    closed_bench: Bench, kernel: Any
) -> None:
    bench = closed_bench
    bench.open(max_message_size=2_000)
    wire = bench.connect()
    items = [(0, bytes(978), b""), (0, bytes(978), b"")]
    assert wire.ask(send_batch(items))[0].code == 0
    assert wire.is_cold(send_batch([(0, bytes(979), b""), items[1]]))
    host = {"born_host": bytes(8), "store_host": bytes(8), "reconsume_times": 0}
    common = {"topic": b"T", "queue_id": 0, "sys_flag": 0, "born_timestamp": NOW, **host}
    assert bench.store.append_batch(Batch(**common, items=[(0, bytes(1_000), b"")] * 2))[0] == 0
    assert bench.store.append_batch(Batch(**common, items=[(0, bytes(1_001), b"")] * 2))[0] == 6
