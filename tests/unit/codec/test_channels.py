"""What is open on a connection: room, deadlines, outcomes; both codecs alike in any schedule."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.codec.sending import NO_OPAQUE, SendCodec
from kerolox.message import Message, MessageQueue
from kerolox.protocol.command import RemotingCommand
from tests.unit.codec.rig import CODECS, HEAD, NAMES, HandFuture, Rig

both = pytest.mark.parametrize("codec", CODECS, ids=NAMES)
MESSAGE = Message("T-1", b"x")


def answer(opaque: int, message_id: str = "A", code: int = 0) -> bytes:
    command = RemotingCommand.request(310, {})
    command.opaque = opaque
    fields = {"msgId": message_id, "queueId": 0, "queueOffset": opaque}
    return command.response(code, ext_fields=fields).encode()


@both
def test_queues_have_their_turns_unless_one_is_given(codec: SendCodec) -> None:
    rig = Rig(codec, queue_ids=(0, 1, 2))
    for _ in range(4):
        rig.begin(MESSAGE)
    assert rig.chooser.upcoming == 1
    rig.begin(MESSAGE, queue=rig.queues[2])
    assert rig.chooser.upcoming == 1
    assert rig.begin(MESSAGE, queue=MessageQueue("T-1", "c", 0)) is None
    assert [send.queue.queue_id for send in rig.channel.take_open()] == [0, 1, 2, 0, 2]


@both
def test_a_send_that_is_not_begun_leaves_nothing_and_no_turn_is_lost(codec: SendCodec) -> None:
    rig = Rig(codec, queue_ids=(0, 1), body_bytes_max=10)
    for message in (
        Message("T-1", bytes(11)),
        Message("T-1", b"x", delay_level=1),
        Message("T-1", b"x", tags="a\1"),
    ):
        assert rig.begin(message) is None
        assert rig.batch().add(message) is None
    for limit in (0, -1):
        assert rig.begin(MESSAGE, timeout_ms=limit) is None
    rig.lane.aim(0, None)
    assert rig.begin(MESSAGE) is None
    assert (rig.chooser.upcoming, len(rig.channel), rig.sender.open_count) == (0, 0, 0)
    assert rig.channel.take() == b""


@both
def test_the_first_of_a_turn_is_checked_and_begins_it(codec: SendCodec) -> None:
    rig = Rig(codec)
    rig.begin(MESSAGE)
    rig.begin(MESSAGE)
    assert (rig.checks, rig.flushes_scheduled, rig.channel.buffered_frames) == (1, 1, 2)
    rig.channel.take()
    rig.channel.write(b"other")
    rig.begin(MESSAGE)
    assert (rig.checks, rig.flushes_scheduled) == (1, 2)


@both
def test_a_send_that_will_hardly_be_joined_by_others_is_flushed_at_once(codec: SendCodec) -> None:
    rig = Rig(codec, prompt=True)
    for opaque in (77, 78):
        rig.begin(MESSAGE)
        assert (len(rig.flushed), rig.flushes_scheduled, rig.channel.buffered_bytes) == (
            opaque - 76,
            0,
            0,
        )
        rig.feed(answer(opaque))
    for _ in range(3):  # the second and the third have one that is open beside them
        rig.begin(MESSAGE)
    assert (len(rig.flushed), rig.flushes_scheduled, rig.channel.buffered_frames) == (3, 1, 2)
    rig.channel.take()
    rig.feed(answer(79) + answer(80) + answer(81))
    rig.begin(MESSAGE)  # the callers of two others go on in this turn, too
    assert (len(rig.flushed), rig.flushes_scheduled) == (3, 2)


@both
def test_there_is_room_within_the_bounds_and_behind_nobody(codec: SendCodec) -> None:
    rig = Rig(codec, calls_max=2, buffer_bytes_max=1_000)
    channel = rig.channel
    rig.calls[1] = None
    assert rig.begin(MESSAGE)
    assert not channel.has_capacity()
    assert rig.begin(MESSAGE) is None
    rig.calls.clear()
    rig.waiting[5] = None
    assert (channel.has_capacity(), channel.takes_more()) == (False, True)
    rig.waiting.clear()
    channel.take()
    channel.write(bytes(1_000))
    assert channel.takes_more()
    assert rig.flushed == [bytes(1_000)]
    for name in ("closed", "blocked"):
        setattr(channel, name, True)
        assert not channel.has_capacity()
        setattr(channel, name, False)
    assert channel.has_capacity()
    channel.calls_max = 1
    assert not channel.has_capacity()


@both
def test_an_opaque_that_is_open_is_not_given_again(codec: SendCodec) -> None:
    rig = Rig(codec, first_opaque=0x7FFFFFFF)
    rig.begin(MESSAGE)
    assert rig.opaque == 0x7FFFFFFF
    rig.calls[-0x80000000] = rig.waiting[-0x7FFFFFFF] = None
    rig.waiting.clear()
    rig.begin(MESSAGE)
    assert rig.opaque == -0x7FFFFFFF
    assert 0x7FFFFFFF in rig.channel
    assert -0x80000000 not in rig.channel


@both
def test_the_timer_is_armed_for_the_earliest_deadline_only(codec: SendCodec) -> None:
    rig = Rig(codec)
    rig.begin(MESSAGE)
    rig.channel.armed_at = 13.0
    rig.begin(MESSAGE)
    rig.begin(MESSAGE, timeout_ms=1_000)
    assert rig.armed == [13.0, 11.0]
    overdue, earliest = rig.channel.expire(11.0)
    assert ([send.deadline for send in overdue], earliest) == ([11.0], 13.0)
    assert len(rig.channel) == rig.sender.open_count == 2


@both
def test_a_send_that_is_not_stored_says_all_that_is_known_of_it(codec: SendCodec) -> None:
    rig = Rig(codec, queue_ids=(4,))
    future = rig.begin(MESSAGE, timeout_ms=500)
    assert future is not None
    response = RemotingCommand(14)
    assert not rig.channel.complete(1, response)
    assert rig.channel.complete(77, response)
    send = future.result
    assert (send.answer, send.future, send.batch, send.message) == (response, future, None, None)
    assert (send.message_id, send.queue) == (f"{HEAD}0000", rig.queues[0])
    assert (send.asked_at, send.deadline, send.timeout_ms) == (10.0, 10.5, 500)
    assert rig.gone_on == []
    submitted = rig.begin(MESSAGE, "submit", queue=rig.queues[0])
    rig.channel.complete(rig.opaque, response)
    assert submitted is not None
    assert not submitted.done()
    (send,) = rig.gone_on
    assert (send.future, send.message, send.is_given) == (submitted, MESSAGE, True)


@both
def test_nobody_is_told_of_a_send_that_was_cancelled(codec: SendCodec) -> None:
    rig = Rig(codec)
    first, second = rig.begin(MESSAGE), rig.begin(MESSAGE, "submit")
    assert first is not None
    assert isinstance(second, HandFuture)
    first.cancel()
    second.cancel()
    assert rig.channel.futures() == []
    assert rig.feed(answer(77) + answer(5)) == ([answer(5)[4:]], None)
    for send in rig.channel.take_open():
        send.end(RemotingCommand(14))
    assert not rig.gone_on
    assert first.result is None


@both
def test_a_withdrawn_send_makes_room_for_those_that_wait(codec: SendCodec) -> None:
    rig = Rig(codec)
    rig.begin(MESSAGE)
    rig.lane.withdraw(NO_OPAQUE)
    rig.lane.withdraw(rig.opaque)
    assert (len(rig.channel), rig.sender.open_count, rig.admits) == (0, 0, 0)
    rig.begin(MESSAGE)
    rig.waiting[1] = None
    rig.lane.withdraw(rig.opaque)
    assert rig.admits == 1


@both
def test_a_batch_has_bounds_and_tells_when_it_is_full(codec: SendCodec) -> None:
    rig = Rig(codec)
    size = len(one(rig).body)
    batch = rig.batch(bytes_max=2 * size + 1)
    assert batch.add(MESSAGE)
    assert batch.add(MESSAGE)
    assert (batch.refused, rig.full) == (False, 0)
    assert batch.add(MESSAGE) is None
    assert (batch.refused, len(batch), len(batch.body)) == (True, 2, 2 * size)
    large = rig.batch(bytes_max=10)
    assert large.add(MESSAGE)
    assert rig.full == 1
    many = rig.batch(count_max=2)
    assert many.add(MESSAGE)
    assert many.add(MESSAGE)
    assert rig.full == 2
    assert many.add(MESSAGE) is None


def one(rig: Rig) -> Any:
    batch = rig.batch()
    batch.add(MESSAGE)
    return batch


@both
def test_each_message_of_a_batch_has_its_own_result(codec: SendCodec) -> None:
    rig = Rig(codec)
    batch = rig.batch()
    futures = [batch.add(Message("T-1", b"%d" % number)) for number in range(4)]
    assert all(isinstance(future, HandFuture) for future in futures)
    futures[1].cancel()  # type: ignore[union-attr]
    assert batch.seal() == 3
    assert b"1" not in batch.body.replace(HEAD.encode(), b"")[:60]
    assert rig.lane.post_batch(batch, 0, 3_000, 13.0)
    assert rig.sender.open_count == 3
    assert len(rig.channel.futures(rig.sender)) == 3
    assert rig.channel.futures(Rig(codec).sender) == []
    few = answer(77, "A,B")
    assert rig.feed(few) == ([few[4:]], None)
    assert rig.feed(answer(77, "A,B,C")) == ([], None)
    results = [futures[number].result for number in (0, 2, 3)]  # type: ignore[union-attr]
    assert [each.message_id for each in results] == [f"{HEAD}000{n}" for n in (0, 2, 3)]
    assert [each.offset_message_id for each in results] == ["A", "B", "C"]
    assert [each.queue_offset for each in results] == [77, 78, 79]
    assert rig.sender.open_count == 0


@pytest.mark.skipif("native" not in NAMES, reason="there is no native codec")
def test_results_of_the_native_codec_cost_the_garbage_collector_nothing() -> None:
    rig = Rig(CODECS[NAMES.index("native")])
    future = rig.begin(MESSAGE)
    assert future is not None
    rig.feed(answer(77))
    assert not gc.is_tracked(future.result)
    assert future.result._replace(region="r").region == "r"


@both
def test_messages_join_the_batch_of_their_lane_if_it_is_theirs(codec: SendCodec) -> None:
    rig = Rig(codec, batching=True)
    assert rig.begin(MESSAGE) is None
    rig.lane.batch = batch = rig.batch()
    assert rig.begin(MESSAGE)
    assert rig.opaque == NO_OPAQUE
    assert rig.begin(MESSAGE, queue=rig.queues[0]) is None
    assert rig.begin(MESSAGE, timeout_ms=5) is None
    assert rig.begin(Message("T-1", b"x", wait_store_ok=False)) is None
    assert (len(batch), batch.refused) == (1, False)
    assert rig.lane.batch is batch
    rig.lane.batch = None
    assert rig.begin(MESSAGE) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("begin", "submit", "batch", "answer", "odd", "withdraw", "later", "take", "cancel")
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


def story(codec: SendCodec, steps: list[tuple[str, int]], prompt: bool) -> list[object]:
    """What can be seen of a channel as steps are made."""
    rig = Rig(codec, queue_ids=(0, 1), calls_max=6, buffer_bytes_max=3_000, prompt=prompt)
    futures: list[Any] = []
    seen: list[object] = []
    for step, number in steps:
        opaque = 77 + number
        if step in ("begin", "submit"):
            queue = (None, rig.queues[1])[number % 2]
            message, limit = Message("T-1", bytes(1 + number)), 100 * number
            futures.append(rig.begin(message, step, queue=queue, timeout_ms=limit))
        elif step == "batch":
            batch = rig.batch()
            futures += [batch.add(MESSAGE) for _ in range(number % 3 + 1)]
            seen.append(batch.seal())
            seen.append(rig.lane.post_batch(batch, number % 2, 400, rig.now + 0.4))
        elif step == "answer":
            seen.append(rig.feed(answer(opaque, "A" + ",A" * (number % 3))))
        elif step == "odd":
            seen.append(rig.channel.complete(opaque, RemotingCommand(14)))
        elif step == "withdraw":
            seen.append(rig.channel.withdraw(opaque))
        elif step == "take":
            seen.append(rig.channel.take())
        elif step == "cancel" and number < len(futures) and futures[number] is not None:
            futures[number].cancel()
        else:
            rig.now += 0.1 * number
            rig.channel.take()
            rig.feed(b"")  # which reads the clock anew
            overdue, earliest = rig.channel.expire(rig.now)
            for send in overdue:
                send.end(RemotingCommand(1))
            rig.channel.armed_at = earliest
            seen.append((len(overdue), earliest))
        seen.append(
            [
                rig.channel.has_capacity(),
                len(rig.channel),
                rig.sender.open_count,
                rig.chooser.upcoming,
            ]
        )
    seen += [rig.armed, rig.flushed, rig.flushes_scheduled, rig.checks, len(rig.gone_on)]
    seen += [shown(None if future is None else future.result) for future in futures]
    return seen


def shown(result: Any) -> object:
    if isinstance(result, tuple) or result is None:
        return result
    return (result.answer.code, result.message_id, result.queue, result.asked_at, result.deadline)


@pytest.mark.skipif(len(CODECS) < 2, reason="there is one codec only")
@settings(max_examples=300)
@given(STEPS, st.booleans())
def test_both_codecs_tell_the_same_story(steps: list[tuple[str, int]], prompt: bool) -> None:
    python, native = (story(codec, steps, prompt) for codec in CODECS)
    assert python == native
