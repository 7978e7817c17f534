"""Questions about messages and offsets, over a real socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kerolox.message import MessageId, MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode, SerializeType
from kerolox.protocol.records import decode_records
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

EVER = {"beginTimestamp": 0, "endTimestamp": 1 << 61}


async def test_messages_are_found_by_business_key_and_by_unique_key(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    unique = "7F00000100002A9F18B4AAC200000001"
    text = f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{unique}"
    await any_peer.send("T", b"one", properties=text)
    await any_peer.send("T", b"two", properties="KEYS\x01k2")
    await until(lambda: any_broker.parts.store.stats()["index_pending"] == 0)
    for key, bodies in (("k1", [b"one"]), ("k2", [b"one", b"two"]), (unique, [b"one"])):
        fields = {"topic": "T", "key": key, "maxNum": 32, **EVER}
        answer = await any_peer.ask(RequestCode.QUERY_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS
        assert sorted(m.body for m in decode_records(answer.body)) == bodies
        assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > 0
    fields = {"topic": "T", "key": unique, "maxNum": 0, "_UNIQUE_KEY_QUERY": "true", **EVER}
    answer = await any_peer.ask(RequestCode.QUERY_MESSAGE, fields)
    assert [m.body for m in decode_records(answer.body)] == [b"one"]


async def test_a_key_that_nobody_used_is_code_22(any_peer: Peer):
    fields = {"topic": "T", "key": "k", "maxNum": 32, **EVER}
    answer = await any_peer.ask(RequestCode.QUERY_MESSAGE, fields)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "can not find message, maybe time range not correct"


async def test_a_message_is_viewed_by_its_id(any_peer: Peer):
    await any_peer.create_topic("T")
    sent = await any_peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    answer = await any_peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    assert [m.body for m in decode_records(answer.body)] == [b"x"]


@pytest.mark.parametrize("offset", [1, -1, 1 << 40])
async def test_an_id_that_points_nowhere_is_code_1(any_peer: Peer, offset: int):
    await any_peer.create_topic("T")
    await any_peer.send("T", b"x")
    answer = await any_peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"


@pytest.mark.parametrize("serialize_type", list(SerializeType))
async def test_offsets_are_kept_per_group_and_queue(any_peer: Peer, serialize_type: SerializeType):
    await any_peer.create_topic("T")
    where = {"consumerGroup": "g", "topic": "T", "queueId": 1}
    for offset in (7, 3):
        update = {**where, "commitOffset": offset}
        answer = await any_peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, update, serialize_type=serialize_type
        )
        assert answer.code == ResponseCode.SUCCESS
        answer = await any_peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, where, serialize_type=serialize_type
        )
        assert answer.ext_fields["offset"] == str(offset)
    answer = await any_peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert fastjson.loads(answer.body) == {"offsetTable": {"T@g": {1: 3}}}


async def test_a_group_without_an_offset_starts_at_0_as_long_as_the_start_is_there(any_peer: Peer):
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    answer = await any_peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert (answer.code, answer.ext_fields["offset"]) == (ResponseCode.SUCCESS, "0")


async def test_a_group_without_an_offset_is_told_so_when_the_start_is_long_gone(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    await peer.create_topic("T")
    await peer.send("T", bytes(4_000))
    monkeypatch.setattr("kerolox.broker.requests.query.memory_bytes", lambda: 1_000)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


async def test_the_bounds_of_a_queue(any_peer: Peer):
    await any_peer.create_topic("T")
    where = {"topic": "T", "queueId": 0}
    empty = await any_peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where)
    assert empty.ext_fields["timestamp"] == "-1"
    before = int(time.time() * 1000)
    for _ in range(3):
        await any_peer.send("T")
    maximum = await any_peer.ask(RequestCode.GET_MAX_OFFSET, where)
    minimum = await any_peer.ask(RequestCode.GET_MIN_OFFSET, where)
    assert (minimum.ext_fields["offset"], maximum.ext_fields["offset"]) == ("0", "3")
    earliest = await any_peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where)
    assert before - 1 <= int(earliest.ext_fields["timestamp"]) <= int(time.time() * 1000)


async def test_an_offset_is_found_by_time(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    for at in (1_000_000, 2_000_000, 3_000_000):
        any_broker.parts.store.set_clock(at)
        await any_peer.send("T")
    for at, offset in ((0, "0"), (2_000_000, "1"), (9_000_000, "2")):
        fields = {"topic": "T", "queueId": 0, "timestamp": at}
        answer = await any_peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        assert answer.ext_fields["offset"] == offset


async def test_the_state_of_a_topic(any_peer: Peer):
    await any_peer.create_topic("T", 2)
    await any_peer.send("T", queue_id=1)
    answer = await any_peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    table = fastjson.loads(answer.body)["offsetTable"]
    state = table[MessageQueue("T", "broker-t", 1)]
    assert (state["minOffset"], state["maxOffset"]) == (0, 1)
    assert state["lastUpdateTimestamp"] > 0
    assert table[MessageQueue("T", "broker-t", 0)]["lastUpdateTimestamp"] == 0
    missing = await any_peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Nowhere"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
