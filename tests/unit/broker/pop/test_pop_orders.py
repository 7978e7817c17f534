"""Ordered pops: what blocks, what comes again, what the file says."""

from __future__ import annotations

import pytest

from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.orders import (
    BLOCK_MESSAGES_MAX,
    KEPT_MS,
    Delivery,
    OrderFile,
    OrderTable,
)
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import decode_body

KEY = QueueKey("g", "T", 0)
INVISIBLE = 60_000
NOW = Instant(1_700_000_000_123, 5_000)

JAVA_FILE = """{
	"table":{
		"T@g":{0:{
				"a":"attempt-1",
				"cm":2,
				"i":60000,
				"l":1700000000200,
				"o":[
					5,
					1,
					4
				],
				"oc":{5:1,6:1
				},
				"ot":{5:1700000099999
				},
				"popTime":1700000000123
			},3:{
				"cm":0,
				"i":60000,
				"l":1700000000200,
				"o":[
					7
				],
				"popTime":1700000000123
			}
		}
	}
}"""
"""What RocketMQ 5.3.3 writes."""


def later(milliseconds: int) -> Instant:
    return Instant(NOW.wall_ms + milliseconds, NOW.steady_ms + milliseconds)


def pop(
    table: OrderTable, offsets: list[int], now: Instant = NOW, attempt: str | None = None
) -> Delivery:
    return table.deliver(
        KEY, offsets[0], offsets, attempt_id=attempt, invisible_ms=INVISIBLE, now=now
    )


def test_a_queue_is_blocked_until_all_messages_are_done() -> None:
    table = OrderTable()
    found = pop(table, [5, 6, 7])
    for offset, commit in [(6, 5), (5, 7), (7, 8)]:
        assert table.is_blocked(KEY, None, later(1))
        assert table.ack(KEY, offset, found.pop_time) == (AckOutcome.DONE, commit)
    assert not table.is_blocked(KEY, None, later(1))
    assert table.free_at(KEY) is None


def test_a_queue_is_blocked_until_its_messages_are_visible_again() -> None:
    table = OrderTable()
    pop(table, [5, 6])
    assert table.is_blocked(KEY, "other", later(INVISIBLE - 1))
    assert not table.is_blocked(KEY, "other", later(INVISIBLE))
    assert not table.is_blocked(KEY._replace(queue_id=1), None, NOW)


def test_one_changed_time_blocks_the_queue_for_as_long() -> None:
    table = OrderTable()
    found = pop(table, [5, 6])
    changed = table.change(KEY, 6, found.pop_time, INVISIBLE, later(10_000))
    assert changed is not None
    assert (changed.pop_time, changed.invisible_ms) == (found.pop_time, INVISIBLE + 10_000)
    assert table.is_blocked(KEY, None, later(INVISIBLE))
    assert table.free_at(KEY) == NOW.steady_ms + INVISIBLE + 10_000
    table.ack(KEY, 6, found.pop_time)
    assert not table.is_blocked(KEY, None, later(INVISIBLE))


def test_the_same_attempt_gets_the_same_messages_and_counts_none() -> None:
    table = OrderTable()
    pop(table, [5, 6], attempt="a")
    assert not table.is_blocked(KEY, "a", later(1))
    again = pop(table, [5, 6], later(1), "a")
    assert (again.times_by_offset, again.times_consumed) == ({}, 0)
    assert table.is_blocked(KEY, "b", later(2))


def test_each_other_delivery_is_counted() -> None:
    table = OrderTable()
    pop(table, [5, 6])
    second = pop(table, [5, 6, 7], later(INVISIBLE))
    assert (second.times_by_offset, second.times_consumed) == ({5: 1, 6: 1}, 0)
    third = pop(table, [5, 6, 7], later(2 * INVISIBLE))
    assert (third.times_by_offset, third.times_consumed) == ({5: 2, 6: 2, 7: 1}, 1)


def test_what_is_done_does_not_come_again_with_the_rest() -> None:
    table = OrderTable()
    found = pop(table, [5, 6, 7])
    table.ack(KEY, 6, found.pop_time)
    assert table.done_offsets(KEY, 5) == {6}
    with pytest.raises(ValueError, match="some are done"):
        pop(table, [5, 6], later(INVISIBLE))
    again = pop(table, [5, 7, 8], later(INVISIBLE))
    assert table.ack(KEY, 5, again.pop_time) == (AckOutcome.DONE, 7)


def test_a_pop_of_fewer_messages_loses_none_of_those_behind() -> None:
    table = OrderTable()
    found = pop(table, [5, 6, 7])
    table.ack(KEY, 7, found.pop_time)
    again = pop(table, [5], later(INVISIBLE))
    assert table.ack(KEY, 5, again.pop_time) == (AckOutcome.DONE, 6)
    assert table.done_offsets(KEY, 6) == {7}


@pytest.mark.parametrize(("done", "next_offset"), [(6, 6), (6, 7), (7, 8)])
def test_what_is_done_up_to_the_next_open_message_is_in_the_file(
    done: int, next_offset: int
) -> None:
    table = OrderTable()
    found = pop(table, [5, done])
    table.ack(KEY, done, found.pop_time)
    again = table.deliver(
        KEY, 5, [5], next_offset, attempt_id=None, invisible_ms=INVISIBLE, now=later(INVISIBLE)
    )
    other = OrderTable()
    other.load(decode_body(fastjson.dumps_pretty(table.snapshot()), OrderFile), NOW)
    assert other.done_offsets(KEY, 5) == {done}
    assert other.ack(KEY, 5, again.pop_time) == (AckOutcome.DONE, done + 1)


def test_what_is_done_behind_a_message_that_the_pop_left_out_is_in_the_file() -> None:
    table, other = OrderTable(), OrderTable()
    found = pop(table, [5, 6, 7, 8])
    table.ack(KEY, 7, found.pop_time)
    again = pop(table, [5], later(INVISIBLE))
    text = fastjson.dumps_pretty(table.snapshot())
    file = decode_body(text, OrderFile)
    info = file.table["T@g"][0]
    # RocketMQ delivers 6 next, once 5 is done or visible again.
    assert (info.offsets, info.done, info.visible_at) == ([5, 1, 2], 0b100, {6: 0})
    assert other.load(file, later(INVISIBLE)) == 0
    assert fastjson.dumps_pretty(other.snapshot()) == text
    assert other.ack(KEY, 6, again.pop_time) == (AckOutcome.ILLEGAL, None)
    assert other.ack(KEY, 5, again.pop_time) == (AckOutcome.DONE, 6)
    assert other.done_offsets(KEY, 6) == {7}
    assert not other.is_blocked(KEY, None, later(INVISIBLE))


def test_what_is_done_behind_a_pop_without_order_is_in_the_file() -> None:
    table, other = OrderTable(), OrderTable()
    found = pop(table, [5, 6, 7, 8])
    for offset in (6, 8):
        table.ack(KEY, offset, found.pop_time)
    table.pass_over(KEY, 6, later(INVISIBLE))
    text = fastjson.dumps_pretty(table.snapshot())
    assert other.load(decode_body(text, OrderFile), later(INVISIBLE)) == 0
    assert fastjson.dumps_pretty(other.snapshot()) == text
    for each in (table, other):
        assert each.done_offsets(KEY, 5) == {6, 8}
        assert each.ack(KEY, 7, found.pop_time) == (AckOutcome.STALE, None)
        assert not each.is_blocked(KEY, None, later(INVISIBLE))
        assert each.in_flight(KEY) is None
        assert each.next_pop_time(KEY, NOW) > found.pop_time


def test_a_receipt_of_the_delivery_before_is_stale() -> None:
    table = OrderTable()
    old = pop(table, [5])
    new = pop(table, [5], Instant(NOW.wall_ms, NOW.steady_ms + INVISIBLE))
    assert new.pop_time > old.pop_time
    assert table.ack(KEY, 5, old.pop_time) == (AckOutcome.STALE, None)
    assert table.change(KEY, 5, old.pop_time, 1, NOW) is None
    assert table.ack(KEY, 5, new.pop_time) == (AckOutcome.DONE, 6)
    assert table.ack(KEY, 5, new.pop_time) == (AckOutcome.REPEATED, None)


def test_a_message_that_the_pop_did_not_deliver_is_illegal() -> None:
    table = OrderTable()
    found = pop(table, [5])
    assert table.ack(KEY, 9, found.pop_time) == (AckOutcome.ILLEGAL, None)


def test_after_a_reset_nothing_is_blocked_and_old_receipts_are_stale() -> None:
    table = OrderTable()
    old = pop(table, [5])
    table.clear(KEY)
    assert not table.is_blocked(KEY, None, NOW)
    assert table.ack(KEY, 5, old.pop_time) == (AckOutcome.STALE, None)
    assert pop(table, [5]).pop_time > old.pop_time


def test_a_block_never_has_more_messages_than_the_file_has_bits() -> None:
    table = OrderTable()
    found = pop(table, list(range(32)))
    for round_number in range(1, 6):
        for offset in table.done_offsets(KEY, 0).symmetric_difference(range(1, 999)):
            table.ack(KEY, offset, found.pop_time)
        done = table.done_offsets(KEY, 0)
        capacity = table.capacity(KEY)
        assert 1 <= capacity <= BLOCK_MESSAGES_MAX - len(done)
        fresh = [0, *(each for each in range(1, 999) if each not in done)][:capacity]
        found = pop(table, fresh, later(round_number * INVISIBLE))
    pop(table, [0], later(6 * INVISIBLE))
    other = OrderTable()
    assert other.load(decode_body(fastjson.dumps_pretty(table.snapshot()), OrderFile), NOW) == 0
    assert other.done_offsets(KEY, 0) == table.done_offsets(KEY, 0)


def test_a_block_that_nobody_touches_is_forgotten_after_a_day() -> None:
    table = OrderTable()
    pop(table, [5])
    assert table.forget(lambda key: False, later(KEPT_MS)) == 0
    assert table.forget(lambda key: False, later(KEPT_MS + 1)) == 1
    pop(table, [5])
    assert table.forget(lambda key: key.topic == "T") == 1
    assert len(table) == 0


def test_the_table_is_bounded() -> None:
    table = OrderTable(blocks_max=1)
    pop(table, [5])
    assert table.capacity(KEY._replace(queue_id=1)) == 0
    assert table.capacity(KEY) == 32


def test_the_file_of_rocketmq_is_read_and_written_byte_for_byte() -> None:
    table = OrderTable()
    file = decode_body(JAVA_FILE.encode(), OrderFile)
    assert table.load(file, later(77)) == 0
    assert fastjson.dumps_pretty(table.snapshot()).decode() == JAVA_FILE
    assert table.done_offsets(KEY, 0) == {6}
    assert table.is_blocked(KEY, None, later(INVISIBLE))
    assert not table.is_blocked(KEY, "attempt-1", NOW)
    assert table.free_at(KEY) == NOW.steady_ms + 1_700_000_099_999 - NOW.wall_ms
    assert table.ack(KEY, 5, 1_700_000_000_123) == (AckOutcome.DONE, 9)


@pytest.mark.parametrize(
    "block",
    ['{"popTime":1}', '{"o":[]}', '{"o":[-1]}', '{"o":[5,0]}', '{"o":[5,3,2]}', '{"o":[5,-9]}'],
)
def test_a_damaged_block_of_a_file_is_left_out(block: str) -> None:
    table = OrderTable()
    text = f'{{"table":{{"T@g":{{0:{block}}}}}}}'
    assert table.load(decode_body(text.encode(), OrderFile), NOW) == 1
    assert len(table) == 0


def test_a_file_of_a_clock_that_was_ahead_blocks_no_longer_than_an_invisible_time() -> None:
    table = OrderTable()
    text = '{"table":{"T@g":{0:{"o":[5],"i":60000,"popTime":9000000000000}}}}'
    assert table.load(decode_body(text.encode(), OrderFile), NOW) == 0
    assert table.is_blocked(KEY, None, later(INVISIBLE - 1))
    assert not table.is_blocked(KEY, None, later(INVISIBLE))


def test_a_clock_set_back_before_a_start_prolongs_no_time_that_was_changed() -> None:
    table, other = OrderTable(), OrderTable()
    found = pop(table, [5])
    table.change(KEY, 5, found.pop_time, 3 * INVISIBLE, later(INVISIBLE // 2))
    back = NOW._replace(wall_ms=NOW.wall_ms - 3_600_000)
    other.load(decode_body(fastjson.dumps_pretty(table.snapshot()), OrderFile), back)
    assert other.is_blocked(KEY, None, later(3 * INVISIBLE - 1))
    assert not other.is_blocked(KEY, None, later(3 * INVISIBLE))


def test_a_file_survives_with_all_bits_set() -> None:
    table = OrderTable()
    found = pop(table, list(range(32)))
    for offset in range(32):
        table.ack(KEY, offset, found.pop_time)
    other = OrderTable()
    other.load(decode_body(fastjson.dumps_pretty(table.snapshot()), OrderFile), NOW)
    assert other.done_offsets(KEY, 0) == set(range(32))
