"""Files of pops with arbitrary content: what of it counts never contradicts itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.pop.leases import Instant, QueueKey
from kerolox.broker.pop.orders import OrderFile, OrderInfo, OrderTable
from kerolox.broker.pop.snapshot import (
    LeaseSnapshot,
    PopSnapshot,
    QueueSnapshot,
    StoredQueue,
    restore,
    take,
)
from kerolox.broker.pop.table import PopTable
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import decode_body

NOW = Instant(10_000, 500)
offsets = st.integers(0, 40)
times = st.integers(0, 20_000)
leases = st.builds(
    LeaseSnapshot, st.lists(st.integers(0, 40), max_size=6), times, times, times, times
)
queues = st.builds(
    QueueSnapshot,
    committed=offsets,
    group=st.just("g"),
    leases=st.lists(leases, max_size=4),
    next_offset=offsets,
    queue_id=st.integers(0, 1),
    topic=st.just("T"),
)
snapshots = st.builds(
    PopSnapshot, pop_time=times, queues=st.lists(queues, max_size=3), written_at=times
)
longs = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 30)
blocks = st.builds(
    OrderInfo,
    attempt_id=st.none() | st.just("a"),
    done=longs,
    invisible_time=st.none() | longs,
    last_consumed=longs,
    offsets=st.none() | st.lists(longs | st.integers(1, 9), max_size=6),
    times_consumed=st.none() | st.dictionaries(longs, st.integers(-3, 3), max_size=3),
    visible_at=st.none() | st.dictionaries(longs, longs, max_size=3),
    pop_time=longs,
)


@given(snapshots, offsets, offsets)
def test_an_arbitrary_snapshot_counts_as_far_as_it_agrees(
    snapshot: PopSnapshot, committed: int, end: int
) -> None:
    table = PopTable()
    left_out = restore(table, snapshot, NOW, lambda key, offset: StoredQueue(committed, end, -1))
    assert left_out <= len(snapshot.queues)
    for key in list(table.held_queues()):
        queue = table.queue(key)
        assert queue is not None
        out = [offset for offset, _ in queue.offsets()]
        assert out == sorted(out)
        assert len(out) == queue.count
        assert committed <= queue.low == out[0] <= out[-1] < queue.next_offset
    again = PopTable()
    kept = take(table, NOW, lambda key, offset: -1)
    assert restore(again, kept, NOW, lambda key, offset: StoredQueue(99, 99, -1)) == 0
    for each in table.expire(Instant(0, 10**9), 10_000):
        table.revived(each)
    for _, offset in table.drain_commits():
        assert offset >= committed
    assert table.out == 0


@given(st.dictionaries(st.integers(-1, 2), blocks, max_size=3), st.sampled_from(["T@g", "T", "@"]))
def test_an_arbitrary_file_of_orders_is_read_as_far_as_it_agrees(
    found: dict[int, OrderInfo], name: str
) -> None:
    table = OrderTable()
    left_out = table.load(OrderFile(table={name: found}), NOW)
    assert left_out + len(table) == len(found)
    text = fastjson.dumps_pretty(table.snapshot())
    again = OrderTable()
    assert again.load(decode_body(text, OrderFile), NOW) == 0
    assert fastjson.dumps_pretty(again.snapshot()) == text
    for queue_id in range(3):
        key = QueueKey("g", "T", queue_id)
        assert table.is_blocked(key, None, NOW) == again.is_blocked(key, None, NOW)
        assert 0 <= table.capacity(key) <= 32
