"""Messages that consumers give back (CONSUMER_SEND_MSG_BACK): how long they wait, where they go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch

import pytest

from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Appended
from kerolox.message import MessageId, PropertyKey
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_record

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from kerolox.message import MessageExt
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio


def given_back(broker: Broker, level: int) -> MessageExt:
    """The message in the schedule queue of a level."""
    entry = broker.parts.store.queue_entry("SCHEDULE_TOPIC_XXXX", level - 1, 0)
    assert entry is not None
    return decode_record(broker.parts.store.lookup(entry[0]) or b"")[0]


@pytest.mark.parametrize(
    ("version", "limit", "is_dead"), [(120, 0, False), (121, 0, True), (121, 16, False)]
)
async def test_clients_from_3_4_9_on_say_how_often_a_message_is_retried(
    peer: Peer, broker: Broker, version: int, limit: int, is_dead: bool
):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields = {"offset": offset, "group": "readers", "delayLevel": 0, "maxReconsumeTimes": limit}
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields, version=version)
    assert answer.code == ResponseCode.SUCCESS
    assert ("%DLQ%readers" in broker.parts.tables.topics) is is_dead
    # A retry topic is there either way.
    assert "%RETRY%readers" in broker.parts.tables.topics


async def test_no_count_of_retries_is_too_much_for_a_record(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x", j=0x7FFFFFFF)
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields = {"offset": offset, "group": "readers", "delayLevel": 1}
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    [dead] = await peer.messages("%DLQ%readers")
    assert dead.reconsume_times == 0x7FFFFFFF


async def test_a_group_whose_name_is_no_folder_s_gives_nothing_back(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    for level in (1, -1):
        fields = {"offset": offset, "group": "a/b", "delayLevel": level}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "can't be the name of a folder" in (answer.remark or "")
    assert broker.parts.store.queue_bounds("SCHEDULE_TOPIC_XXXX", 0) == (0, 0)
    assert (await peer.heartbeat("c1", "a/b", {"T": "*"})).code == ResponseCode.SUCCESS


async def test_without_a_limit_of_the_client_that_of_the_group_counts(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    body = encode_body({"groupName": "readers", "retryMaxTimes": 0})
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    sent = await peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields = {"offset": offset, "group": "readers", "delayLevel": 1}
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    assert [m.body for m in await peer.messages("%DLQ%readers")] == [b"x"]


async def test_a_message_given_back_waits_as_long_as_its_consumer_says(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    for said, level in ((5, 5), (99, 18)):
        fields = {"offset": offset, "group": "readers", "delayLevel": said, "unitMode": True}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
        assert given_back(broker, level).properties[PropertyKey.DELAY] == str(level)
    topic = broker.parts.tables.topics.get("%RETRY%readers")
    assert topic is not None
    assert topic.topic_sys_flag == 2


async def test_a_message_given_back_twice_remembers_where_it_came_from_first(
    peer: Peer, broker: Broker
):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x", properties="TAGS\x01a")
    first = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields: dict[str, object] = {"offset": first, "group": "readers", "delayLevel": 0}
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    fields["offset"] = given_back(broker, 3).commit_log_offset
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    again = given_back(broker, 4)
    assert again.reconsume_times == 2
    assert again.properties[PropertyKey.RETRY_TOPIC] == "T"
    assert again.properties[PropertyKey.ORIGIN_MESSAGE_ID] == sent.ext_fields["msgId"]
    assert again.tags == "a"


async def test_a_group_without_retry_queues_gives_back_into_nothing(
    peer: Peer, broker: Broker, caplog: pytest.LogCaptureFixture
):
    body = encode_body({"groupName": "readers", "retryQueueNums": 0})
    with caplog.at_level(logging.WARNING, logger="kerolox.broker"):
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        for _ in range(3):
            fields = {"offset": 12345, "group": "readers", "delayLevel": 0}
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    assert "%RETRY%readers" not in broker.parts.tables.topics
    told = [each.getMessage() for each in caplog.records]
    assert [text[:45] for text in told] == [
        "group readers has no retry queues now: what i",
        "group readers has no retry queues: a message ",
    ]
    totals = {(name, key): value for name, key, value in broker.parts.broker_stats.totals()}
    assert totals["SNDBCK_DROP_NUMS", "%RETRY%readers@readers"] == 3


async def test_nothing_is_given_back_into_a_topic_that_takes_no_messages(peer: Peer):
    await peer.create_topic("T")
    sent = await peer.send("T", b"x")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    await peer.create_topic("%RETRY%readers", perm=4)
    fields = {"offset": offset, "group": "readers", "delayLevel": 0}
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[%RETRY%readers] sending message is forbidden"


async def test_what_is_given_back_to_a_busy_store_is_refused_as_busy(broker: Broker, peer: Peer):
    await peer.create_topic("T")
    sent = await peer.send("T")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    busy = Appended(PutMessageStatus.OS_PAGECACHE_BUSY, 0, 0, 0, 0)
    fields = {"offset": offset, "group": "readers", "delayLevel": 0}
    with patch.object(broker.parts.writing.writer, "_store", Mock(append=Mock(return_value=busy))):
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SYSTEM_BUSY
