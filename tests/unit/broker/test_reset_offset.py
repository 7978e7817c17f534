"""Offsets that an operator resets (222), and what the consumers learn (220)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.message import MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from tests.support.clients.peer import Peer, peer_of
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker

pytestmark = pytest.mark.asyncio

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


async def commit(peer: Peer, group: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def told(peer: Peer) -> RemotingCommand:
    """What the consumer heard."""
    wanted = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    await until(lambda: any(notice.code == wanted for notice in peer.notices))
    [heard] = [notice for notice in peer.notices if notice.code == wanted]
    peer.notices.clear()
    return heard


async def test_consumers_are_told_to_go_on_elsewhere(peer: Peer):
    await peer.create_topic("T", 1)
    for _ in range(3):
        await peer.send("T")
    fields = {"topic": "T", "group": "readers", "timestamp": 0, "isForce": True}
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert answer.remark == "THe consumer group <readers> not exist"
    await commit(peer, "readers", 0, 3)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    await peer.heartbeat("c1", topics={"T": "*"})
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    expected = {MessageQueue("T", "broker-t", 0): 0}
    assert fastjson.loads(answer.body)["offsetTable"] == expected
    wanted = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    await until(lambda: any(notice.code == wanted for notice in peer.notices))
    [told] = [notice for notice in peer.notices if notice.code == wanted]
    assert fastjson.loads(told.body)["offsetTable"] == expected


async def test_a_tool_of_5_resets_a_group_that_has_no_offset_yet(broker: Broker, peer: Peer):
    await peer.create_topic("T", 2)
    for _ in range(3):
        await peer.send("T")
    fields = {"topic": "T", "group": "readers", "timestamp": -1, "isForce": False}
    of_5 = {"version": VERSION + 60}
    # Nobody is online: such a tool has another way then, as those of 4.9.
    answer = await peer.ask(RESET, fields, **of_5)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    one = {**fields, "queueId": 0, "offset": 1}
    assert (await peer.ask(RESET, one, **of_5)).code == ResponseCode.SUCCESS
    assert broker.parts.tables.offsets.of_topic("readers", "T") == {0: 1}
    await peer.heartbeat("c1", topics={"T": "*"})
    answer = await peer.ask(RESET, {**fields, "isForce": True}, **of_5)
    expected = {MessageQueue("T", "broker-t", number): 3 * (1 - number) for number in range(2)}
    assert fastjson.loads(answer.body)["offsetTable"] == expected
    assert fastjson.loads((await told(peer)).body)["offsetTable"] == expected


@pytest.mark.parametrize(
    ("timestamp", "is_force", "offset"),
    [(0, True, 0), (0, False, 0), (-1, True, 3), (-1, False, 2), (9_999_999_999_999, True, 2)],
)
async def test_a_reset_goes_forward_only_by_force(
    peer: Peer, timestamp: int, is_force: bool, offset: int
):
    await peer.create_topic("T", 1)
    for _ in range(3):
        await peer.send("T")
    await commit(peer, "readers", 0, 2)
    await peer.heartbeat("c1", topics={"T": "*"})
    fields = {"topic": "T", "group": "readers", "timestamp": timestamp, "isForce": is_force}
    answer = await peer.ask(RESET, fields)
    expected = {"offsetTable": {MessageQueue("T", "broker-t", 0): offset}}
    assert fastjson.loads(answer.body) == expected
    heard = await told(peer)
    assert fastjson.loads(heard.body) == expected
    assert heard.ext_fields["timestamp"] == str(timestamp)
    assert heard.is_oneway


async def test_a_reset_that_a_cpp_tool_asks_for_is_told_as_a_list(broker: Broker, peer: Peer):
    await peer.create_topic("T", 1)
    await peer.send("T")
    await commit(peer, "readers", 0, 1)
    await peer.heartbeat("c1", topics={"T": "*"})
    fields = {"topic": "T", "group": "readers", "timestamp": 0, "isForce": True}
    request = RemotingCommand.request(RESET, fields)
    request.language = LanguageCode.CPP
    answer = await peer.client.invoke(peer.address, request, timeout_seconds=30.0)
    # Whoever asked gets the table that it always gets.
    expected = {MessageQueue("T", "broker-t", 0): 0}
    assert fastjson.loads(answer.body) == {"offsetTable": expected}
    queue = {"brokerName": "broker-t", "offset": 0, "queueId": 0, "topic": "T"}
    assert fastjson.loads((await told(peer)).body) == {"offsetTable": [queue]}


async def test_each_member_is_told_and_one_that_is_too_old_is_named(broker: Broker, peer: Peer):
    await peer.create_topic("T", 1)
    await commit(peer, "readers", 0, 0)
    fields = {"topic": "T", "group": "readers", "timestamp": 0, "isForce": True}
    async with peer_of(broker) as other:
        await peer.heartbeat("c1", topics={"T": "*"})
        await other.heartbeat("c2", topics={"T": "*"})
        assert (await peer.ask(RESET, fields)).code == ResponseCode.SUCCESS
        assert (await told(peer)).body == (await told(other)).body
    async with peer_of(broker) as other:
        await other.heartbeat("c3", topics={"T": "*"}, mq_version=27)
        for code in (RESET, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS):
            refused = await peer.ask(code, fields)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert refused.remark == "the client does not support this feature. version=27"


async def test_offsets_of_a_group_that_is_not_online_are_set_from_outside(peer: Peer):
    # The old way of mqadmin: it asks for the offset of a time and commits it.
    await peer.create_topic("T", 1)
    for _ in range(3):
        await peer.send("T")
    await commit(peer, "readers", 0, 3)
    at = await peer.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": 0}
    )
    await commit(peer, "readers", 0, int(at.ext_fields["offset"]))
    queue = {"consumerGroup": "readers", "topic": "T", "queueId": 0}
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    assert answer.ext_fields["offset"] == "0"


ONE_QUEUE = {"topic": "T", "group": "readers", "timestamp": 0, "isForce": True, "queueId": 1}
"""What a tool of 5.x asks for when it is told of a queue."""


async def test_a_reset_of_one_queue_leaves_the_others_alone(peer: Peer):
    await peer.create_topic("T", 3)
    for queue_id in range(3):
        for _ in range(3):
            await peer.send("T", queue_id=queue_id)
        await commit(peer, "readers", queue_id, 3)
    await peer.heartbeat("c1", topics={"T": "*"})
    for more, offset in (({"offset": 2}, 2), ({"offset": -1}, 0), ({}, 0)):
        answer = await peer.ask(RESET, {**ONE_QUEUE, **more})
        expected = {"offsetTable": {MessageQueue("T", "broker-t", 1): offset}}
        assert answer.code == ResponseCode.SUCCESS
        assert fastjson.loads(answer.body) == expected
        assert fastjson.loads((await told(peer)).body) == expected
    every = await peer.ask(RESET, {**ONE_QUEUE, "queueId": -1})
    assert len(fastjson.loads(every.body)["offsetTable"]) == 3


async def test_one_queue_of_a_group_that_is_not_online_is_reset_by_the_broker(
    broker: Broker, peer: Peer
):
    await peer.create_topic("T", 2)
    for _ in range(3):
        await peer.send("T", queue_id=1)
    await commit(peer, "readers", 1, 3)
    answer = await peer.ask(RESET, {**ONE_QUEUE, "offset": 1})
    assert answer.code == ResponseCode.SUCCESS
    assert fastjson.loads(answer.body)["offsetTable"] == {MessageQueue("T", "broker-t", 1): 1}
    assert broker.parts.tables.offsets.query("readers", "T", 1) == 1
    assert broker.parts.tables.offsets.query("readers", "T", 0) == -1


async def test_an_offset_outside_the_queue_and_an_unknown_queue_are_no_reset(
    broker: Broker, peer: Peer
):
    await peer.create_topic("T", 2)
    await peer.send("T", queue_id=1)
    await commit(peer, "readers", 1, 1)
    for more, remark in (
        ({"offset": 2}, "Target offset 2 not in consume queue range [0-1]"),
        ({"offset": -2}, "Target offset -2 not in consume queue range [0-1]"),
        ({"queueId": 2}, "queue 2 of T is not there; it has 2"),
    ):
        answer = await peer.ask(RESET, {**ONE_QUEUE, **more})
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert broker.parts.tables.offsets.query("readers", "T", 1) == 1
