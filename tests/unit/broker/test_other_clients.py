"""Requests as clients in other languages write them, byte by byte: not as we would, but as RocketMQ
reads them."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

SUBSCRIPTION = {"topic": "T", "subString": "*", "subVersion": 17}
CONSUMER = {
    "groupName": "readers",
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
    "subscriptionDataSet": [SUBSCRIPTION],
}
HEARTBEATS: dict[str, dict[str, Any]] = {
    # rocketmq-client-cpp, and the Python and Node.js clients that are made of it.
    "enums are numbers": {
        "clientID": "c1",
        "consumerDataSet": [
            {
                **CONSUMER,
                "consumeFromWhere": 4,
                "consumeType": 1,
                "messageModel": 1,
                "subscriptionDataSet": [{**SUBSCRIPTION, "subVersion": "17"}],
            }
        ],
    },
    # NewLife.RocketMQ, the .NET client.
    "names begin with capitals": {
        "ClientID": "c1",
        "ConsumerDataSet": [
            {
                **{name[0].upper() + name[1:]: value for name, value in CONSUMER.items()},
                "SubscriptionDataSet": [{"Topic": "T", "SubString": "*", "SubVersion": 17}],
            }
        ],
        "ProducerDataSet": [{"GroupName": "CLIENT_INNER_PRODUCER"}],
    },
    "what is not there is null": {
        "clientID": "c1",
        "consumerDataSet": [
            {
                **CONSUMER,
                "subscriptionDataSet": [
                    {**SUBSCRIPTION, "codeSet": None, "tagsSet": None, "expressionType": None}
                ],
            }
        ],
        "producerDataSet": [],
    },
}


@pytest.mark.parametrize("name", HEARTBEATS)
async def test_a_consumer_of_another_language_is_a_member(peer: Peer, name: str) -> None:
    body = json.dumps(HEARTBEATS[name]).encode() + b"\n"
    answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    fields = {"consumerGroup": "readers"}
    answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    seen = fastjson.loads(answer.body)
    assert [each["clientId"] for each in seen["connectionSet"]] == ["c1"]
    wanted = {name: CONSUMER[name] for name in ("consumeType", "messageModel", "consumeFromWhere")}
    assert {name: seen[name] for name in wanted} == wanted
    assert seen["subscriptionTable"]["T"]["subVersion"] == 17


async def test_a_number_that_names_no_model_is_refused(peer: Peer) -> None:
    body = json.dumps({"clientID": "c1", "consumerDataSet": [{**CONSUMER, "messageModel": 2}]})
    answer = await peer.ask(RequestCode.HEART_BEAT, body=body.encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "messageModel" in (answer.remark or "")


async def test_locks_and_groups_are_read_whatever_the_case_of_their_names(peer: Peer) -> None:
    queue = {"Topic": "T", "BrokerName": "b", "QueueId": 1}
    locks = {"ConsumerGroup": "readers", "ClientId": "c1", "MqSet": [queue]}
    answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(locks).encode())
    held = fastjson.loads(answer.body)["lockOKMQSet"]
    assert held == [{"brokerName": "b", "queueId": 1, "topic": "T"}]
    group = json.dumps({"GroupName": "readers", "RetryMaxTimes": 3, "BrokerId": None}).encode()
    update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await peer.ask(update, body=group)).code == ResponseCode.SUCCESS
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    groups = fastjson.loads(answer.body)["subscriptionGroupTable"]
    assert groups["readers"]["retryMaxTimes"] == 3


class Raw:
    """A connection whose headers are texts; its requests are numbered by themselves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = 0

    async def ask(
        self, code: int, fields: dict[str, Any], body: bytes = b"", language: object = "CPP"
    ) -> RemotingCommand:
        """As rocketmq-client-cpp does: sorted members, numbers as they are, empty signatures, a
        remark, and a line feed at the end."""
        self._opaque += 1
        signature = {"AccessKey": "", "ONSChannelKey": "", "Signature": ""}
        header = {"code": code, "extFields": {**signature, **fields}, "flag": 0}
        header |= {"language": language, "opaque": self._opaque, "remark": "", "version": 6}
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        self._writer.write(struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body)
        while True:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = RemotingCommand.decode(await self._reader.readexactly(size))
            if answer.is_response:
                assert answer.opaque == self._opaque
                return answer


async def test_the_cpp_client_creates_a_topic_sends_and_pulls(any_broker: Broker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
    raw = Raw(reader, writer)
    topic = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    created = await raw.ask(17, {**topic, "readQueueNums": 1, "writeQueueNums": 1})
    assert (created.code, created.remark) == (ResponseCode.SUCCESS, None)
    sent = await raw.ask(
        310,
        {
            "a": "p",
            "b": "T",
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": "1700000000000",
            "h": 0,
            "i": "TAGS\x01a\x02",
            "j": "0",
            "k": "false",
            "l": 16,
            "m": "false",
        },
        b"hello",
    )
    assert (sent.code, sent.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    pull = {"consumerGroup": "readers", "topic": "T", "queueId": 0, "queueOffset": "0"}
    pull |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": "0", "subVersion": "17"}
    pulled = await raw.ask(11, {**pull, "suspendTimeoutMillis": "0", "subscription": "*"})
    assert [message.body for message in decode_records(pulled.body)] == [b"hello"]
    writer.close()


async def test_a_language_may_be_its_number(any_broker: Broker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
    raw = Raw(reader, writer)
    body = json.dumps({"clientID": "c1", "consumerDataSet": [CONSUMER]}).encode()
    for language, name in ((9, "GO"), (99, "OTHER")):
        assert (await raw.ask(34, {}, body, language)).code == ResponseCode.SUCCESS
        answer = await raw.ask(203, {"consumerGroup": "readers"}, language=language)
        [member] = fastjson.loads(answer.body)["connectionSet"]
        assert member["language"] == name
    writer.close()


async def test_members_that_mean_nothing_may_be_missing(peer: Peer) -> None:
    body = json.dumps({"clientID": "c1", "consumerDataSet": [CONSUMER]}).encode()
    await peer.ask(RequestCode.HEART_BEAT, body=body)
    answer = await peer.ask(RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "readers"})
    assert answer.code == ResponseCode.SUCCESS
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS)
    assert answer.code == ResponseCode.SUCCESS
