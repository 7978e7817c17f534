"""What is out, kept in a file, and what of it counts after a start."""

from __future__ import annotations

import msgspec
import pytest

from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.snapshot import (
    PopSnapshot,
    StoredQueue,
    restore,
    take,
    take_queue,
    written_by_uptime,
)
from kerolox.broker.pop.table import PopLimits, PopTable
from kerolox.protocol.bodies import BodyError
from tests.unit.broker.pop.test_pop_table import INVISIBLE, KEY, NOW, expired, later, pop

MARK = 4_711


def taken(table: PopTable, now: Instant = NOW) -> PopSnapshot:
    """A snapshot as its file gives it back."""
    found = take(table, now, lambda key, offset: MARK + offset)
    return PopSnapshot.decode(found.encode())


def restored(
    snapshot: PopSnapshot | None,
    now: Instant = NOW,
    *,
    committed: int = 0,
    max_offset: int = 1_000,
    mark: int | None = None,
    limits: PopLimits | None = None,
) -> tuple[PopTable, int]:
    def stored(key: QueueKey, offset: int) -> StoredQueue:
        return StoredQueue(committed, max_offset, MARK + offset if mark is None else mark)

    table = PopTable(limits)
    return table, restore(table, snapshot, now, stored)


def with_gaps() -> tuple[PopTable, int, int]:
    """A table in which 1, 2, 5 and 6 are out, 5 under a lease of its own; both pop times."""
    table = PopTable()
    _, pop_time = pop(table, 7, owner="who")
    for offset in (0, 3, 4):
        table.ack(KEY, offset, pop_time)
    changed = table.change(KEY, 5, pop_time, 2 * INVISIBLE, later(100))
    assert changed is not None
    assert table.drain_commits() == [(KEY, 1)]
    return table, pop_time, changed.pop_time


def test_what_is_out_is_out_after_a_restart_with_its_receipts() -> None:
    before, pop_time, changed = with_gaps()
    table, left_out = restored(taken(before, later(1_000)), later(2_000), committed=1)
    assert left_out == 0
    assert [(h.offset, h.owner) for h in table.held(KEY, NOW, 9)] == [
        (each, "who") for each in (1, 2, 5, 6)
    ]
    assert table.start(KEY, 1) == 7
    assert table.ack(KEY, 1, pop_time) is AckOutcome.DONE
    assert table.ack(KEY, 5, changed) is AckOutcome.DONE
    assert table.drain_commits() == [(KEY, 2)]


def test_invisible_times_go_on_over_a_restart() -> None:
    before, _, _ = with_gaps()
    table, _ = restored(taken(before, later(1_000)), later(11_000), committed=1)
    assert expired(table, later(INVISIBLE - 1)) == []
    assert expired(table, later(INVISIBLE)) == [1, 2, 6]
    assert expired(table, later(2 * INVISIBLE + 100)) == [5]


@pytest.mark.parametrize(("boot", "is_over"), [("this", False), ("another", True), ("", True)])
def test_a_clock_set_forth_before_a_start_ends_no_time_where_the_machine_ran_on(
    boot: str, is_over: bool
) -> None:
    before, _, _ = with_gaps()
    kept = msgspec.structs.replace(taken(before), boot=boot, uptime=700)
    now = later(1_000, wall=10 * INVISIBLE)
    table, _ = restored(written_by_uptime(kept, now, "this", 1_700), now, committed=1)
    assert bool(expired(table, later(INVISIBLE - 1))) is is_over
    assert expired(table, later(INVISIBLE)) == ([] if is_over else [1, 2, 6])


def test_a_clock_set_back_before_a_start_prolongs_no_time() -> None:
    before, _, _ = with_gaps()
    now = Instant(NOW.wall_ms - 10**9, 50)
    table, _ = restored(taken(before), now, committed=1)
    over = Instant(now.wall_ms, 50 + INVISIBLE)
    assert expired(table, over) == [1, 2, 6]


def test_offsets_that_were_committed_meanwhile_are_done() -> None:
    before, _, _ = with_gaps()
    table, left_out = restored(taken(before), committed=6)
    assert (left_out, [h.offset for h in table.held(KEY, NOW, 9)]) == (0, [6])
    table, left_out = restored(taken(before), committed=9)
    assert (left_out, table.out, table.start(KEY, 9)) == (0, 0, 9)


@pytest.mark.parametrize(
    "stored",
    [
        {"committed": 0},
        {"committed": -1},
        {"committed": 1, "max_offset": 6},
        {"committed": 1, "mark": 3},
        {"committed": 1, "limits": PopLimits(in_all=3)},
    ],
)
def test_a_queue_that_contradicts_its_snapshot_is_delivered_again(
    stored: dict[str, int],
) -> None:
    before, pop_time, _ = with_gaps()
    table, left_out = restored(taken(before), **stored)  # type: ignore[arg-type]
    assert (left_out, table.out) == (1, 0)
    _, again = pop(table, 3)
    assert again > pop_time
    assert table.ack(KEY, 1, pop_time) is AckOutcome.STALE


def test_a_queue_that_is_gone_is_left_out() -> None:
    before, _, _ = with_gaps()
    table = PopTable()
    assert restore(table, taken(before), NOW, lambda key, offset: None) == 1


def test_without_a_snapshot_all_begins_at_the_committed_offsets() -> None:
    table, left_out = restored(None)
    assert (left_out, table.out) == (0, 0)
    assert table.start(KEY, 5) == 5


@pytest.mark.parametrize(
    "ranges",
    [
        [1],
        [1, 2, 2, 1],
        [0, 1],
        [6, 2],
        [1, 33],
        [1, 1 << 40],
        [each for _ in range(33) for each in (1, 1)],
    ],
)
def test_a_damaged_lease_leaves_its_queue_out(ranges: list[int]) -> None:
    before, _, _ = with_gaps()
    loaded = msgspec.to_builtins(taken(before))
    loaded["queues"][0]["leases"][0][0] = ranges
    snapshot = msgspec.convert(loaded, PopSnapshot)
    table, left_out = restored(snapshot, committed=1)
    assert (left_out, table.out) == (1, 0)


def test_a_queue_that_a_snapshot_names_twice_counts_once() -> None:
    before, _, _ = with_gaps()
    snapshot = taken(before)
    twice = msgspec.structs.replace(snapshot, queues=snapshot.queues * 2)
    table, left_out = restored(twice, committed=1)
    assert (left_out, table.out) == (1, 4)


def test_a_snapshot_has_ranges_and_not_each_offset() -> None:
    table = PopTable()
    for _ in range(100):
        pop(table, 32)
    text = take(table, NOW, lambda key, offset: MARK).encode()
    assert len(text) < 100 * 60


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"queues":[{}]}', b'{"popTime":-1}'])
def test_a_text_that_is_no_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(BodyError, match="no PopSnapshot"):
        PopSnapshot.decode(text)


def test_a_queue_of_which_nothing_is_out_is_not_in_a_snapshot() -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    table.ack(KEY, 0, pop_time)
    assert take_queue(table, KEY, NOW, lambda key, offset: MARK) is None
    assert taken(table).queues == []
