"""A topic that is deleted and made again: what groups knew of it counts no more, and their members,
who go on at offsets of before, are brought to the start of the new queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.dead_letter_marks import DONE_GROUP, run_groups
from kerolox.protocol.extensions.member_offsets import MEMBER_FIELD
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

OLD, NEW = 3, 9
"""Messages of both lives: the new one has more."""


async def send(peer: Peer, count: int, topic: str = "T", queue_id: int = 0) -> None:
    for number in range(count):
        assert (await peer.send(topic, b"%d" % number, queue_id=queue_id)).code == 0


async def commit(
    peer: Peer,
    offset: int,
    *,
    queue_id: int = 0,
    oneway: bool = False,
    group: str = "readers",
    **more: Any,
) -> int:
    fields = {
        "consumerGroup": group,
        "topic": "T",
        "queueId": queue_id,
        "commitOffset": offset,
        **more,
    }
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    if not oneway:
        return (await peer.ask(code, fields)).code
    command = RemotingCommand.request(code, fields, oneway=True)
    await peer.client.invoke_oneway(peer.address, command)
    # What comes behind it on this connection is answered after it.
    await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    return 0


async def stored(peer: Peer, queue_id: int = 0) -> int:
    fields = {"consumerGroup": "readers", "topic": "T", "queueId": queue_id}
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert answer.code == 0
    return int(answer.ext_fields["offset"])


async def join(peer: Peer, **more: Any) -> None:
    """Become a member that pulls what its heartbeat said, as push consumers do."""
    assert (await peer.heartbeat("member", topics={"T": "*"}, **more)).code == 0


async def pull(peer: Peer, offset: int, queue_id: int = 0, **more: Any) -> RemotingCommand:
    return await peer.pull("T", queue_id, offset, **{"tags": None, **more})


async def delete(peer: Peer) -> None:
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


async def made_again(peer: Peer, *, queues: int = 1, new: int = NEW) -> None:
    """A topic whose member has read all of it, and that is deleted and made again."""
    await peer.create_topic("T", queues)
    await send(peer, OLD)
    await join(peer)
    assert (await pull(peer, 0)).code == 0
    assert await commit(peer, OLD, oneway=True) == 0
    assert await stored(peer) == OLD
    await delete(peer)
    await peer.create_topic("T", queues)
    await send(peer, new)


async def assert_begun(peer: Peer, broker: Broker) -> None:
    """A pull at the start finds all, commits count, and nothing is examined any more."""
    answer = await pull(peer, 0)
    assert len(decode_records(answer.body)) == NEW
    assert await commit(peer, OLD, oneway=True) == 0
    assert await stored(peer) == OLD
    assert not broker.parts.tables.offsets.stale
    await pull(peer, OLD + 2, sys_flag=int(PullSysFlag.COMMIT_OFFSET), commitOffset=OLD + 1)
    assert broker.parts.store.drain_commits() == [("readers", "T", 0, OLD + 1)], "it is fast again"


async def test_offsets_of_a_deleted_topic_are_in_neither_file_nor_backup(
    any_peer: Peer, any_broker: Broker
) -> None:
    await any_peer.create_topic("T", 1)
    await send(any_peer, OLD)
    await commit(any_peer, OLD)
    offsets = any_broker.parts.tables.offsets
    for group in ("others", "more"):
        await commit(any_peer, 1, group=group)
        await offsets.persist()
    assert "T@readers" in offsets.file.backup_path.read_text()
    await delete(any_peer)
    for path in (offsets.file.path, offsets.file.backup_path):
        assert json.loads(path.read_text())["offsetTable"] == {}, path
    await any_peer.create_topic("T", 1)
    assert await stored(any_peer) == 0


async def test_a_held_pull_of_a_deleted_topic_comes_again_and_hears_that_it_is_gone(
    any_peer: Peer, any_broker: Broker
) -> None:
    await any_peer.create_topic("T", 1)
    await send(any_peer, OLD)
    for group in ("readers", "reads anything"):
        held = asyncio.create_task(any_peer.pull("T", 0, OLD, group=group, suspend_ms=60_000))
        await until(lambda: any_broker.parts.store.stats()["held_pulls"] == 1)
        await delete(any_peer)
        answer = await held
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext_fields["nextBeginOffset"] == str(OLD)
        again = await any_peer.pull("T", 0, OLD, group=group, suspend_ms=60_000)
        assert again.code == ResponseCode.TOPIC_NOT_EXIST
        await any_peer.create_topic("T", 1)
        await send(any_peer, OLD)


async def commit_oneway(peer: Peer) -> None:
    await commit(peer, OLD, oneway=True)


async def commit_and_wait(peer: Peer) -> None:
    assert await commit(peer, OLD) == ResponseCode.SYSTEM_ERROR


async def commit_in_a_pull(peer: Peer) -> None:
    flags = int(PullSysFlag.COMMIT_OFFSET)
    answer = await pull(peer, OLD, sys_flag=flags, commitOffset=OLD)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED


@pytest.mark.parametrize("way", [commit_oneway, commit_and_wait, commit_in_a_pull])
async def test_an_offset_of_before_the_deletion_is_not_stored(
    any_peer: Peer, any_broker: Broker, way: Callable[[Peer], Awaitable[None]]
) -> None:
    await made_again(any_peer)
    await way(any_peer)
    assert await stored(any_peer) == 0
    await assert_begun(any_peer, any_broker)


async def test_a_pull_at_an_offset_of_before_the_deletion_is_sent_to_the_start(
    any_peer: Peer, any_broker: Broker
) -> None:
    await made_again(any_peer)
    for offset in (OLD, OLD, NEW, NEW + 5):
        answer = await pull(any_peer, offset, suspend_ms=60_000)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"
    await assert_begun(any_peer, any_broker)


async def test_a_topic_that_a_send_makes_again_is_no_other(
    any_peer: Peer, any_broker: Broker
) -> None:
    await any_peer.send("T", d=1)
    await join(any_peer)
    await commit(any_peer, 1, oneway=True)
    await delete(any_peer)
    await send(any_peer, NEW)
    assert (await pull(any_peer, 1)).code == ResponseCode.PULL_OFFSET_MOVED
    await assert_begun(any_peer, any_broker)


async def test_what_a_running_member_does_is_judged_after_a_restart_too(tmp_path, kernel: str):
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await made_again(peer)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await commit(peer, OLD, oneway=True)
        assert await commit(peer, OLD, **{MEMBER_FIELD: "true"}) == ResponseCode.SYSTEM_ERROR
        assert await stored(peer) == 0
        await join(peer)
        assert (await pull(peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED
        await assert_begun(peer, broker)


async def deleted_while_away(peer: Peer, *, new: int = NEW) -> None:
    """A topic that is deleted and made again while nobody is there who reads it, nor an offset."""
    await peer.create_topic("T", 1)
    await send(peer, OLD)
    await delete(peer)
    await peer.create_topic("T", 1)
    await send(peer, new)


@pytest.mark.parametrize("new", [1, OLD, NEW])
async def test_a_member_that_was_away_at_the_deletion_is_sent_to_the_start(
    any_peer: Peer, any_broker: Broker, new: int
) -> None:
    await deleted_while_away(any_peer, new=new)
    await join(any_peer)
    answer = await pull(any_peer, OLD, sys_flag=int(PullSysFlag.COMMIT_OFFSET), commitOffset=OLD)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"
    await send(any_peer, NEW - new)
    await assert_begun(any_peer, any_broker)


async def test_an_offset_of_a_member_that_sent_no_heartbeat_yet_is_not_stored(
    any_peer: Peer, any_broker: Broker
) -> None:
    await deleted_while_away(any_peer)
    await commit(any_peer, OLD, oneway=True)
    assert await commit(any_peer, OLD, **{MEMBER_FIELD: "true"}) == ResponseCode.SYSTEM_ERROR
    assert await commit(any_peer, NEW + 1) == ResponseCode.SYSTEM_ERROR
    assert await stored(any_peer) == 0
    await join(any_peer)
    assert (await pull(any_peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED
    await assert_begun(any_peer, any_broker)


async def test_who_was_away_and_began_anew_is_not_sent_to_the_start_again(
    any_broker: Broker,
) -> None:
    async with peer_of(any_broker) as operator:
        await deleted_while_away(operator)
        async with peer_of(any_broker) as peer:
            await join(peer)
            assert (await pull(peer, 0)).code == 0
        await until(lambda: any_broker.parts.tables.clients.group("readers") is None)
        async with peer_of(any_broker) as peer:
            await join(peer)
            assert len(decode_records((await pull(peer, OLD)).body)) == NEW - OLD


async def test_an_operator_sets_an_offset_for_a_group_that_is_away(any_broker: Broker) -> None:
    async with peer_of(any_broker) as operator, peer_of(any_broker) as peer:
        await deleted_while_away(operator)
        assert await commit(operator, 5) == 0
        await join(peer)
        assert await stored(peer) == 5
        assert len(decode_records((await pull(peer, 5)).body)) == NEW - 5


@pytest.mark.parametrize("is_member", [True, False])
async def test_behind_the_end_of_a_queue_made_anew_everybody_is_sent_to_the_start(
    any_peer: Peer, any_broker: Broker, is_member: bool
) -> None:
    await deleted_while_away(any_peer, new=1)
    if is_member:
        await join(any_peer, model="BROADCASTING")
    answer = await pull(any_peer, OLD, tags=None if is_member else "*")
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert not any_broker.parts.tables.offsets.stale


async def test_a_member_that_comes_behind_the_end_goes_on_where_another_one_began(
    any_broker: Broker,
) -> None:
    async with peer_of(any_broker) as early, peer_of(any_broker) as late:
        await deleted_while_away(early, new=1)
        await join(early)
        assert (await pull(early, 0)).code == 0
        assert await commit(early, 1) == 0
        assert (await late.heartbeat("late", topics={"T": "*"})).code == 0
        assert await commit(late, OLD) == ResponseCode.SYSTEM_ERROR
        flags = int(PullSysFlag.COMMIT_OFFSET)
        for _ in range(2):
            answer = await pull(late, OLD, sys_flag=flags, commitOffset=OLD)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "1"


async def test_who_was_away_is_known_by_a_broker_that_was_killed_since(
    tmp_path, kernel: str
) -> None:
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", 1)
        await send(peer, OLD)
        await delete(peer)
        written = broker.parts.tables.offsets.file.path.read_bytes()
        await peer.create_topic("T", 1)
        await send(peer, NEW)
    broker.parts.tables.offsets.file.path.write_bytes(written)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await join(peer)
        assert (await pull(peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED
        await assert_begun(peer, broker)


@pytest.mark.parametrize("is_online", [True, False])
async def test_who_reads_assigned_queues_without_offsets_is_sent_to_the_start(
    any_peer: Peer, any_broker: Broker, is_online: bool
) -> None:
    lite = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL)
    more = {"tags": "*", "sys_flag": lite}
    await any_peer.create_topic("T", 1)
    await send(any_peer, OLD)
    if is_online:
        await any_peer.heartbeat("member", topics={})
    assert (await pull(any_peer, 0, **more)).code == 0
    await delete(any_peer)
    await any_peer.create_topic("T", 1)
    await send(any_peer, NEW)
    assert (await pull(any_peer, OLD, **more)).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await pull(any_peer, 0, **more)).code == 0
    assert not any_broker.parts.tables.offsets.stale


async def test_a_pull_consumer_that_keeps_its_offsets_is_sent_to_the_start_once(
    any_peer: Peer, any_broker: Broker
) -> None:
    await made_again(any_peer)
    await any_peer.heartbeat("member", topics={"T": "*"}, consume_type="CONSUME_ACTIVELY")
    assert (await pull(any_peer, OLD, tags="*")).code == ResponseCode.PULL_OFFSET_MOVED
    assert len(decode_records((await pull(any_peer, OLD, tags="*")).body)) == NEW - OLD
    assert not any_broker.parts.tables.offsets.stale


async def test_pulls_of_ranges_without_offsets_are_fast_again_when_each_queue_was_read(
    any_peer: Peer, any_broker: Broker
) -> None:
    for _ in range(2):
        await any_peer.create_topic("T", 1)
        await send(any_peer, NEW)
        assert (await pull(any_peer, OLD, tags="*")).code == 0
        assert not any_broker.parts.tables.offsets.stale
        await delete(any_peer)
        assert any_broker.parts.tables.offsets.stale


async def test_who_is_no_member_reads_where_it_wants_and_decides_nothing(
    any_broker: Broker,
) -> None:
    """Spark and tools read ranges, and commit what they mean."""
    async with peer_of(any_broker) as peer, peer_of(any_broker) as tool:
        await made_again(peer)
        for offset in (OLD, 0):
            answer = await pull(tool, offset, tags="*")
            assert len(decode_records(answer.body)) == NEW - offset
        answer = await pull(tool, NEW + 1, tags="*")
        assert answer.ext_fields["nextBeginOffset"] == "0"
        assert (await pull(peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_an_operator_sets_an_offset_in_a_queue_made_anew(any_broker: Broker) -> None:
    async with peer_of(any_broker) as peer, peer_of(any_broker) as operator:
        await made_again(peer)
        assert await commit(operator, 5) == 0
        assert await stored(peer) == 5
        answer = await pull(peer, 5)
        assert len(decode_records(answer.body)) == NEW - 5


async def test_queues_that_a_topic_lost_are_anew_when_it_gets_them_back(
    any_peer: Peer, any_broker: Broker
) -> None:
    await any_peer.create_topic("T", 2)
    await send(any_peer, OLD, queue_id=1)
    await join(any_peer)
    await commit(any_peer, OLD, queue_id=1, oneway=True)
    await delete(any_peer)
    await any_peer.create_topic("T", 1)
    assert (await pull(any_peer, 0)).code == ResponseCode.PULL_NOT_FOUND
    await commit(any_peer, OLD, queue_id=1, oneway=True)
    await any_peer.create_topic("T", 2)
    await send(any_peer, NEW, queue_id=1)
    assert (await pull(any_peer, OLD, 1)).code == ResponseCode.PULL_OFFSET_MOVED
    answer = await pull(any_peer, 0, 1)
    assert len(decode_records(answer.body)) == NEW
    assert not any_broker.parts.tables.offsets.stale


async def test_each_broadcasting_member_is_sent_to_the_start_once(any_broker: Broker) -> None:
    async with (
        peer_of(any_broker) as one,
        peer_of(any_broker) as other,
        peer_of(any_broker) as gone,
    ):
        await one.create_topic("T", 1)
        await send(one, OLD)
        for number, peer in enumerate((one, other, gone)):
            await peer.heartbeat(f"m{number}", topics={"T": "*"}, model="BROADCASTING")
            await pull(peer, OLD)
        await delete(one)
        await one.create_topic("T", 1)
        await send(one, NEW)
        for peer in (one, other):
            answer = await pull(peer, OLD)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            for offset in (0, OLD):
                assert (await pull(peer, offset)).code == 0
    await until(lambda: not any_broker.parts.tables.offsets.stale)
    async with peer_of(any_broker) as late:
        await late.heartbeat("m4", topics={"T": "*"}, model="BROADCASTING")
        assert (await pull(late, OLD)).code == 0


async def test_a_wait_by_expression_ends_with_the_topic(tmp_path, kernel: str) -> None:
    config = small_config(tmp_path, enable_property_filter=True)
    async with (
        Broker(config, kernel=kernel) as broker,
        peer_of(broker) as peer,
        peer_of(broker) as operator,
    ):
        await peer.create_topic("T", 1)
        await send(peer, OLD)
        await peer.heartbeat("m", topics={"T": "a = 1"}, expression_type="SQL92")
        held = asyncio.create_task(pull(peer, OLD, suspend_ms=60_000, expressionType="SQL92"))
        await until(lambda: broker.parts.arrivals.count == 1)
        await delete(operator)
        await operator.create_topic("T", 1)
        await send(operator, NEW)
        answer = await held
        # The wait may end before the topic is there again, or behind that.
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            answer = await pull(peer, OLD, suspend_ms=60_000, expressionType="SQL92")
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"


async def test_offsets_go_with_the_queues_of_an_unused_topic(
    any_peer: Peer, any_broker: Broker
) -> None:
    await any_peer.create_topic("T", 1)
    await send(any_peer, OLD)
    await commit(any_peer, OLD)
    await join(any_peer)
    any_broker.parts.tables.topics.delete("T")
    assert (await any_peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    await any_peer.create_topic("T", 1)
    await send(any_peer, NEW)
    assert (await pull(any_peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED
    await assert_begun(any_peer, any_broker)


async def test_offsets_go_with_a_queue_all_of_whose_messages_expired(
    any_peer: Peer, any_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_peer.create_topic("T", 2)
    for queue_id in range(2):
        await send(any_peer, OLD, queue_id=queue_id)
        await commit(any_peer, OLD, queue_id=queue_id)
    parts = any_broker.parts

    async def one_expired(told: Any, forget: Any) -> int:
        parts.store.delete_queue("T", 0)
        forget("T", (0,))
        told("T:0")
        return 1

    monkeypatch.setattr(parts.writing.cleaner, "delete_expired_queues", one_expired)
    assert (await any_peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    await send(any_peer, NEW)
    await join(any_peer)
    assert (await pull(any_peer, OLD)).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await pull(any_peer, OLD, 1)).code == ResponseCode.PULL_NOT_FOUND
    await assert_begun(any_peer, any_broker)
    assert await stored(any_peer, 1) == OLD


async def test_members_of_a_group_that_is_gone_store_no_offsets(tmp_path, kernel: str) -> None:
    config = small_config(tmp_path, auto_create_subscription_group=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", 1)
        body = json.dumps({"groupName": "readers"}).encode()
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert await commit(peer, 7) == 0
        fields = {"groupName": "readers", "removeOffset": True}
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
        assert await commit(peer, 7) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await commit(peer, 7, oneway=True)
        file = broker.parts.tables.offsets.file
        for path in (file.path, file.backup_path):
            assert json.loads(path.read_text())["offsetTable"] == {}
        assert broker.parts.tables.offsets.query("readers", "T", 0) == -1


async def test_what_is_done_of_dead_letters_is_kept_without_a_group_for_it(
    tmp_path, kernel: str
) -> None:
    config = small_config(tmp_path, auto_create_subscription_group=False)
    dead = "%DLQ%g"
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic(dead, 1)
        for group in (DONE_GROUP, *run_groups(1)):
            fields = {"consumerGroup": group, "topic": dead, "queueId": 0, "commitOffset": 7}
            assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
            fields.pop("commitOffset")
            told = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            assert told.ext_fields["offset"] == "7"
        assert broker.parts.tables.groups.get(DONE_GROUP) is None
    async with Broker(config, kernel=kernel) as broker:
        assert broker.parts.tables.offsets.query(DONE_GROUP, dead, 0) == 7
