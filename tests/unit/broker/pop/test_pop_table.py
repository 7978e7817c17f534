"""What is out of a queue: deliveries, acknowledgements, changes, time, commits, resets, bounds."""

from __future__ import annotations

import pytest

from kerolox.broker.pop.copies import copy_target, kind_of, normal_topic
from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.table import COPY_PAUSES_S, STALE_ENDS_MAX, PopLimits, PopTable
from kerolox.protocol.pop_names import TopicKind

KEY = QueueKey("g", "T", 0)
INVISIBLE = 60_000
NOW = Instant(1_700_000_000_000, 5_000)


def later(milliseconds: int, *, wall: int | None = None) -> Instant:
    """A time after ``NOW``; ``wall``: what the wall clock says passed."""
    passed = milliseconds if wall is None else wall
    return Instant(NOW.wall_ms + passed, NOW.steady_ms + milliseconds)


def pop(
    table: PopTable,
    count: int,
    *,
    committed: int = 0,
    now: Instant = NOW,
    key: QueueKey = KEY,
    owner: str = "",
    invisible_ms: int = INVISIBLE,
) -> tuple[list[int], int]:
    """The next messages of a queue without an end go out; their offsets and pop time."""
    start = table.start(key, committed)
    offsets = list(range(start, start + count))
    pop_time = table.deliver(
        key, start, offsets, start + count, invisible_ms=invisible_ms, now=now, owner=owner
    )
    return offsets, pop_time


def expired(table: PopTable, now: Instant) -> list[int]:
    """The offsets whose copies are stored now."""
    revivals = table.expire(now, 1_000)
    for each in revivals:
        table.revived(each)
    return [each.offset for each in revivals]


def test_the_committed_offset_is_the_lowest_that_is_not_done() -> None:
    table = PopTable()
    offsets, pop_time = pop(table, 4, committed=10)
    assert offsets == [10, 11, 12, 13]
    assert table.ack(KEY, 11, pop_time) is AckOutcome.DONE
    assert table.drain_commits() == []
    assert table.ack(KEY, 10, pop_time) is AckOutcome.DONE
    assert table.drain_commits() == [(KEY, 12)]
    assert table.ack(KEY, 13, pop_time) is AckOutcome.DONE
    assert table.ack(KEY, 12, pop_time) is AckOutcome.DONE
    assert table.drain_commits() == [(KEY, 14)]


def test_a_queue_of_which_nothing_is_out_is_forgotten() -> None:
    table = PopTable()
    offsets, pop_time = pop(table, 2)
    for each in offsets:
        table.ack(KEY, each, pop_time)
    table.drain_commits()
    assert table.queue(KEY) is None
    assert table.out == 0
    assert table.start(KEY, 2) == 2


def test_the_next_pop_gets_what_comes_behind() -> None:
    table = PopTable()
    pop(table, 3)
    assert pop(table, 2)[0] == [3, 4]


def test_an_acknowledgement_that_is_repeated_is_without_effect() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    assert table.ack(KEY, 1, pop_time) is AckOutcome.DONE
    assert table.ack(KEY, 1, pop_time) is AckOutcome.REPEATED
    assert table.out == 1


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_receipt_of_another_delivery_is_stale(difference: int) -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    assert table.ack(KEY, 0, pop_time + difference) is AckOutcome.STALE
    assert table.change(KEY, 0, pop_time + difference, 1, NOW) is None
    assert table.has_out(KEY)


def test_a_receipt_of_a_message_that_never_went_out_is_stale() -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    assert table.ack(KEY, 1, pop_time) is AckOutcome.STALE
    assert table.ack(KEY._replace(group="other"), 0, pop_time) is AckOutcome.STALE


def test_a_message_is_out_until_its_time_is_over() -> None:
    table = PopTable()
    pop(table, 2)
    assert expired(table, later(INVISIBLE - 1)) == []
    assert table.next_end == NOW.steady_ms + INVISIBLE
    assert expired(table, later(INVISIBLE)) == [0, 1]
    assert table.drain_commits() == [(KEY, 2)]


def test_a_step_of_the_wall_clock_makes_nothing_visible() -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    assert expired(table, later(1, wall=86_400_000)) == []
    assert pop(table, 1, now=later(2, wall=-86_400_000))[1] == pop_time
    assert expired(table, later(INVISIBLE, wall=-86_400_000)) == [0]


def test_an_acknowledgement_after_the_time_counts_until_a_copy_is_made() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    assert table.ack(KEY, 0, pop_time) is AckOutcome.DONE
    (revival,) = table.expire(later(INVISIBLE), 10)
    assert table.ack(KEY, 1, pop_time) is AckOutcome.STALE
    assert table.change(KEY, 1, pop_time, 5, later(INVISIBLE)) is None
    table.revived(revival)
    assert table.ack(KEY, 1, pop_time) is AckOutcome.REPEATED
    assert table.out == 0


def test_a_changed_time_begins_anew_and_gives_a_new_receipt() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    changed = table.change(KEY, 0, pop_time, 100_000, later(10_000))
    assert changed is not None
    assert changed.pop_time == pop_time + 10_000
    assert changed.invisible_ms == 100_000
    assert expired(table, later(INVISIBLE)) == [1]
    assert expired(table, later(109_999)) == []
    assert expired(table, later(110_000)) == [0]


@pytest.mark.parametrize("is_new", [False, True])
def test_both_receipts_acknowledge_after_a_change(is_new: bool) -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    changed = table.change(KEY, 0, pop_time, INVISIBLE, later(7))
    assert changed is not None
    assert table.ack(KEY, 0, changed.pop_time if is_new else pop_time) is AckOutcome.DONE


def test_an_invisible_time_of_nothing_brings_a_message_again_at_once() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    table.change(KEY, 1, pop_time, 0, later(1))
    assert expired(table, later(1)) == [1]
    assert table.drain_commits() == []


def test_a_copy_that_fails_is_tried_again_later_each_time() -> None:
    table = PopTable()
    pop(table, 1)
    now = later(INVISIBLE)
    for pause in [*COPY_PAUSES_S, COPY_PAUSES_S[-1]]:
        (revival,) = table.expire(now, 1)
        table.failed(revival, now)
        now = Instant(now.wall_ms, now.steady_ms + 1000 * pause)
        assert table.expire(Instant(now.wall_ms, now.steady_ms - 1), 1) == []
    assert table.drain_commits() == []
    assert expired(table, now) == [0]


def test_a_message_whose_copy_failed_is_acknowledged_by_its_old_receipt() -> None:
    table = PopTable()
    _, pop_time = pop(table, 1)
    (revival,) = table.expire(later(INVISIBLE), 1)
    table.failed(revival, later(INVISIBLE))
    assert table.ack(KEY, 0, pop_time) is AckOutcome.DONE
    table.revived(revival)
    assert table.out == 0


def test_messages_that_the_filter_leaves_out_are_done() -> None:
    table = PopTable()
    start = table.start(KEY, 0)
    table.deliver(KEY, start, [2, 5], 9, invisible_ms=INVISIBLE, now=NOW)
    assert table.start(KEY, 0) == 9
    assert table.drain_commits() == [(KEY, 2)]
    table.deliver(KEY, 9, [], 20, invisible_ms=INVISIBLE, now=NOW)
    assert expired(table, later(INVISIBLE)) == [2, 5]
    assert table.drain_commits() == [(KEY, 20)]


@pytest.mark.parametrize(
    ("start", "offsets", "end"),
    [(1, [1], 2), (0, [1, 1], 2), (0, [1, 0], 2), (0, [2], 2), (0, [-1], 2), (0, [], -1)],
)
def test_offsets_that_were_not_read_cannot_go_out(start: int, offsets: list[int], end: int) -> None:
    table = PopTable()
    pop(table, 1, key=KEY._replace(queue_id=1))
    table.deliver(KEY, 0, [], 0, invisible_ms=1, now=NOW)
    with pytest.raises(ValueError, match=r"were not read|was read"):
        table.deliver(KEY, start, offsets, end, invisible_ms=1, now=NOW)
    assert table.out == 1


def test_a_member_that_pulls_and_commits_takes_what_is_before_its_offset() -> None:
    table = PopTable()
    _, pop_time = pop(table, 4)
    assert table.start(KEY, 2) == 4
    assert table.ack(KEY, 1, pop_time) is AckOutcome.REPEATED
    assert expired(table, later(INVISIBLE)) == [2, 3]
    assert table.start(KEY, 9) == 9


def test_a_member_that_pulls_and_is_late_moves_nothing_back() -> None:
    table = PopTable()
    _, pop_time = pop(table, 4)
    for each in (0, 1):
        table.ack(KEY, each, pop_time)
    assert table.drain_commits() == [(KEY, 2)]
    assert table.start(KEY, 1) == 4
    assert table.drain_commits() == [(KEY, 2)]


def test_what_retention_deleted_is_done() -> None:
    table = PopTable()
    pop(table, 4)
    assert table.start(KEY, 0, min_offset=3) == 4
    assert table.drain_commits() == [(KEY, 3)]
    assert table.start(KEY, 3, min_offset=8) == 8
    assert table.out == 0


def test_after_a_reset_old_receipts_are_stale() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    table.reset(KEY, NOW)
    assert table.drain_commits() == []
    assert (table.out, table.start(KEY, 0)) == (0, 0)
    _, again = pop(table, 2)
    assert again > pop_time
    assert table.ack(KEY, 0, pop_time) is AckOutcome.STALE
    assert table.ack(KEY, 0, again) is AckOutcome.DONE


def test_a_copy_of_before_a_reset_settles_nothing_after_it() -> None:
    table = PopTable()
    pop(table, 1)
    (revival,) = table.expire(later(INVISIBLE), 1)
    table.reset(KEY, NOW)
    pop(table, 1)
    table.revived(revival)
    table.failed(revival, NOW)
    assert table.has_out(KEY)


def test_what_is_gone_is_forgotten_with_what_was_out() -> None:
    table = PopTable()
    for queue_id in range(3):
        pop(table, 2, key=KEY._replace(queue_id=queue_id))
    assert table.forget(lambda key: key.queue_id >= 1, NOW) == 2
    assert (table.out, list(table.held_queues())) == (2, [KEY])


def test_an_operator_releases_a_message_from_who_has_it() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2, owner="10.0.0.1:5")
    assert [(h.offset, h.owner, h.left_ms) for h in table.held(KEY, later(1), 9)] == [
        (0, "10.0.0.1:5", INVISIBLE - 1),
        (1, "10.0.0.1:5", INVISIBLE - 1),
    ]
    assert table.release(KEY, (0, 5), later(1)) == 1
    assert table.ack(KEY, 0, pop_time) is AckOutcome.STALE
    assert expired(table, later(1)) == [0]
    assert table.release(KEY, (0,), later(1)) == 0


@pytest.mark.parametrize(
    ("limits", "capacity"),
    [
        (PopLimits(of_queue=40), 8),
        (PopLimits(of_group=33), 1),
        (PopLimits(in_all=32), 0),
        (PopLimits(), 32),
    ],
)
def test_no_more_is_out_than_the_limits_say(limits: PopLimits, capacity: int) -> None:
    table = PopTable(limits)
    pop(table, 32)
    assert table.capacity(KEY) == capacity
    with pytest.raises(ValueError, match="more than may go out"):
        pop(table, capacity + 1)


def test_other_groups_are_served_when_one_group_has_all_it_may() -> None:
    table = PopTable(PopLimits(of_group=3))
    pop(table, 3)
    assert table.capacity(KEY._replace(queue_id=1)) == 0
    assert table.capacity(KEY._replace(group="other")) == 3


def test_a_message_that_is_out_for_long_keeps_no_memory_of_those_behind_it() -> None:
    table = PopTable()
    pop(table, 1, invisible_ms=10**9)
    for _ in range(3 * STALE_ENDS_MAX):
        offsets, pop_time = pop(table, 2)
        for each in offsets:
            table.ack(KEY, each, pop_time)
    queue = table.queue(KEY)
    assert queue is not None
    assert queue.count == 1
    assert len(queue._pops) < 20
    assert len(table._ends) < 2 * STALE_ENDS_MAX
    assert table.drain_commits() == []


def test_a_time_that_is_changed_without_end_takes_no_memory() -> None:
    table = PopTable()
    _, pop_time = pop(table, 2)
    for _ in range(5 * STALE_ENDS_MAX):
        assert table.change(KEY, 0, pop_time, INVISIBLE, NOW) is not None
    assert len(table._ends) < 2 * STALE_ENDS_MAX + 4
    assert expired(table, later(INVISIBLE)) == [1, 0]


@pytest.mark.parametrize(
    ("times", "maximum", "topic"),
    [(0, 16, "%RETRY%g_T"), (15, 16, "%RETRY%g_T"), (16, 16, "%DLQ%g"), (0, 0, "%DLQ%g")],
)
def test_a_copy_goes_to_the_retries_until_the_maximum_of_the_group(
    times: int, maximum: int, topic: str
) -> None:
    assert copy_target(KEY, times, maximum).topic == topic


def test_a_retry_goes_back_to_its_own_topic() -> None:
    for topic, kind in [("%RETRY%g_T", TopicKind.RETRY_V1), ("%RETRY%g+T", TopicKind.RETRY_V2)]:
        key = QueueKey("g", topic, 0)
        assert copy_target(key, 3, 16, is_v2=True).topic == topic
        assert (kind_of(key), normal_topic(key)) == (kind, "T")
    assert copy_target(KEY, 3, 16, is_v2=True).topic == "%RETRY%g+T"
    assert (kind_of(KEY), normal_topic(KEY)) == (TopicKind.NORMAL, "T")
