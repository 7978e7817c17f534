"""Pulls over a real socket: the checks, the codes, the remarks, the waiting."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.broker.broker import Broker
from kerolox.message import java_hash
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

pytestmark = pytest.mark.asyncio

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


async def test_hot_and_cold_pulls_answer_the_same(any_peer: Peer):
    await any_peer.create_topic("T")
    for index in range(5):
        await any_peer.send("T", b"%d" % index, properties=f"TAGS\x01t{index % 2}")
    await any_peer.pull("T")
    for tags, offset in (("*", 0), ("t1", 0), ("t0 || t1", 2), ("none", 0), ("*", 5)):
        hot = await any_peer.pull("T", 0, offset, tags=tags)
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            cold = await any_peer.pull("T", 0, offset, tags=tags, code=code, unknownMember="1")
            assert (hot.code, hot.remark) == (cold.code, cold.remark)
            assert (hot.ext_fields, hot.body) == (cold.ext_fields, cold.body)


async def test_an_unknown_topic_is_code_17(peer: Peer):
    answer = await peer.pull("Nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == f"topic[Nowhere] not exist, apply first please! {FAQ}"


async def test_a_group_that_may_not_be_made_is_code_26(tmp_path):
    config = small_config(tmp_path, auto_create_subscription_group=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        answer = await peer.pull("T")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == f"subscription group [readers] does not exist, {FAQ}"


async def test_a_first_pull_makes_its_group(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    assert (await peer.pull("T", group="fresh")).code == ResponseCode.PULL_NOT_FOUND
    assert broker.parts.tables.groups.get("fresh") is not None
    await broker.parts.tables.groups.file.flush()
    assert b'"fresh"' in (broker.config.config_folder / "subscriptionGroup.json").read_bytes()


@pytest.mark.parametrize("queue_id", [-1, 4, 2_000_000_000])
async def test_a_queue_that_does_not_exist_is_code_1(any_peer: Peer, queue_id: int):
    await any_peer.create_topic("T", 4)
    answer = await any_peer.pull("T", queue_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/127"
    )


async def test_a_topic_without_read_permission_is_code_16(any_peer: Peer):
    await any_peer.create_topic("T", perm=2)
    answer = await any_peer.pull("T")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[T] pulling message is forbidden"


async def test_a_broker_without_read_permission_is_code_16(tmp_path, kernel: str):
    config = small_config(tmp_path, broker_permission=2)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for _ in range(2):
            answer = await peer.pull("T")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] pulling message is forbidden"


async def test_a_group_that_is_switched_off_is_code_16(any_peer: Peer):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    body = fastjson.dumps({"groupName": "readers", "consumeEnable": False})
    await any_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    answer = await any_peer.pull("T")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "subscription group no permission, readers"


async def test_without_a_heartbeat_a_pull_without_subscription_is_code_24(any_peer: Peer):
    await any_peer.create_topic("T")
    answer = await any_peer.pull("T", tags=None)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark == f"the consumer's group info not exist{FAQ}"
    await any_peer.heartbeat("c1", topics={"Other": "*"})
    answer = await any_peer.pull("T", tags=None)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark == f"the consumer's subscription not exist{FAQ}"


async def test_a_subscription_newer_than_the_heartbeat_is_code_25(any_peer: Peer):
    await any_peer.create_topic("T")
    await any_peer.heartbeat("c1", topics={"T": "*"}, version=5)
    assert (await any_peer.pull("T", tags=None, subVersion=5)).code == ResponseCode.PULL_NOT_FOUND
    answer = await any_peer.pull("T", tags=None, subVersion=6)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert answer.remark == "the consumer's subscription not latest"


async def test_the_heartbeat_s_tags_filter_pulls_without_subscription(any_peer: Peer):
    await any_peer.create_topic("T")
    for tag in ("a", "b", "a"):
        await any_peer.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    await any_peer.heartbeat("c1", topics={"T": "a"}, codes=[java_hash("a")])
    for extra in ({}, {"unknownMember": "1"}):
        answer = await any_peer.pull("T", tags=None, subVersion=1, **extra)
        assert [m.body for m in decode_records(answer.body)] == [b"a", b"a"]
        assert answer.ext_fields["nextBeginOffset"] == "3"


async def test_a_message_for_new_tags_is_not_passed_over_by_a_pull_that_was_held(
    broker: Broker, peer: Peer
):
    await peer.create_topic("T")
    await peer.heartbeat("c1", topics={"T": "a"}, codes=[java_hash("a")], version=1)
    held = {"tags": None, "sys_flag": int(PullSysFlag.SUSPEND), "suspendTimeoutMillis": 60_000}
    waiting = asyncio.create_task(peer.pull("T", **held, subVersion=1))
    await until(lambda: broker.parts.store.stats()["held_pulls"] == 1)
    codes = [java_hash("a"), java_hash("b")]
    await peer.heartbeat("c1", topics={"T": "a || b"}, codes=codes, version=2)
    for tag in ("b", "a"):
        await peer.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    found = []
    answer = await waiting
    while len(found) < 2:
        found += [message.body for message in decode_records(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])
        answer = await peer.pull("T", offset=offset, tags=None, subVersion=2)
        assert answer.code != ResponseCode.PULL_NOT_FOUND or found == [b"b", b"a"]
    assert found == [b"b", b"a"]


async def test_a_broadcasting_group_needs_leave_to_broadcast(any_peer: Peer):
    await any_peer.create_topic("T")
    await any_peer.heartbeat("c1", topics={"T": "*"}, model="BROADCASTING")
    assert (await any_peer.pull("T", tags=None)).code == ResponseCode.PULL_NOT_FOUND
    body = fastjson.dumps({"groupName": "readers", "consumeBroadcastEnable": False})
    await any_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    answer = await any_peer.pull("T", tags=None)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the consumer group[readers] can not consume by broadcast way"


@pytest.mark.parametrize("expression", ["||", " || "])
async def test_an_expression_without_tags_is_code_23(any_peer: Peer, expression: str):
    await any_peer.create_topic("T")
    answer = await any_peer.pull("T", tags=expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark == "parse the consumer's subscription failed"


async def test_the_tags_of_a_pull_are_bounded(any_peer: Peer):
    await any_peer.create_topic("T")
    tags = [f"t{number}" for number in range(4_097)]
    assert (await any_peer.pull("T", tags="||".join(tags[1:]))).code == ResponseCode.PULL_NOT_FOUND
    answer = await any_peer.pull("T", tags="||".join(tags))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark.startswith("the consumer's subscription has 4097 tags; at most 4096 are")


async def test_sql_is_refused_as_long_as_property_filters_are_off(any_peer: Peer):
    await any_peer.create_topic("T")
    text = "The broker does not support consumer to filter message by SQL92"
    answer = await any_peer.pull("T", tags="a > 1", expressionType="SQL92")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)
    await any_peer.heartbeat("c1", topics={"T": "a > 1"}, expression_type="SQL92")
    answer = await any_peer.pull("T", tags=None, subVersion=1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)


async def test_an_empty_queue_at_its_start_is_code_19(any_peer: Peer):
    await any_peer.create_topic("T")
    for extra in ({}, {"unknownMember": "1"}):
        answer = await any_peer.pull("T", **extra)
        assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
        assert answer.ext_fields["nextBeginOffset"] == "0"


@pytest.mark.parametrize(("sent", "offset"), [(0, 7), (1, 9)])
async def test_an_offset_outside_the_queue_is_code_21_and_an_event(
    any_peer: Peer, sent: int, offset: int
):
    await any_peer.create_topic("T")
    for _ in range(sent):
        await any_peer.send("T")
    answer = await any_peer.pull("T", 0, offset)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == str(sent)
    [event] = await any_peer.messages("OFFSET_MOVED_EVENT")
    body = fastjson.loads(event.body)
    assert body["consumerGroup"] == "readers"
    assert body["offsetRequest"] == offset
    assert body["offsetNew"] == sent
    assert body["messageQueue"] == {"brokerName": "broker-t", "queueId": 0, "topic": "T"}
    assert event.tags == event.keys == "readers"


@pytest.mark.parametrize("extra", [{}, {"unknownMember": "1"}])
async def test_a_held_pull_is_answered_when_a_message_comes(
    any_broker: Broker, any_peer: Peer, extra: dict[str, str]
):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    held = asyncio.create_task(any_peer.pull("T", suspend_ms=60_000, tags="a", **extra))
    await until(lambda: any_broker.parts.store.stats()["held_pulls"] == 1)
    await any_peer.send("T", b"no", properties="TAGS\x01b")
    await any_peer.send("T", b"yes", properties="TAGS\x01a", unknownMember=extra.get("x"))
    answer = await held
    assert answer.code == ResponseCode.SUCCESS
    assert [m.body for m in decode_records(answer.body)] == [b"yes"]


async def test_a_cold_send_wakes_held_pulls_of_other_connections(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    async with peer_of(any_broker) as other:
        held = asyncio.create_task(other.pull("T", suspend_ms=60_000))
        await until(lambda: any_broker.parts.store.stats()["held_pulls"] == 1)
        await any_peer.send("T", b"x", unknownMember="1")
        answer = await held
    assert [m.body for m in decode_records(answer.body)] == [b"x"]


@pytest.mark.parametrize("extra", [{}, {"unknownMember": "1"}])
async def test_a_held_pull_ends_with_code_19(any_peer: Peer, extra: dict[str, str]):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    answer = await any_peer.pull("T", suspend_ms=150, **extra)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext_fields["maxOffset"] == "0"


@pytest.mark.parametrize("extra", [{}, {"unknownMember": "1"}])
async def test_more_waits_than_there_may_be_are_refused_as_busy(
    broker: Broker, peer: Peer, extra: dict[str, str]
):
    await peer.create_topic("T")
    await peer.pull("T")
    later = broker.parts.now_ms() + 60_000
    for number in range(10):
        while broker.parts.store.hold(
            1 << 40 | number, 0, 0, "readers", "T", 0, 0, 32, None, later
        ):
            pass
    refused = await peer.pull("T", suspend_ms=60_000, **extra)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark == (
        "[OVERLOAD]system busy, 100000 pulls wait for messages already; try again later"
    )
    assert (await peer.pull("T", **extra)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_waiting_group_that_is_switched_off_comes_again_and_is_refused(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    held = asyncio.create_task(any_peer.pull("T", suspend_ms=60_000))
    await until(lambda: any_broker.parts.store.stats()["held_pulls"] == 1)
    body = encode_body({"groupName": "readers", "consumeEnable": False})
    await any_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert (await held).code == ResponseCode.PULL_NOT_FOUND
    again = await any_peer.pull("T", suspend_ms=60_000)
    assert again.code == ResponseCode.NO_PERMISSION


async def test_without_long_polling_a_pull_waits_the_short_time(tmp_path, kernel: str):
    config = small_config(tmp_path, long_polling_enable=False, short_polling_time_mills=100)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.pull("T")
        for cold in ({}, {"unknownMember": "1"}):
            asked_ms = broker.parts.now_ms()
            answer = await peer.pull("T", suspend_ms=60_000, **cold)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert broker.parts.now_ms() - asked_ms >= 100


@pytest.mark.parametrize("extra", [{}, {"unknownMember": "1"}])
async def test_a_pull_commits_the_offset_that_it_carries(
    any_broker: Broker, any_peer: Peer, extra: dict[str, str]
):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    flags = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET)
    await any_peer.pull("T", sys_flag=flags, commitOffset=5, **extra)
    fields = {"consumerGroup": "readers", "topic": "T", "queueId": 0}
    answer = await any_peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert answer.ext_fields["offset"] == "5"
    await any_broker.parts.tables.offsets.persist()
    text = (any_broker.config.config_folder / "consumerOffset.json").read_text()
    assert fastjson.loads(text) == {"offsetTable": {"T@readers": {0: 5}}}


async def test_the_vip_port_serves_everything_but_pulls(tmp_path):
    port = free_port()
    async with Broker(small_config(tmp_path, listen_port=port)) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        peer.address = f"127.0.0.1:{port - 2}"
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            answer = await peer.pull("T", code=code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.remark == f" request type {code} not supported"


@pytest.mark.parametrize("extra", [{}, {"unknownMember": "1"}])
async def test_one_connection_can_t_take_all_the_room_for_waiting_pulls(
    any_broker: Broker, any_peer: Peer, extra: dict[str, str]
):
    await any_peer.create_topic("T")
    await any_peer.pull("T")
    [connection] = any_broker._ports._main.connections
    mine, later = connection.connection_id, any_broker.parts.now_ms() + 60_000
    while any_broker.parts.store.hold(mine, 0, 0, "readers", "T", 0, 0, 32, None, later):
        pass
    refused = await any_peer.pull("T", suspend_ms=60_000, **extra)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "10000 pulls of this connection wait" in refused.remark
    async with peer_of(any_broker) as other:
        assert (await other.pull("T", suspend_ms=50, **extra)).code == ResponseCode.PULL_NOT_FOUND
