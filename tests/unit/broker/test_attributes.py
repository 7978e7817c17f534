"""Attributes of topics and groups: given, changed, refused, kept in files and taken by slaves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    encode_body,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.servers.fake_broker import FakeBroker

from .replication.pairs import pair, slave_config

pytestmark = pytest.mark.asyncio

FIFO = {"message.type": "FIFO"}
TOPICS_OF_5_3_3 = (
    '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},'
    '\n\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"attributes":{\n\t\t\t\t"message.type":"FIFO"\n\t\t\t},'
    '\n\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":4,'
    '\n\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"T",\n\t\t\t"topicSysFlag":0,'
    '\n\t\t\t"writeQueueNums":8\n\t\t},\n\t\t"U":{\n\t\t\t"attributes":{},\n\t\t\t"order":false,'
    '\n\t\t\t"perm":4,\n\t\t\t"readQueueNums":1,\n\t\t\t"topicFilterType":"SINGLE_TAG",'
    '\n\t\t\t"topicName":"U",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":1\n\t\t}\n\t}\n}'
)
"""``topics.json`` as ``TopicConfigSerializeWrapper`` of RocketMQ 5.3.3 writes it."""
GROUPS_OF_5_3_3 = (
    b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},'
    b'"subscriptionGroupTable":{"g":{"attributes":{"a":"1"},"brokerId":0,'
    b'"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g",'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}}}'
)
LIST = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


async def attributes_of(peer: Peer, topic: str) -> object:
    """As 351 and 21 have them; None: the member is missing."""
    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    table = fastjson.loads((await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    found: dict[str, object] = fastjson.loads(answer.body)
    assert table["topicConfigTable"][topic] == found
    return found.get("attributes")


async def test_a_topic_s_attributes_are_given_changed_and_taken_away(any_peer: Peer):
    answer = await any_peer.create_topic("T", attributes="+message.type=FIFO,+reserve.time=7")
    assert answer.code == ResponseCode.SUCCESS
    assert await attributes_of(any_peer, "T") == {"message.type": "FIFO", "reserve.time": "7"}
    answer = await any_peer.create_topic("T", attributes="+message.type=DELAY,-reserve.time")
    assert answer.code == ResponseCode.SUCCESS
    assert await attributes_of(any_peer, "T") == {"message.type": "DELAY"}
    # A type says what a topic is for; it is proxies that refuse other messages.
    assert (await any_peer.send("T", b"x")).code == ResponseCode.SUCCESS
    await any_peer.create_topic("T", attributes="-message.type")
    assert await attributes_of(any_peer, "T") is None


async def test_a_tool_of_4_9_changes_a_topic_and_its_attributes_stay(any_peer: Peer):
    await any_peer.create_topic("T", 2, attributes="+message.type=FIFO")
    await any_peer.create_topic("T", 6)
    assert await attributes_of(any_peer, "T") == FIFO


async def test_a_topic_that_is_made_again_has_no_attribute_of_before(any_peer: Peer):
    await any_peer.create_topic("T", attributes="+message.type=FIFO")
    await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await any_peer.create_topic("T")
    assert await attributes_of(any_peer, "T") is None


async def test_a_topic_that_a_send_makes_has_no_attributes(any_peer: Peer):
    await any_peer.send("Sent", b"x")
    assert await attributes_of(any_peer, "Sent") is None


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type=SOME", "value is not in set: [UNSPECIFIED, TRANSACTION, FIFO, MIXED,"),
        ("+lite.topic=1", "unsupported key: lite.topic"),
        ("-message.type", "only add attribute is supported while creating topic. key: "),
        ("+queue.type=BatchCQ", "value BatchCQ is not supported by this broker; SimpleCQ is"),
        ("+" + "x" * 5_000 + "=1", 'the custom field <attributes> "+xxx'),
        ("+a=1," * 800, "key duplication: +a"),
    ],
)
async def test_attributes_that_can_t_be_are_code_1_and_make_no_topic(
    any_broker: Broker, any_peer: Peer, attributes: str, remark: str
):
    answer = await any_peer.create_topic("T", attributes=attributes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(remark)
    assert any_broker.parts.tables.topics.get("T") is None


async def test_mixed_is_refused_where_the_setting_says_so_as_by_rocketmq_5(tmp_path: Path):
    config = small_config(tmp_path, enable_mixed_message_type=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.create_topic("T", attributes="+message.type=MIXED")
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "MIXED message type is not supported.",
        )
        assert broker.parts.tables.topics.get("T") is None
        answer = await peer.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"enableMixedMessageType=true\n"
        )
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.create_topic("T", attributes="+message.type=MIXED")).code == 0
        assert await attributes_of(peer, "T") == {"message.type": "MIXED"}


def topic_list(*topics: dict[str, object]) -> bytes:
    return json.dumps({"topicConfigList": list(topics)}).encode()


async def test_a_list_of_topics_is_made_with_their_attributes(any_peer: Peer):
    await any_peer.create_topic("Old", 2, attributes="+message.type=FIFO")
    body = topic_list(
        {"topicName": "New", "readQueueNums": 3, "attributes": {"+message.type": "DELAY"}},
        {"topicName": "Old", "perm": 4, "attributes": {"-message.type": ""}},
        {"topicName": "Plain"},
    )
    answer = await any_peer.ask(LIST, body=body)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert await attributes_of(any_peer, "New") == {"message.type": "DELAY"}
    assert await attributes_of(any_peer, "Old") is None
    answer = await any_peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "Old"})
    assert fastjson.loads(answer.body)["perm"] == 4
    assert await attributes_of(any_peer, "Plain") is None


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (topic_list({"topicName": "A"}, {"topicName": "a b"}), "The specified topic contains"),
        (topic_list({"topicName": "A"}, {"topicName": "TBW102"}), "The topic[TBW102] is conflict"),
        (topic_list({"topicName": "A"}, {"topicName": "B", "perm": 64}), "perm[64] is illegal"),
        (
            topic_list({"topicName": "A"}, {"topicName": "B", "attributes": {"+x": "1"}}),
            "unsupported key: x",
        ),
        (topic_list({"topicName": "A"}, {"topicName": "A"}), "the request names a topic twice"),
        (topic_list(*({"topicName": f"A{n}"} for n in range(1_001))), "the request has 1001"),
        (b'{"topicConfigList":7}', "the body is no TopicList"),
        (b"", "the body is no TopicList"),
    ],
    ids=["name", "system topic", "perm", "attribute", "twice", "many", "no list", "empty"],
)
async def test_a_list_with_one_topic_that_can_t_be_makes_none(
    broker: Broker, peer: Peer, body: bytes, remark: str
):
    before = broker.parts.tables.topics.names
    answer = await peer.ask(LIST, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert broker.parts.tables.topics.names == before


async def test_a_group_s_attributes_stay_and_none_can_be_given(any_broker: Broker, any_peer: Peer):
    groups = any_broker.parts.tables.groups
    groups.put(SubscriptionGroupConfig(group_name="g", attributes={"of.later": "1"}))
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = encode_body({"groupName": "g", "retryMaxTimes": 3, "attributes": {}})
    assert (await any_peer.ask(code, body=body)).code == ResponseCode.SUCCESS
    answer = await any_peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    found = fastjson.loads(answer.body)
    assert (found["attributes"], found["retryMaxTimes"]) == ({"of.later": "1"}, 3)
    for name in ("g", "h"):
        body = encode_body({"groupName": name, "attributes": {"+message.type": "FIFO"}})
        answer = await any_peer.ask(code, body=body)
        assert (answer.code, answer.remark) == (1, "unsupported key: message.type")
    assert groups.get("h") is None


async def test_attributes_are_there_after_a_restart_and_written_as_by_5_3_3(
    tmp_path: Path, kernel: str
):
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes="+message.type=FIFO")
    text = (config.config_folder / "topics.json").read_text()
    assert '"T":{\n\t\t\t"attributes":{\n\t\t\t\t"message.type":"FIFO"\n\t\t\t},\n\t\t\t"o' in text
    assert text.count("attributes") == 1
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert await attributes_of(peer, "T") == FIFO


async def test_the_tables_of_5_3_3_are_read_and_a_topic_is_written_as_there(
    tmp_path: Path, kernel: str
):
    config = small_config(tmp_path)
    config.config_folder.mkdir(parents=True)
    (config.config_folder / "topics.json").write_text(TOPICS_OF_5_3_3)
    (config.config_folder / "subscriptionGroup.json").write_bytes(GROUPS_OF_5_3_3)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert await attributes_of(peer, "T") == FIFO
        assert await attributes_of(peer, "U") is None
        assert broker.parts.tables.groups.get("g").attributes == {"a": "1"}
        await peer.create_topic("V")
    entry = TOPICS_OF_5_3_3[TOPICS_OF_5_3_3.index('\t\t"T"') : TOPICS_OF_5_3_3.index(',\n\t\t"U"')]
    assert entry in (config.config_folder / "topics.json").read_text()


async def test_changes_of_attributes_are_in_the_audit_log(
    peer: Peer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, LOGGER)
    await peer.create_topic("T", attributes="+message.type=FIFO")
    await peer.create_topic("T", attributes="+message.type=DELAY")
    told = [json.loads(r.getMessage()) for r in caplog.records if r.name == LOGGER]
    assert (told[-1]["old"], told[-1]["new"]) == (
        {"attributes": FIFO},
        {"attributes": {"message.type": "DELAY"}},
    )


async def test_a_slave_has_its_master_s_attributes_and_loses_what_it_lost(
    tmp_path: Path, kernel: str
):
    async with pair(tmp_path, kernel) as (master, slave), peer_of(master) as peer:
        kept = SubscriptionGroupConfig(group_name="g", attributes={"of.later": "1"})
        master.parts.tables.groups.put(kept)
        await peer.create_topic("T", attributes="+message.type=FIFO")
        tables = slave.parts.peers.replication.tables
        await tables.sync_from(master.address)
        assert slave.parts.tables.topics.get("T").attributes == FIFO
        assert slave.parts.tables.groups.get("g").attributes == {"of.later": "1"}
        await peer.create_topic("T", attributes="-message.type")
        master.parts.tables.groups.put(SubscriptionGroupConfig(group_name="g"))
        await tables.sync_from(master.address)
        assert slave.parts.tables.topics.get("T").attributes is None
        assert slave.parts.tables.groups.get("g").attributes is None


async def test_a_master_of_4_9_takes_no_attributes_away_and_one_of_5_does(
    tmp_path: Path, kernel: str
):
    async with (
        FakeBroker() as master,
        Broker(slave_config(tmp_path, master.server.port), kernel=kernel) as slave,
    ):
        await _follow_both(master, slave)


async def _follow_both(master: FakeBroker, slave: Broker) -> None:
    topics, groups = slave.parts.tables.topics, slave.parts.tables.groups
    topics.put(TopicConfig(topic_name="T", attributes=FIFO))
    topics.put(TopicConfig(topic_name="Gone", attributes=FIFO))
    groups.put(SubscriptionGroupConfig(group_name="g", attributes={"of.later": "1"}))

    def tables(**more: object) -> tuple[bytes, bytes]:
        topic = {"topicName": "T", "readQueueNums": 9, **more}
        group = {"groupName": "g", "retryMaxTimes": 9, **more}
        version = {"counter": len(more), "timestamp": 1}
        return (
            encode_body({"dataVersion": version, "topicConfigTable": {"T": topic}}),
            encode_body({"dataVersion": version, "subscriptionGroupTable": {"g": group}}),
        )

    def says(code: RequestCode, body: bytes, result: int = 0) -> None:
        async def answer(command: RemotingCommand) -> RemotingCommand:
            return command.response(result, body=body)

        master.answers[code] = answer

    for code in (RequestCode.GET_BROKER_ROLE, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE):
        says(code, b"", ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    kept, lost = (FIFO, {"of.later": "1"}), (None, None)
    for body, expected in ((tables(), kept), (tables(attributes={}), lost)):
        says(RequestCode.GET_ALL_TOPIC_CONFIG, body[0])
        says(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, body[1])
        says(RequestCode.GET_ALL_CONSUMER_OFFSET, b"{}")
        says(RequestCode.GET_ALL_DELAY_OFFSET, b"{}")
        says(RequestCode.GET_BROKER_RUNTIME_INFO, b'{"table":{"commitLogMaxOffset":"0"}}')
        await slave.parts.peers.replication.tables.take_from(master.address)
        topic, group = topics.get("T"), groups.get("g")
        assert topic is not None
        assert group is not None
        assert (topic.read_queue_nums, group.retry_max_times) == (9, 9)
        assert (topic.attributes, group.attributes) == expected
        assert topics.get("Gone") is None
