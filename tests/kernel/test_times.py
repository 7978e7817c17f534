"""How long hot sends took, for the statistics."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.kernel.values import Batch
from tests.support.stores.bench import NOW, Bench, properties, pull, send, send_batch

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
