"""What is out, across restarts, resets, deletions and other members of the group."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.pop.snapshot import PopSnapshot, QueueSnapshot
from kerolox.broker.tables import json_file
from kerolox.broker.tables.offsets import PLAIN_FILE as OFFSETS_FILE
from kerolox.broker.tables.pops import ORDER_FILE, STATE_FILE
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.pops import GROUP, INVISIBLE_MS, Member
from tests.support.eventually import until
from tests.unit.broker.test_pops import filled, offset_of, popped_again, texts, turn

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def running(
    folder: Path, kernel: str, clock: Clock | None = None
) -> AsyncIterator[tuple[Broker, Peer]]:
    """A broker on a folder, and a client of it."""
    config = small_config(folder)
    async with (
        Broker(config, kernel=kernel, clock_ms=clock or Clock()) as broker,
        peer_of(broker) as peer,
    ):
        yield broker, peer


# -- restarts -----------------------------------------------------------------------------------
async def test_a_restart_keeps_what_is_out_and_what_is_done(tmp_path: Path, kernel: str):
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (_, peer):
        member = await filled(peer, 4, queues=1)
        popped = await member.pop(3)
        await member.ack_all(popped[1:2])
    async with running(tmp_path, kernel, clock) as (broker, peer):
        member = Member(peer)
        assert texts(await member.pop()) == ["3"]
        # A receipt of before the restart still counts.
        await member.ack_all(popped[:1])
        assert offset_of(broker) == 2
        turn(broker, INVISIBLE_MS + 1)
        assert texts(await popped_again(member, 2)) == ["2", "3"]


async def test_a_crash_delivers_again_what_no_file_knows(tmp_path: Path, kernel: str):
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        early = await member.pop(2)
        await broker.parts.tables.pops.persist()
        late = await member.pop(2)
        await member.ack_all([early[1], late[1]])
        # The group was made by its first request; its file is written in the background.
        groups = tmp_path / "store" / "config" / "subscriptionGroup.json"
        await until(lambda: groups.exists() and GROUP in groups.read_text())
        copy = tmp_path / "crashed"
        shutil.copytree(tmp_path / "store" / "config", copy)
    shutil.rmtree(tmp_path / "store" / "config")
    copy.rename(tmp_path / "store" / "config")
    async with running(tmp_path, kernel, clock) as (broker, peer):
        member = Member(peer)
        assert texts(await member.pop()) == ["2", "3"]
        turn(broker, INVISIBLE_MS + 1)
        assert texts(await popped_again(member, 4)) == ["0", "1", "2", "3"]


async def test_an_ordered_block_is_there_after_a_restart(tmp_path: Path, kernel: str):
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (_, peer):
        member = await filled(peer, 3, queues=1)
        member.is_order = True
        popped = await member.pop(2)
    async with running(tmp_path, kernel, clock) as (_, peer):
        member = Member(peer)
        member.is_order = True
        assert await member.pop() == []
        await member.ack_all(popped)
        assert texts(await member.pop()) == ["2"]


async def test_the_last_of_several_writes_at_once_stays(tmp_path: Path, kernel: str):
    async with running(tmp_path, kernel) as (broker, _):
        pops = broker.parts.tables.pops
        pops.end()
        states = [PopSnapshot(pop_time=time).encode().decode() for time in range(20)]
        writes = []
        for state in states:
            pops.take(state, "")
            writes.append(asyncio.create_task(pops.keep()))
            await asyncio.sleep(0)
        # One that is cancelled goes on in its thread.
        writes[3].cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        assert [each for each in writes if not each.cancelled() and each.exception()] == []
        assert (tmp_path / "store" / "config" / "popState.json").read_text() == states[-1]


async def test_a_slave_writes_once_that_its_master_has_nothing_out(tmp_path: Path, kernel: str):
    queue = QueueSnapshot(committed=0, group=GROUP, leases=[], next_offset=0, queue_id=0, topic="T")
    said = [
        PopSnapshot(pop_time=1, written_at=1),
        PopSnapshot(pop_time=1, written_at=2),
        PopSnapshot(pop_time=3, written_at=3),
        PopSnapshot(pop_time=3, written_at=4, queues=[queue]),
        PopSnapshot(pop_time=3, written_at=5, queues=[queue]),
        PopSnapshot(pop_time=3, written_at=6),
        PopSnapshot(pop_time=3, written_at=7),
    ]
    async with running(tmp_path, kernel) as (broker, _):
        pops = broker.parts.tables.pops
        pops.end()
        written = []
        for state in said:
            pops.take(state.encode().decode(), "")
            await pops.keep()
            text = (tmp_path / "store" / "config" / "popState.json").read_bytes()
            written.append(PopSnapshot.decode(text).written_at)
        assert written == [1, 1, 3, 4, 5, 6, 6]


async def test_a_damaged_file_is_left_aside(tmp_path: Path, kernel: str):
    async with running(tmp_path, kernel) as (_, peer):
        member = await filled(peer, 2, queues=1)
        await member.pop()
    config = tmp_path / "store" / "config"
    (config / "popState.json").write_bytes(b'{"queues": 7')
    (config / "consumerOrderInfo.json").write_bytes(b"[")
    async with running(tmp_path, kernel) as (_, peer):
        assert texts(await Member(peer).pop()) == ["0", "1"]
        assert (config / "popState.json.damaged").exists()
        assert (config / "consumerOrderInfo.json.damaged").exists()


# -- operators ----------------------------------------------------------------------------------
async def set_offset(peer: Peer, offset: int) -> None:
    """As a tool does, which is no member."""
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": 0, "commitOffset": offset}
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("offset", [0, 2, 3])
async def test_a_reset_while_messages_are_out_begins_there(
    any_peer: Peer, any_broker: Broker, offset: int
):
    member = await filled(any_peer, 4, queues=1)
    popped = await member.pop(3)
    await member.ack_all(popped[:1])
    await any_broker.parts.tables.pops.persist()
    await set_offset(any_peer, offset)
    assert any_broker.parts.tables.pops.state.queues.out == 0
    assert texts(await member.pop()) == [str(each) for each in range(offset, 4)]
    # Receipts of before are stale.
    await member.ack_all(popped)
    assert any_broker.parts.tables.pops.state.queues.out == 4 - offset


async def test_a_reset_counts_after_a_crash(tmp_path: Path, kernel: str):
    async with running(tmp_path, kernel) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        popped = await member.pop()
        await member.ack_all(popped[1:])
        await broker.parts.tables.pops.persist()
        await set_offset(peer, 2)
        state = (tmp_path / "store" / "config" / "popState.json").read_bytes()
        assert b'"queues":[]' in state
        assert offset_of(broker) == 2


async def test_a_reset_counts_after_a_write_that_failed(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(tmp_path, kernel) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        popped = await member.pop()
        await broker.parts.tables.pops.persist()
        await member.ack_all(popped)
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "_store", full)
            with pytest.raises(OSError, match="No space left"):
                await broker.parts.tables.pops.persist()
        # The file still says that all of them are out.
        await set_offset(peer, 2)
        state = (tmp_path / "store" / "config" / "popState.json").read_bytes()
        assert b'"queues":[]' in state


@pytest.mark.parametrize("is_order", [False, True])
@pytest.mark.parametrize("offset", [3, 4])
async def test_nothing_is_given_out_while_a_reset_is_written(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch, offset: int, *, is_order: bool
):
    store, is_asked, may_write = json_file._store, threading.Event(), threading.Event()

    def slow(path: Path, *arguments: Any) -> None:
        if path.name in (STATE_FILE, ORDER_FILE):
            is_asked.set()
            assert may_write.wait(30)
        store(path, *arguments)

    async with running(tmp_path, kernel) as (broker, peer), peer_of(broker) as tool:
        member = await filled(peer, 4, queues=1)
        member.is_order = is_order
        popped = await member.pop(3)
        pops = broker.parts.tables.pops
        await pops.persist()
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "_store", slow)
            reset = asyncio.create_task(set_offset(tool, offset))
            await until(is_asked.is_set)
            assert await member.pop() == []
            await member.ack_all(popped[:1])
            # What is out is taken for the file once more, as every 5 s.
            again = asyncio.create_task(pops.persist())
            may_write.set()
            await asyncio.gather(reset, again)
        assert offset_of(broker) == offset
        assert GROUP.encode() in (tmp_path / "store" / "config" / OFFSETS_FILE).read_bytes()
        name = ORDER_FILE if is_order else STATE_FILE
        assert GROUP.encode() not in (tmp_path / "store" / "config" / name).read_bytes()
        assert texts(await member.pop()) == ["3"][: 4 - offset]


async def test_a_reset_is_on_the_disk_when_it_is_answered(tmp_path: Path, kernel: str):
    async with running(tmp_path, kernel) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        await member.pop(3)
        await broker.parts.tables.pops.persist()
        await set_offset(peer, 4)
        assert f'"T@{GROUP}":{{0:4' in (tmp_path / "store" / "config" / OFFSETS_FILE).read_text()


async def test_what_a_topic_that_is_made_again_gives_out_stays_out(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
):
    store, is_asked, may_write = json_file._store, threading.Event(), threading.Event()

    def slow(path: Path, *arguments: Any) -> None:
        if path.name == STATE_FILE:
            is_asked.set()
            assert may_write.wait(30)
        store(path, *arguments)

    async with running(tmp_path, kernel) as (broker, peer), peer_of(broker) as tool:
        member = await filled(peer, 2, queues=1)
        await member.pop()
        await broker.parts.tables.pops.persist()
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "_store", slow)
            delete = {"topic": "T"}
            deleted = asyncio.create_task(tool.ask(RequestCode.DELETE_TOPIC_IN_BROKER, delete))
            await until(is_asked.is_set)
            member = await filled(peer, 2, queues=1)
            assert texts(await member.pop()) == ["0", "1"]
            may_write.set()
            await deleted
        assert broker.parts.tables.pops.state.queues.out == 2


@pytest.mark.parametrize("is_out", [False, True])
async def test_what_a_start_leaves_out_is_not_in_the_files_when_it_serves(
    tmp_path: Path, kernel: str, *, is_out: bool
):
    """A crash took the end of the log. What comes in its place must not count as done."""
    config = tmp_path / "store" / "config"
    async with running(tmp_path, kernel) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        popped = await member.pop(3)
        await member.ack_all(popped[: 2 if is_out else 3])
        await broker.parts.tables.pops.persist()
    assert f'"T@{GROUP}":{{0:{2 if is_out else 3}' in (config / OFFSETS_FILE).read_text()
    shutil.rmtree(tmp_path / "store" / "commitlog")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    (tmp_path / "store" / "abort").touch()
    async with running(tmp_path, kernel):
        assert not is_out or b'"queues":[]' in (config / STATE_FILE).read_bytes()
        assert f'"T@{GROUP}":{{0:0' in (config / OFFSETS_FILE).read_text()


async def test_a_reset_that_can_not_be_written_changes_nothing(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(tmp_path, kernel) as (broker, peer):
        member = await filled(peer, 4, queues=1)
        popped = await member.pop(3)
        await broker.parts.tables.pops.persist()
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "_store", full)
            fields = {"consumerGroup": GROUP, "topic": "T", "queueId": 0, "commitOffset": 0}
            answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert texts(await member.pop()) == ["3"]
        await member.ack_all(popped)
        assert offset_of(broker) == 3
        # The file lacks what was to be forgotten, until it is written again.
        await broker.parts.tables.pops.persist()
        state = (tmp_path / "store" / "config" / STATE_FILE).read_bytes()
        assert PopSnapshot.decode(state).queues[0].committed == 3


async def test_a_deleted_topic_has_nothing_out(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 2, queues=1)
    popped = await member.pop(1)
    await member.change(popped[0], 0)
    again = await popped_again(member, 1)
    await any_broker.parts.tables.pops.persist()
    await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert any_broker.parts.tables.pops.state.queues.out == 0
    assert again[0].topic not in any_broker.parts.tables.topics
    assert (await member.ack(popped[0])).code == ResponseCode.TOPIC_NOT_EXIST
    member = await filled(any_peer, 3, queues=1)
    assert texts(await member.drain()) == ["0", "1", "2"]


async def test_a_deleted_group_begins_again_at_its_offset(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 2, queues=1)
    popped = await member.pop()
    await member.ack_all(popped[:1])
    await any_peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP})
    assert any_broker.parts.tables.pops.state.queues.out == 0
    assert texts(await member.pop()) == ["1"]


async def test_what_is_out_of_a_lost_queue_is_acknowledged_or_comes_again(
    any_peer: Peer, any_broker: Broker
):
    member = await filled(any_peer, 4, queues=2)
    popped = await member.drain()
    await any_peer.create_topic("T", 1)
    lost = [each for each in popped if each.receipt.queue_id == 1]
    await member.ack_all(lost[:1])
    turn(any_broker, INVISIBLE_MS + 1)
    assert texts(await popped_again(member, 3)) == texts(
        [each for each in popped if each is not lost[0]]
    )


async def test_a_wider_topic_wakes_those_who_wait(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0, queues=1)
    waiting = asyncio.create_task(member.pop(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as other:
        await other.create_topic("T", 3)
        await other.send("T", b"new", queue_id=2)
    assert texts(await waiting) == ["new"]


# -- members that pull --------------------------------------------------------------------------
async def test_members_that_pull_and_pop_share_the_offset(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 6, queues=1)
    await any_peer.heartbeat("c1", GROUP, {"T": "*"})
    popped = await member.pop(2)
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": 0, "commitOffset": 4}
    await any_peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert texts(await member.pop(1)) == ["4"]
    await member.ack_all(popped)
    assert offset_of(any_broker) == 4
    # One that is late does not bring the group back.
    await any_peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": 1})
    assert texts(await member.pop(1)) == ["5"]
    assert offset_of(any_broker) == 4


# -- the modes of groups ------------------------------------------------------------------------
async def test_a_group_is_told_to_pop_after_an_operator_said_so(tmp_path: Path, kernel: str):
    mode = b'{"topic":"T","consumerGroup":"workers","mode":"POP","popShareQueueNum":-1}'
    asked = (
        b'{"topic":"T","consumerGroup":"workers","clientId":"c1","strategyName":"AVG",'
        b'"messageModel":"CLUSTERING"}'
    )
    async with running(tmp_path, kernel) as (_, peer):
        await peer.create_topic("T", 2)
        await peer.heartbeat("c1", GROUP, {"T": "*"})
        answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=asked)
        assert answer.body.count(b'"PULL"') == 2
        assert (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
    async with running(tmp_path, kernel) as (_, peer):
        await peer.heartbeat("c1", GROUP, {"T": "*"})
        answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=asked)
        assert answer.body.count(b'"POP"') == 1
        assert b'"queueId":-1' in answer.body
        answer = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert b'"mode":"POP"' in answer.body


async def test_a_mode_of_retries_can_not_be_set(any_peer: Peer):
    body = b'{"topic":"%RETRY%workers","consumerGroup":"workers","mode":"POP"}'
    answer = await any_peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    assert answer.code == ResponseCode.NO_PERMISSION
