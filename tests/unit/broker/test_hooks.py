"""Hooks of a program that embeds a broker: they see each pull's answer before it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.broker.broker import Broker
from kerolox.broker.hooks import GiveBackContext, PullContext, PullHook
from kerolox.message import MessageId
from kerolox.protocol.codes import RequestCode
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    import pytest


class Notes(PullHook):
    def __init__(self) -> None:
        self.seen: list[PullContext] = []
        self.back: list[GiveBackContext] = []

    def before_answer(self, context: PullContext) -> None:
        self.seen.append(context)

    def given_back(self, context: GiveBackContext) -> None:
        self.back.append(context)


class Fails(PullHook):
    def before_answer(self, context: PullContext) -> None:
        raise RuntimeError("broken hook")

    def given_back(self, context: GiveBackContext) -> None:
        raise RuntimeError("hook broken too")


async def test_hooks_see_each_answer_and_stop_none(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()
    made = Broker(small_config(tmp_path), kernel=kernel, pull_hooks=(Fails(), notes))
    async with made as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"x")
        await peer.heartbeat("me", "readers", {"T": "*"})
        found = await peer.pull("T", Owner="me")
        moved = await peer.pull("T", offset=7)
        nothing = await peer.pull("T", offset=1)
        assert [each.code for each in notes.seen] == [found.code, moved.code, nothing.code]
        assert [each.code for each in notes.seen] == [0, 21, 19]
        [first, *_] = notes.seen
        assert (first.group, first.topic, first.queue_id) == ("readers", "T", 0)
        assert (first.messages, first.size, first.owner) == (1, len(found.body), "me")
        assert first.client.startswith("127.0.0.1:")
        assert broker.parts.store.group_stats()[0][:5] == ("readers", "T", 0, 1, 1)
    assert "broken hook" in caplog.text


async def test_a_held_pull_runs_them_once_when_it_is_answered(tmp_path: Path, kernel: str) -> None:
    notes = Notes()
    made = Broker(small_config(tmp_path), kernel=kernel, pull_hooks=(notes,))
    async with made as broker, peer_of(broker) as peer, peer_of(broker) as other:
        await peer.create_topic("T")
        waiting = asyncio.ensure_future(peer.pull("T", suspend_ms=60_000, tags="a"))
        await until(lambda: broker.parts.store.stats()["held_pulls"] == 1)
        await other.send("T", b"no", properties="TAGS\x01b\x02")
        await other.send("T", b"yes", properties="TAGS\x01a\x02")
        answer = await waiting
    assert answer.code == 0
    assert [each.messages for each in notes.seen] == [1]


async def test_hooks_see_what_is_given_back_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()
    made = Broker(small_config(tmp_path), pull_hooks=(Fails(), notes))
    async with made as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        message_id = (await peer.send("T", b"x")).ext_fields["msgId"]
        offset = MessageId.parse(message_id).physical_offset
        fields = {"offset": offset, "group": "readers", "delayLevel": 0}
        named = {**fields, "originMsgId": message_id, "originTopic": "T", "Owner": "me"}
        for each in (named, fields, {**fields, "originMsgId": " "}):
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, each)).code == 0
    [back] = notes.back
    assert back == GiveBackContext("readers", "T", message_id, back.client, "me")
    assert back.client.startswith("127.0.0.1:")
    assert "hook broken too" in caplog.text
