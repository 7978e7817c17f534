"""Taking messages back, how far the timer is, and how many messages wait."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.recall_handles import RecallError, RecallHandle, decode_handle
from kerolox.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint
from kerolox.store.timer.metrics import decode_metrics
from kerolox.testing import Clock
from tests.support.clients.peer import Peer
from tests.unit.broker.test_timer import HOUR_MS, bodies, comes, enqueued, running, text

pytestmark = pytest.mark.asyncio


async def recall(peer: Peer, handle: str, topic: str = "T", **more: Any) -> RemotingCommand:
    fields = {"producerGroup": "g", "topic": topic, "recallHandle": handle, **more}
    return await peer.ask(RequestCode.RECALL_MESSAGE, fields)


async def sent(peer: Peer, key: str, delay_ms: int = HOUR_MS, **more: Any) -> str:
    moment = {} if "TIMER_DELIVER_MS" in more else {"TIMER_DELAY_MS": delay_ms}
    answer = await peer.send("T", key.encode(), properties=text(**moment, **more))
    assert answer.code == ResponseCode.SUCCESS
    return answer.ext_fields.get("recallHandle", "")


async def test_a_message_is_taken_back_by_the_handle_of_its_send(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        handle = await sent(peer, "a", UNIQ_KEY="a")
        await sent(peer, "b", UNIQ_KEY="b")
        parts = base64.urlsafe_b64decode(handle).decode().split(" ")
        assert parts[:3] == ["v1", "T", "broker-t"]
        assert parts[4] == "a"
        answer = await recall(peer, handle)
        assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "a")
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        # RocketMQ takes it twice, too.
        assert (await recall(peer, handle)).code == ResponseCode.SUCCESS
        await enqueued(broker, 4)
        clock.ahead_ms += HOUR_MS + 2_000
        await comes(peer)
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"b"]


async def test_a_message_is_taken_back_within_its_step_until_it_comes(
    tmp_path: Path, kernel: str
) -> None:
    now_ms = begin_ms = 1_700_000_000_000
    async with running(tmp_path, kernel, lambda: now_ms) as (broker, peer):
        handles = [
            await sent(peer, key, TIMER_DELIVER_MS=begin_ms + at_ms, UNIQ_KEY=key)
            for key, at_ms in (("a", 100), ("b", 1_000))
        ]
        await enqueued(broker, 2)
        now_ms += 200
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a"]
        answers = [await recall(peer, handle) for handle in handles]
        assert [each.code for each in answers] == [ResponseCode.ILLEGAL_OPERATION, 0]
        assert "no message of this handle waits" in (answers[0].remark or "")
        now_ms += 800
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a"]
        assert "moment is over" in ((await recall(peer, handles[1])).remark or "")


async def test_without_an_index_nothing_is_taken_back_that_may_have_come(
    tmp_path: Path, kernel: str
) -> None:
    now_ms = begin_ms = 1_700_000_000_000
    settings = {"message_index_enable": False}
    async with running(tmp_path, kernel, lambda: now_ms, **settings) as (broker, peer):
        handles = [
            await sent(peer, key, TIMER_DELIVER_MS=begin_ms + at_ms, UNIQ_KEY=key)
            for key, at_ms in (("a", 100), ("b", 900), ("c", 1_100))
        ]
        await enqueued(broker, 3)
        now_ms += 200
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a"]
        answers = [await recall(peer, handle) for handle in handles]
        too_late = ResponseCode.ILLEGAL_OPERATION
        assert [each.code for each in answers] == [too_late, too_late, ResponseCode.SUCCESS]
        assert "moment may be over" in (answers[0].remark or "")
        now_ms += 2_000
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a", b"b"]


@pytest.mark.parametrize("delay_ms", [50 * HOUR_MS, 60 * HOUR_MS])
async def test_a_message_that_is_stored_again_on_its_way_is_taken_back(
    tmp_path: Path, kernel: str, delay_ms: int
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        handle = await sent(peer, "a", delay_ms, UNIQ_KEY="a")
        await enqueued(broker, 1)
        # The command rolls at other times than its message.
        clock.ahead_ms += 7 * HOUR_MS
        assert (await recall(peer, handle)).code == ResponseCode.SUCCESS
        await sent(peer, "z", delay_ms, UNIQ_KEY="z")
        for _ in range(70):
            clock.ahead_ms += HOUR_MS
            await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"z"]


async def test_what_cannot_be_taken_back_is_told_apart(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.create_topic("U")
        handle = await sent(peer, "a", UNIQ_KEY="a")
        now = clock()
        for given, words in (
            ("?", "recall handle is invalid"),
            (handle[:-9], "recall handle is invalid"),
            (RecallHandle("U", "broker-t", now + 9_000, "a").encode(), "topic not match"),
            (RecallHandle("T", "other", now + 9_000, "a").encode(), "service not available"),
            (RecallHandle("T", "broker-t", now - 1_001, "a").encode(), "its moment is over"),
            (RecallHandle("T", "broker-t", now + 99 * HOUR_MS, "a").encode(), "waits for so long"),
            (RecallHandle("T", "broker-t", now + 9_000, "a").encode(), "no message of this handle"),
            (RecallHandle("T", "broker-t", now + 9_000, "z").encode(), "no message of this handle"),
        ):
            answer = await recall(peer, given)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION, given
            assert words in (answer.remark or "")
        assert (await recall(peer, handle, "gone")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await recall(peer, handle, "U")).code == ResponseCode.ILLEGAL_OPERATION
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"recallMessageEnable=false")
        answer = await recall(peer, handle)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "recall failed, operation is forbidden"
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"recallMessageEnable=true")
        broker.parts.writing.gate.set_writable(False)
        answer = await recall(peer, handle)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "execute error" in (answer.remark or "")


async def test_no_handle_that_is_cut_or_forged_takes_a_message_back(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        handle = await sent(peer, "a", UNIQ_KEY="a" * 20)
        await enqueued(broker, 1)
        forged = [handle[:length] for length in range(len(handle))]
        forged += [f"{handle[:n]}{chr(ord(handle[n]) ^ 1)}{handle[n + 1 :]}" for n in range(64)]
        # Blanks at its end, and bits of it that stand for nothing, are the same handle.
        same = {decode_handle(handle)}
        for each in forged:
            if is_handle_of(each, same):
                continue
            answer = await recall(peer, each)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION, each
            assert (answer.remark or "").startswith(("recall handle is invalid", "recall failed"))
        assert (await recall(peer, "v" * 30_000)).code == ResponseCode.ILLEGAL_OPERATION
        await broker.parts.writing.timer.turn()
        clock.ahead_ms += HOUR_MS + 2_000
        [message] = await comes(peer)
        assert message.body == b"a"


def is_handle_of(text: str, handles: set[RecallHandle]) -> bool:
    try:
        return decode_handle(text) in handles
    except RecallError:
        return False


async def test_messages_without_a_key_or_a_moment_have_no_handle(
    tmp_path: Path, kernel: str
) -> None:
    async with running(tmp_path, kernel, Clock()) as (_, peer):
        assert await sent(peer, "a") == ""
        assert await sent(peer, "a", -1, UNIQ_KEY="a") == ""
        assert await sent(peer, "a", UNIQ_KEY="a" * 300) == ""
        answer = await peer.send("T", properties=text(DELAY=1, UNIQ_KEY="a"))
        assert "recallHandle" not in answer.ext_fields


async def test_the_check_point_and_the_counts_are_those_of_the_timer(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        answer = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        assert decode_checkpoint(answer.body) == TimerCheckpoint()
        answer = await peer.ask(RequestCode.GET_TIMER_METRICS)
        assert decode_metrics(answer.body).timing_count == {}
        for key in "ab":
            await sent(peer, key, UNIQ_KEY=key)
        await enqueued(broker, 2)
        found = decode_checkpoint((await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)).body)
        assert found[1:4] == (104, 2, 2)
        assert 0 <= clock() - found.last_read_ms < 5_000
        answer = await peer.ask(RequestCode.GET_TIMER_METRICS)
        assert decode_metrics(answer.body).timing_count["T"].count == 2
    async with running(tmp_path, kernel, clock, timer_wheel_enable=False) as (_, peer):
        for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
            assert (await peer.ask(code)).code == ResponseCode.SYSTEM_ERROR
