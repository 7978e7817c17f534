"""Administration over a real socket: topics, groups, metrics, and what is passed on to clients."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.tables import json_file
from kerolox.message import MessageQueue
from kerolox.properties import parse_properties
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import SubscriptionGroupConfig, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.release import __version__
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.support.clients.peer import Peer, peer_of, small_config

pytestmark = pytest.mark.asyncio

JAVA_LONG_MAX = (1 << 63) - 1


async def test_a_topic_is_made_changed_and_deleted(any_broker: Broker, any_peer: Peer):
    assert (await any_peer.create_topic("T", 2)).code == ResponseCode.SUCCESS
    await any_peer.send("T", b"x", queue_id=1)
    assert (await any_peer.create_topic("T", 6)).code == ResponseCode.SUCCESS
    answer = await any_peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = fastjson.loads(answer.body)["topicConfigTable"]
    assert table["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 6,
    }
    answer = await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert answer.code == ResponseCode.SUCCESS
    assert (await any_peer.pull("T", 1)).code == ResponseCode.TOPIC_NOT_EXIST
    assert any_broker.parts.store.queue_bounds("T", 1) == (0, 0)
    await any_peer.create_topic("T", 2)
    answer = await any_peer.send("T", b"y", queue_id=1)
    assert answer.ext_fields["queueOffset"] == "0"
    assert [m.body for m in await any_peer.messages("T", 1)] == [b"y"]


async def test_one_topic_s_settings_are_its_entry_in_the_table(any_peer: Peer):
    await any_peer.create_topic("T", 3, 4)
    table = fastjson.loads((await any_peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    # What a 5.x tool sends beside the topic.
    fields = {"topic": "T", "lo": "true", "bname": "broker-a"}
    answer = await any_peer.ask(RequestCode.GET_TOPIC_CONFIG, fields)
    assert answer.code == ResponseCode.SUCCESS
    assert fastjson.loads(answer.body) == table["topicConfigTable"]["T"]


async def test_one_group_s_settings_are_its_entry_in_the_table(any_peer: Peer):
    group = {"groupName": "g", "retryMaxTimes": 3, "consumeFromMinEnable": False}
    await any_peer.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body({**group, "brokerId": 0})
    )
    table = fastjson.loads((await any_peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
    answer = await any_peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert answer.code == ResponseCode.SUCCESS
    assert fastjson.loads(answer.body) == table["subscriptionGroupTable"]["g"]


async def test_who_looks_for_an_unknown_topic_or_group_makes_none(broker: Broker, peer: Peer):
    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "Nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic in this broker. topic: Nowhere"
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"group": "nobody"})
    assert answer.code == ResponseCode.SUCCESS
    assert fastjson.loads(answer.body)["subscriptionGroupTable"] == {}
    assert "Nowhere" not in broker.parts.tables.topics
    assert broker.parts.tables.groups.get("nobody") is None


async def test_a_group_that_a_proxy_of_5_asks_for_is_made(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, LOGGER)
    answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "new"})
    assert answer.code == ResponseCode.SUCCESS
    assert fastjson.loads(answer.body)["groupName"] == "new"
    assert fastjson.loads(answer.body)["retryMaxTimes"] == 16
    assert broker.parts.tables.groups.get("new") is not None
    [told] = [json.loads(r.getMessage()) for r in caplog.records if r.name == LOGGER]
    assert (told["group"], told["old"], told["automatic"]) == ("new", None, True)


@pytest.mark.parametrize("name", ["a b", " ", ""])
async def test_a_look_makes_no_group_whose_name_no_client_may_have(
    broker: Broker, peer: Peer, name: str
):
    answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == "No group in this broker"
    assert broker.parts.tables.groups.get(name) is None


async def test_no_look_makes_a_group_where_nobody_may(tmp_path: Path):
    config = small_config(tmp_path, auto_create_subscription_group=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "new"})
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert broker.parts.tables.groups.get("new") is None


async def test_a_tool_may_ask_for_the_settings_of_one_group_alone(broker: Broker, peer: Peer):
    for name in ("g", "h"):
        broker.parts.tables.groups.put(SubscriptionGroupConfig(group_name=name))
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert list(fastjson.loads(answer.body)["subscriptionGroupTable"]) == ["g"]


async def test_a_broker_tells_its_version_of_kerolox_and_its_kernel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with Broker(small_config(tmp_path), kernel="python") as broker, peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        found = fastjson.loads(answer.body)["table"]
        assert found["keroloxVersion"] == __version__
        assert found["keroloxKernel"] == "python (as the program wants it)"
        assert f"Kerolox {__version__}, kernel {found['keroloxKernel']}" in caplog.messages


async def test_tools_of_5_learn_what_a_group_reads_and_wants(broker: Broker, peer: Peer):
    await peer.create_topic("T")
    await peer.create_topic("U")
    for topic in ("U", "T"):
        fields = {"consumerGroup": "g", "topic": topic, "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    answer = await peer.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})
    wanted = {"brokerAddr": broker.address, "topicList": ["T", "U"]}
    assert fastjson.loads(answer.body) == wanted
    asked = {"group": "g", "topic": "T"}
    answer = await peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, asked)
    assert fastjson.loads(answer.body) == asked
    await peer.heartbeat("c1", "g", topics={"T": "a || b"})
    answer = await peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, asked)
    assert fastjson.loads(answer.body)["subscriptionData"]["subString"] == "a || b"


async def test_tools_of_5_see_a_master_that_is_active_and_alone(broker: Broker, peer: Peer):
    await peer.send("T")
    answer = await peer.ask(RequestCode.GET_BROKER_HA_STATUS)
    assert fastjson.loads(answer.body) == {
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": broker.parts.store.max_physical_offset,
    }
    table = fastjson.loads((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert table["brokerActive"] == "true"
    assert table["getTransferredTps"] == table["getTransferedTps"]


@pytest.mark.parametrize(
    ("topic", "more", "remark"),
    [
        ("TBW102", {}, "The topic[TBW102] is conflict with system topic."),
        ("broker-t", {}, "The topic[broker-t] is conflict with system topic."),
        ("rmq_sys_x", {}, "The topic[rmq_sys_x] is conflict with system topic."),
        ("a b", {}, "The specified topic contains illegal characters"),
        ("T", {"readQueueNums": -1}, "readQueueNums[-1] is illegal"),
        ("T", {"writeQueueNums": 10_000_000}, "writeQueueNums[10000000] is illegal"),
        ("T", {"perm": 64}, "perm[64] is illegal"),
        ("T", {"topicFilterType": "NO_TAG"}, "topicFilterType[NO_TAG] is illegal"),
        ("T", {"perm": None}, "the custom field <perm> is null"),
    ],
)
async def test_a_topic_that_can_t_be_is_code_1(
    peer: Peer, topic: str, more: dict[str, object], remark: str
):
    answer = await peer.create_topic(topic, **more)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


async def test_system_topics_are_listed_and_stay(peer: Peer):
    answer = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-t"} <= set(
        fastjson.loads(answer.body)["topicList"]
    )
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_group_is_made_and_deleted(peer: Peer, broker: Broker):
    body = encode_body({"groupName": "g", "retryMaxTimes": 3})
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    group = fastjson.loads(answer.body)["subscriptionGroupTable"]["g"]
    assert group["retryMaxTimes"] == 3
    assert group["consumeEnable"] is True
    offset = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 4}
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    fields = {"groupName": "g", "removeOffset": True}
    await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    assert broker.parts.tables.groups.get("g") is None
    assert broker.parts.tables.offsets.query("g", "T", 0) == -1


async def test_a_deletion_that_could_not_be_written_is_when_asked_for_again(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    await peer.create_topic("T")
    body = encode_body({"groupName": "g"})
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    for topic in ("T", "U"):
        offset = {"consumerGroup": "g", "topic": topic, "queueId": 0, "commitOffset": 4}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    offsets = broker.parts.tables.offsets.file
    await offsets.write_over()
    assert '"T@g":{' in offsets.backup_path.read_text()
    topic_file, group_file = broker.parts.tables.topics.file, broker.parts.tables.groups.file
    cases = [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, '"T"', "T@g", topic_file),
        (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": "g", "removeOffset": True},
            '"g"',
            "U@g",
            group_file,
        ),
    ]
    for code, fields, name, key, file in cases:
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "_store", full)
            assert (await peer.ask(code, fields)).code == ResponseCode.SYSTEM_ERROR
        assert name in file.path.read_text()
        assert (await peer.ask(code, fields)).code == ResponseCode.SUCCESS
        assert name not in file.path.read_text()
        for path in (offsets.path, offsets.backup_path):
            assert f'"{key}":{{' not in path.read_text()


async def test_a_group_without_a_name_is_code_1(peer: Peer):
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "groupName" in (answer.remark or "")


async def test_the_runtime_info_has_what_cluster_list_reads(any_peer: Peer):
    await any_peer.create_topic("T")
    await any_peer.send("T")
    answer = await any_peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(answer.body)["table"]
    assert table["brokerVersionDesc"] == "V4_9_8"
    assert table["msgPutTotalTodayNow"] == "1"
    assert len(table["putTps"].split(" ")) == len(table["getTransferedTps"].split(" ")) == 3
    for key in (
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "msgPutTotalYesterdayMorning",
        "msgGetTotalTodayMorning",
    ):
        assert table[key] == "0"
    assert float(table["commitLogDiskRatio"]) >= 0
    assert int(table["earliestMessageTimeStamp"]) > 0


async def test_the_settings_are_told_as_a_file(peer: Peer, broker: Broker):
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    lines = answer.body.decode().splitlines()
    assert "brokerName=broker-t" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines
    assert fastjson.loads(answer.ext_fields["version"])["counter"] == 0


async def test_the_settings_have_what_mqadmin_exports(peer: Peer):
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    settings = parse_properties(answer.body.decode())
    # needBrokerProprties of exportConfigs, which fails where one is missing; exportMetrics
    wanted = """brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums
        flushDiskType maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn
        traceTopicEnable useTLS autoCreateTopicEnable autoCreateSubscriptionGroup
        clientCallbackExecutorThreads"""
    assert set(wanted.split()) - settings.keys() == set()


async def test_settings_that_follow_from_others_are_shown_as_they_are_in_force(
    any_broker: Broker, any_peer: Peer
):
    answer = await any_peer.ask(RequestCode.GET_BROKER_CONFIG)
    settings = parse_properties(answer.body.decode())
    parts = any_broker.parts
    assert settings["haListenPort"] == str(parts.identity.ha_port) != "0"
    assert settings["storePathCommitLog"] == str(parts.config.store_path_root_dir / "commitlog")
    assert settings["useTLS"] == "false"


async def test_an_unknown_code_is_code_3_and_told(peer: Peer, caplog):
    answer = await peer.ask(7777)
    assert "broker: request code 7777 of" in caplog.text
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 7777 not supported"


async def test_the_entries_of_a_queue_are_shown(any_peer: Peer):
    await any_peer.create_topic("T")
    for _ in range(3):
        await any_peer.send("T", properties="TAGS\x01a")
    fields = {"topic": "T", "queueId": 0, "index": 1, "count": 10}
    answer = await any_peer.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
    body = fastjson.loads(answer.body)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert [entry["tagsCode"] for entry in body["queueData"]] == [97, 97]
    answer = await any_peer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "queueId": 3})
    assert answer.code == ResponseCode.SYSTEM_ERROR


# -- who is online, how far ---------------------------------------------------------------------
async def test_connections_of_groups(peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"}, producers=["p"])
    answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
    body = fastjson.loads(answer.body)
    [connection] = body["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("c1", "PYTHON")
    assert connection["clientAddr"].startswith("127.0.0.1:")
    assert body["messageModel"] == "CLUSTERING"
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert fastjson.loads(answer.body)["connectionSet"][0]["clientId"] == "c1"
    answer = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    [info] = fastjson.loads(answer.body)["data"]["p"]
    # As Java writes a socket address, so that one of several clients of a machine can be told.
    assert (info["clientId"], info["remoteIP"]) == ("c1", f"/{connection['clientAddr']}")


async def test_groups_that_are_not_online(peer: Peer):
    answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark == "the consumer group[g] not online"
    answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the producer group[p] not exist"


async def commit(peer: Peer, group: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def test_the_progress_of_a_group(any_peer: Peer):
    await any_peer.create_topic("T", 2)
    for _ in range(5):
        await any_peer.send("T")
    await commit(any_peer, "readers", 0, 2)
    answer = await any_peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"})
    state = fastjson.loads(answer.body)["offsetTable"][MessageQueue("T", "broker-t", 0)]
    assert (state["brokerOffset"], state["consumerOffset"]) == (5, 2)
    assert state["lastTimestamp"] > 0
    answer = await any_peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert fastjson.loads(answer.body)["groupList"] == ["readers"]
    fields = {"topic": "T", "group": "readers"}
    answer = await any_peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
    first, second = fastjson.loads(answer.body)["consumeTimeSpanSet"]
    assert first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert second["minTimeStamp"] == second["maxTimeStamp"] == -1


async def test_offsets_are_cloned_and_compared(peer: Peer):
    await peer.create_topic("T", 1)
    for _ in range(5):
        await peer.send("T")
    await commit(peer, "one", 0, 4)
    fields = {"srcGroup": "one", "destGroup": "two", "topic": "T", "offline": True}
    await peer.ask(RequestCode.CLONE_GROUP_OFFSET, fields)
    await commit(peer, "one", 0, 2)
    fields = {"compareGroup": "two", "topic": "T", "filterGroups": ""}
    answer = await peer.ask(RequestCode.QUERY_CORRECTION_OFFSET, fields)
    assert fastjson.loads(answer.body)["correctionOffsets"] == {0: 2}
    fields = {"compareGroup": "one", "topic": "T", "filterGroups": "one"}
    answer = await peer.ask(RequestCode.QUERY_CORRECTION_OFFSET, fields)
    assert fastjson.loads(answer.body)["correctionOffsets"] == {0: JAVA_LONG_MAX}


async def test_a_question_is_passed_on_to_the_consumer(peer: Peer):
    fields = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": False}
    answer = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.remark == "The Consumer <readers> <c1> not online"
    await peer.heartbeat("c1", topics={"T": "*"})
    answer = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "from the client")
    assert answer.ext_fields["seen"] == "307"


async def test_a_consumer_handles_one_message_on_demand(peer: Peer):
    await peer.create_topic("T")
    sent = await peer.send("T", b"this one")
    await peer.heartbeat("c1", topics={"T": "*"})
    fields = {"consumerGroup": "readers", "clientId": "c1", "msgId": sent.ext_fields["msgId"]}
    answer = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.ext_fields["seen"] == "309"
    [told] = [notice for notice in peer.notices if notice.code == 309]
    assert b"this one" in told.body
    assert told.ext_fields["brokerName"] == "broker-t"
    answer = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": "zz"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_the_offsets_in_the_members_memory(peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"})
    fields = {"topic": "T", "group": "readers"}
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    assert fastjson.loads(answer.body) == {
        "consumerTable": {"c1": {}},
        "messageQueueTable": {},
    }
    fields["group"] = "nobody"
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_queues_of_pools_have_capacities_that_tools_can_divide_by(tmp_path) -> None:
    config = small_config(tmp_path, pull_thread_pool_queue_capacity=7)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(answer.body)["table"]
    assert {key: value for key, value in table.items() if key.endswith("QueueCapacity")} == {
        "sendThreadPoolQueueCapacity": "10000",
        "pullThreadPoolQueueCapacity": "7",
        "queryThreadPoolQueueCapacity": "20000",
        "EndTransactionThreadPoolQueueCapacity": "100000",
    }
