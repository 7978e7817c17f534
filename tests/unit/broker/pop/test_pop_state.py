"""Ordered pops and others of one group, and the texts of refusals."""

from __future__ import annotations

import pytest

from kerolox.broker.pop.checks import (
    check_group,
    check_invisible,
    check_poll,
    check_queue,
    check_range,
    check_topic,
    illegal_order,
)
from kerolox.broker.pop.leases import AckOutcome
from kerolox.broker.pop.orders import Delivery
from kerolox.broker.pop.state import PopPlan, PopState
from kerolox.errors import BrokerError
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import SEE_FAQ, ResponseCode
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX
from tests.unit.broker.pop.test_pop_table import INVISIBLE, KEY, NOW, later

TOPIC = TopicConfig(topic_name="T", read_queue_nums=4)


def plan(state: PopState, committed: int = 0, *, order: bool, after: int = 0) -> PopPlan | None:
    return state.plan(
        KEY,
        is_order=order,
        attempt_id=None,
        committed=committed,
        bounds=(0, 1_000),
        now=later(after),
    )


def pop(
    state: PopState, count: int, committed: int = 0, *, order: bool, after: int = 0
) -> tuple[list[int], Delivery]:
    planned = plan(state, committed, order=order, after=after)
    assert planned is not None
    offsets = [n for n in range(planned.start, 10**6) if n not in planned.done][:count]
    found = state.deliver(
        planned, offsets, offsets[-1] + 1, invisible_ms=INVISIBLE, now=later(after)
    )
    return offsets, found


def test_an_ordered_pop_waits_for_what_is_out_without_order() -> None:
    state = PopState()
    _, found = pop(state, 1, order=False)
    assert plan(state, order=True) is None
    assert state.ack(KEY, 0, found.pop_time, is_order=False, committed=0) is AckOutcome.DONE
    assert state.drain_commits() == [(KEY, 1)]
    assert pop(state, 2, 1, order=True)[0] == [1, 2]


def test_a_pop_without_order_waits_for_the_ordered_one() -> None:
    state = PopState()
    pop(state, 3, order=True)
    assert plan(state, order=False) is None
    assert plan(state, order=False, after=INVISIBLE) is not None


def test_a_pop_without_order_passes_over_what_was_done_in_order() -> None:
    state = PopState()
    _, found = pop(state, 3, order=True)
    assert state.ack(KEY, 1, found.pop_time, is_order=True, committed=0) is AckOutcome.DONE
    assert pop(state, 3, order=False, after=INVISIBLE)[0] == [0, 2, 3]
    assert plan(state, order=True, after=INVISIBLE) is None


def test_what_was_done_in_order_stays_done_behind_a_pop_of_fewer_without_order() -> None:
    state = PopState()
    _, found = pop(state, 5, order=True)
    for offset in (2, 4):
        state.ack(KEY, offset, found.pop_time, is_order=True, committed=0)
    assert pop(state, 1, order=False, after=INVISIBLE)[0] == [0]
    # A receipt of the ordered pop is of no effect, and the rest is not out.
    outcome = state.ack(KEY, 3, found.pop_time, is_order=True, committed=0)
    assert outcome is AckOutcome.STALE
    assert [each.offset for each in state.held(KEY, later(INVISIBLE))] == [0]
    assert pop(state, 1, order=False, after=INVISIBLE)[0] == [1]
    assert pop(state, 2, order=False, after=INVISIBLE)[0] == [3, 5]
    assert state.orders.is_empty


def test_an_ordered_pop_that_the_filter_leaves_empty_forgets_nothing_behind() -> None:
    state = PopState()
    _, found = pop(state, 5, order=True)
    state.ack(KEY, 4, found.pop_time, is_order=True, committed=0)
    planned = plan(state, order=True, after=INVISIBLE)
    assert planned is not None
    state.deliver(planned, [], 3, invisible_ms=INVISIBLE, now=later(INVISIBLE))
    assert pop(state, 2, 3, order=True, after=INVISIBLE)[0] == [3, 5]


def test_an_ordered_pop_commits_the_first_message_that_is_not_done() -> None:
    state = PopState()
    _, found = pop(state, 3, 5, order=True)
    assert state.drain_commits() == [(KEY, 5)]
    state.ack(KEY, 6, found.pop_time, is_order=True, committed=5)
    assert state.drain_commits() == []
    state.ack(KEY, 5, found.pop_time, is_order=True, committed=5)
    assert state.drain_commits() == [(KEY, 7)]


def test_an_ordered_pop_commits_what_is_done_behind_what_its_filter_leaves_out() -> None:
    state = PopState()
    planned = plan(state, order=True)
    assert planned is not None
    found = state.deliver(planned, [0, 3], 4, invisible_ms=INVISIBLE, now=later(0))
    assert state.ack(KEY, 3, found.pop_time, is_order=True, committed=0) is AckOutcome.DONE
    planned = plan(state, order=True, after=INVISIBLE)
    assert planned is not None
    again = state.deliver(planned, [0], 4, invisible_ms=INVISIBLE, now=later(INVISIBLE))
    state.drain_commits()
    state.ack(KEY, 0, again.pop_time, is_order=True, committed=0)
    assert state.drain_commits() == [(KEY, 4)]


def test_an_ordered_pop_that_the_filter_leaves_empty_moves_on() -> None:
    state = PopState()
    planned = plan(state, order=True)
    assert planned is not None
    state.deliver(planned, [], 9, invisible_ms=INVISIBLE, now=NOW)
    assert state.drain_commits() == [(KEY, 9)]
    assert plan(state, 9, order=True) is not None


@pytest.mark.parametrize("order", [False, True])
def test_a_batch_acknowledges_each_message_by_itself(order: bool) -> None:
    state = PopState()
    _, found = pop(state, 3, order=order)
    bits, pop_time = 1 << 0 | 1 << 1 | 1 << 9, found.pop_time
    done = state.ack_batch(KEY, 0, bits, pop_time, is_order=order, committed=0)
    assert done == (2, order)
    assert state.ack_batch(KEY, 0, 0b11, pop_time, is_order=order, committed=0) == (0, False)
    assert state.drain_commits() == [(KEY, 2)]


def test_an_acknowledgement_in_order_never_moves_a_group_back() -> None:
    state = PopState()
    _, found = pop(state, 3, 5, order=True)
    assert state.drain_commits() == [(KEY, 5)]
    outcome = state.ack(KEY, 5, found.pop_time, is_order=True, committed=6)
    assert outcome is AckOutcome.REPEATED
    state.ack(KEY, 7, found.pop_time, is_order=True, committed=6)
    assert state.drain_commits() == []


@pytest.mark.parametrize("order", [False, True])
def test_a_group_behind_the_end_of_a_queue_goes_on_at_the_end(order: bool) -> None:
    state = PopState()
    planned = plan(state, 1_007, order=order)
    assert planned is not None
    assert planned.start == 1_000
    assert state.drain_commits() == [(KEY, 1_000)]


@pytest.mark.parametrize("order", [False, True])
def test_a_reset_takes_back_what_is_out_and_what_was_to_be_committed(order: bool) -> None:
    state = PopState()
    _, found = pop(state, 3, order=order)
    state.ack(KEY, 0, found.pop_time, is_order=order, committed=0)
    state.reset(KEY, NOW)
    assert state.drain_commits() == []
    assert state.ack(KEY, 1, found.pop_time, is_order=order, committed=0) is AckOutcome.STALE
    assert pop(state, 1, 0, order=order)[0] == [0]


@pytest.mark.parametrize("order", [False, True])
def test_a_topic_that_is_gone_takes_its_pops_with_it(order: bool) -> None:
    state = PopState()
    pop(state, 3, order=order)
    assert state.forget(lambda key: key.topic == "T", NOW) == 1
    assert state.drain_commits() == []
    assert plan(state, order=not order) is not None


@pytest.mark.parametrize("order", [False, True])
def test_a_time_is_changed_in_both_kinds(order: bool) -> None:
    state = PopState()
    _, found = pop(state, 1, order=order)
    changed = state.change(KEY, 0, found.pop_time, 5, later(1), is_order=order)
    assert changed is not None
    assert changed.pop_time == found.pop_time + (0 if order else 1)
    assert state.change(KEY, 0, found.pop_time - 1, 5, later(1), is_order=order) is None


def refusal(found: BrokerError | None) -> tuple[int, str]:
    assert found is not None
    return found.code, found.remark


def test_refusals_have_the_codes_and_texts_of_rocketmq() -> None:
    assert refusal(check_poll("1.2.3.4:5", 1, 1_000, 500, 2_001)) == (
        ResponseCode.POLLING_TIMEOUT,
        "the broker[1.2.3.4:5] pop message is timeout too much",
    )
    assert refusal(check_poll("b", 33, 0, 0, 0)) == (
        ResponseCode.INVALID_PARAMETER,
        "the broker[b] pop message's num is greater than 32",
    )
    assert refusal(check_topic(None, "T")) == (
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[T] not exist, apply first please! {SEE_FAQ}",
    )
    assert refusal(check_topic(TopicConfig(topic_name="T", perm=2), "T")) == (
        ResponseCode.NO_PERMISSION,
        "the topic[T] peeking message is forbidden",
    )
    assert refusal(check_group(None, "g", "T")) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [g] does not exist, {SEE_FAQ}",
    )
    off = SubscriptionGroupConfig(group_name="g", consume_enable=False)
    assert refusal(check_group(off, "g", "T")) == (
        ResponseCode.NO_PERMISSION,
        "subscription group no permission, g",
    )
    text = "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[c]"
    assert refusal(check_queue(TOPIC, "T", 4, "c")) == (ResponseCode.MESSAGE_ILLEGAL, text)
    assert refusal(check_queue(TOPIC, "T", 4, "c", is_pop=True)) == (
        ResponseCode.INVALID_PARAMETER,
        text,
    )
    assert refusal(check_range("T", 1, 9, (0, 8))) == (
        ResponseCode.NO_MESSAGE,
        "offset is illegal, key:T@1, commit:9, store:0~8",
    )
    assert refusal(illegal_order("T", "g", 1, 9, 5, "c")) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "offset is illegal, key:T@g@1, old:5, commit:9, next:-1, c",
    )


def test_what_is_allowed_is_not_refused() -> None:
    group = SubscriptionGroupConfig(group_name="g")
    assert check_poll("b", 32, 1_000, 500, 2_000) is None
    assert check_topic(TOPIC, "T") is None
    assert check_group(group, "g", "T") is None
    assert check_queue(TOPIC, "T", -1, "c", is_pop=True) is None
    assert check_range("T", 1, 8, (0, 8)) is None
    assert check_range("T", 1, 8, (0, 8), is_change=True) is not None
    assert check_invisible(0, is_change=True) is None
    assert check_invisible(INVISIBLE_MS_MAX, is_change=False) is None


def test_a_message_of_a_queue_that_its_topic_lost_may_be_acknowledged() -> None:
    assert check_queue(TOPIC, "T", 7, "c", is_held=True) is None


@pytest.mark.parametrize("count", [0, -1])
def test_a_pop_of_no_message_is_refused(count: int) -> None:
    assert refusal(check_poll("b", count, 0, 0, 0))[0] == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("milliseconds", "is_change"), [(0, False), (-1, True), (INVISIBLE_MS_MAX + 1, True)]
)
def test_an_invisible_time_of_nothing_or_of_years_is_refused(
    milliseconds: int, is_change: bool
) -> None:
    found = check_invisible(milliseconds, is_change=is_change)
    assert refusal(found)[0] == ResponseCode.INVALID_PARAMETER
    assert str(INVISIBLE_MS_MAX) in refusal(found)[1]


def test_a_group_whose_retries_no_topic_can_name_is_refused() -> None:
    group = SubscriptionGroupConfig(group_name="g" * 120)
    assert refusal(check_group(group, "g" * 120, "T"))[0] == ResponseCode.INVALID_PARAMETER
