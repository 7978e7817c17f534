"""Sends over a real socket: what is stored, what is refused, and with which code and remark."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock, patch

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.requests import send as send_module
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Appended
from kerolox.message import MessageId, PropertyKey
from kerolox.protocol import fastjson
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_record, encode_batch
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.requests import send_fields
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


async def test_a_message_is_stored_where_the_answer_says(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    answer = await any_peer.send(
        "T", b"body", queue_id=2, properties="KEYS\x01k\x02TAGS\x01a\x02WAIT\x01true"
    )
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["queueId"] == "2"
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.ext_fields["TRACE_ON"] == "true"
    [message] = await any_peer.messages("T", 2)
    assert message.body == b"body"
    assert message.offset_message_id == answer.ext_fields["msgId"]
    assert message.queue_offset == int(answer.ext_fields["queueOffset"])
    assert message.properties == {"KEYS": "k", "TAGS": "a", "CLUSTER": "DefaultCluster"}
    assert message.store_host == ("127.0.0.1", any_broker.port)


@pytest.mark.parametrize("odd", [b"\xb1\xea", b"\\ud83d"], ids=["GBK", "half an emoji"])
async def test_a_property_that_is_no_unicode_costs_nobody_his_connection(
    any_broker: Broker, any_peer: Peer, odd: bytes
):
    await any_peer.create_topic("T")
    reader, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
    fields = send_fields(b="T", i="KEYS\x01ODD")
    for kind in SerializeType:
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"x", serialize_type=kind)
        wire = command.encode()
        spread = len(odd) - len(b"ODD") if kind == SerializeType.JSON else 0
        text = odd if kind == SerializeType.JSON else odd[:2].ljust(3, b"\xff")
        lengths = [int.from_bytes(wire[at : at + 4], "big") + spread for at in (0, 4)]
        wire = b"".join(length.to_bytes(4, "big") for length in lengths) + wire[8:]
        writer.write(wire.replace(b"ODD", text))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = RemotingCommand.decode(await reader.readexactly(size))
        assert answer.code == ResponseCode.SUCCESS
    writer.close()
    assert len(await any_peer.messages("T")) == 2


async def test_an_empty_template_and_group_need_no_member_in_the_binary_encoding(any_peer: Peer):
    await any_peer.create_topic("T")
    binary = {"serialize_type": SerializeType.ROCKETMQ}
    assert (await any_peer.send("T", a="", c="", **binary)).code == ResponseCode.SUCCESS
    answer = await any_peer.send("Nowhere", a="", c="", **binary)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_long_header_and_the_short_one_store_the_same(peer: Peer):
    await peer.create_topic("T")
    long = {
        "producerGroup": "p",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1_700_000_000_000,
        "flag": 7,
        "properties": "KEYS\x01k",
        "reconsumeTimes": 0,
        "unitMode": False,
        "batch": False,
        "unknownMember": "makes it cold",
    }
    assert (await peer.ask(RequestCode.SEND_MESSAGE, long, b"x")).code == ResponseCode.SUCCESS
    assert (await peer.send("T", b"x", properties="KEYS\x01k", h=7, zz="cold")).code == 0
    one, two = await peer.messages("T")
    assert (one.body, one.flag, one.properties) == (two.body, two.flag, two.properties)


async def test_hot_and_cold_sends_store_the_same_record(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    text = "KEYS\x01k1 k2\x02TAGS\x01a\x02WAIT\x01true\x02u\x01v"
    for extra in ({}, {"unknownMember": "makes it cold"}):
        assert (await any_peer.send("T", b"x", properties=text, **extra)).code == 0
    records = []
    for offset in (0, 1):
        entry = any_broker.parts.store.queue_entry("T", 0, offset)
        assert entry is not None
        record = bytearray(any_broker.parts.store.lookup(entry[0]) or b"")
        # Queue offset, physical offset and store time must differ; nothing else may.
        for start in (20, 28, 56):
            record[start : start + 8] = bytes(8)
        records.append((bytes(record), entry[1:]))
    assert records[0] == records[1]


async def test_a_missing_topic_is_made_after_the_template(peer: Peer, broker: Broker):
    answer = await peer.send("Fresh", queue_id=3, d=4)
    assert answer.code == ResponseCode.SUCCESS
    topic = broker.parts.tables.topics.get("Fresh")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)
    assert b'"Fresh"' in (broker.config.config_folder / "topics.json").read_bytes()


async def test_a_template_has_the_last_word_on_queues(peer: Peer, broker: Broker):
    assert (await peer.send("Many", d=100)).code == ResponseCode.SUCCESS
    topic = broker.parts.tables.topics.get("Many")
    assert topic is not None
    assert topic.write_queue_nums == broker.config.default_topic_queue_nums


async def test_without_automatic_creation_a_missing_topic_is_code_17(tmp_path):
    config = small_config(tmp_path, auto_create_topic_enable=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.send("Fresh")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == (
            "topic[Fresh] not exist, apply first please!"
            "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
        )
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"


async def test_a_negative_queue_lets_the_broker_choose(peer: Peer):
    await peer.create_topic("T", 4)
    answer = await peer.send("T", queue_id=-1)
    assert answer.code == ResponseCode.SUCCESS
    assert 0 <= int(answer.ext_fields["queueId"]) < 4


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", "the custom field <b> is null"),
        ("a b", "The specified topic contains illegal characters"),
        ("héllo", "The specified topic contains illegal characters"),
        ("t/../../x", "The specified topic contains illegal characters"),
        ("t" * 128, "The specified topic is longer than topic max length."),
        ("   ", "The specified topic is blank."),
    ],
)
async def test_an_illegal_topic_is_code_1(peer: Peer, topic: str, remark: str):
    serialize_type = SerializeType.ROCKETMQ if topic == "" else SerializeType.JSON
    answer = await peer.send(topic, serialize_type=serialize_type)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"])
async def test_topics_of_the_broker_itself_are_closed_to_clients(any_peer: Peer, topic: str):
    answer = await any_peer.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."


async def test_a_queue_that_does_not_exist_is_code_1(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T", 4)
    answer = await any_peer.send("T", queue_id=4)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith(
        "request queueId[4] is illegal, TopicConfig [topicName=T, readQueueNums=4"
    )
    assert any_broker.parts.store.queue_bounds("T", 4) == (0, 0)


async def test_a_body_over_the_limit_is_code_13_and_nothing_is_stored(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    limit = any_broker.config.max_message_size
    assert (await any_peer.send("T", bytes(limit))).code == ResponseCode.SUCCESS
    answer = await any_peer.send("T", bytes(limit + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"msg body length limit {limit}B" in (answer.remark or "")
    assert any_broker.parts.store.queue_bounds("T", 0) == (0, 1)


async def test_properties_over_the_limit_are_code_13(any_peer: Peer):
    await any_peer.create_topic("T")
    answer = await any_peer.send("T", properties="k\x01" + "v" * 32_767)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("field", "value"), [("e", "one"), ("e", "99999999999"), ("g", ""), ("d", None), ("b", None)]
)
async def test_a_header_of_wrong_types_is_code_1_and_names_the_member(
    any_peer: Peer, field: str, value: str | None
):
    answer = await any_peer.send("T", **{field: value})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"the custom field <{field}>" in (answer.remark or "")


async def test_a_store_that_takes_no_writes_is_code_14(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    any_broker.parts.writing.gate.set_writable(False)
    answer = await any_peer.send("T")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "service not available now" in (answer.remark or "")


async def test_a_store_that_stops_takes_no_writes_whatever_disk_and_role_say(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    gate = any_broker.parts.writing.gate
    gate.close()
    # As the cleaner and the end of a pause do, which may come while the ports close.
    gate.set_writable(True)
    gate.hold(False)
    answer = await any_peer.send("T")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_batch_is_stored_as_records_that_follow_each_other(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T")
    items = [(i, b"b%d" % i, b"KEYS\x01k%d\x02WAIT\x01true" % i) for i in range(3)]
    for cold in ({}, {"unknownMember": "1"}):
        answer = await any_peer.send(
            "T", encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE, m=True, **cold
        )
        assert answer.code == ResponseCode.SUCCESS
        identifiers = answer.ext_fields["msgId"].split(",")
        messages = (await any_peer.messages("T"))[-3:]
        assert [m.offset_message_id for m in messages] == identifiers
        assert [m.body for m in messages] == [b"b0", b"b1", b"b2"]
        assert int(answer.ext_fields["queueOffset"]) == messages[0].queue_offset
        expected = {"KEYS": "k1", "WAIT": "true", "CLUSTER": "DefaultCluster"}
        assert messages[1].properties == expected


async def test_others_get_their_turn_while_a_large_batch_is_read(any_peer: Peer, monkeypatch):
    turns = seen_at_begin = seen_at_end = 0
    read = send_module.decode_batch  # type: ignore[attr-defined]

    def decode(*arguments, **more):
        nonlocal seen_at_begin, seen_at_end
        seen_at_begin = seen_at_begin or turns
        seen_at_end = turns
        return read(*arguments, **more)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(send_module, "decode_batch", decode)
    other = asyncio.create_task(take_turns())
    monkeypatch.setattr(send_module, "BATCH_SLICE_ITEMS", 10)
    body = encode_batch((0, b"x", b"") for _ in range(100))
    answer = await any_peer.send("New", body, code=RequestCode.SEND_BATCH_MESSAGE, m=True)
    other.cancel()
    assert answer.code == ResponseCode.SUCCESS
    assert seen_at_end - seen_at_begin >= 9, "ten slices, a turn between two"


@pytest.mark.parametrize("body", [b"\x00\x00\x00\x05x", b"", encode_batch([(0, b"x", b"")])[:-1]])
async def test_a_torn_batch_is_refused_whole(peer: Peer, broker: Broker, body: bytes):
    await peer.create_topic("T")
    answer = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, m=True)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.parts.store.queue_bounds("T", 0) == (0, 0)


async def test_a_delayed_or_transactional_batch_is_code_13(peer: Peer):
    await peer.create_topic("T")
    body = encode_batch([(0, b"x", b"")])
    delayed = await peer.send(
        "T", body, code=RequestCode.SEND_BATCH_MESSAGE, m=True, properties="DELAY\x011"
    )
    half = await peer.send(
        "T",
        body,
        code=RequestCode.SEND_BATCH_MESSAGE,
        m=True,
        f=int(MessageSysFlag.TRANSACTION_PREPARED),
    )
    assert delayed.code == half.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_transaction_is_refused_where_the_settings_say_so(tmp_path):
    text = "TRAN_MSG\x01true\x02PGROUP\x01p"
    config = small_config(tmp_path, reject_transaction_message=True)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.send("T", properties=text)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")


async def test_one_way_sends_are_stored_and_not_answered(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    for extra in ({}, {"unknownMember": "1"}):
        command = RemotingCommand.request(310, {**fields, **extra}, body=b"x", oneway=True)
        await any_peer.client.invoke_oneway(any_peer.address, command)
    await until(lambda: any_broker.parts.store.queue_bounds("T", 0) == (0, 2))
    assert not any_peer.notices


async def test_sync_flush_answers_cold_sends_when_they_are_on_disk(tmp_path, kernel: str):
    config = small_config(tmp_path, flush_disk_type="SYNC_FLUSH")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for extra in ({}, {"unknownMember": "1"}):
            answer = await peer.send("T", **extra)
            assert answer.code == ResponseCode.SUCCESS
            end = MessageId.parse(answer.ext_fields["msgId"]).physical_offset
            assert broker.parts.store.flushed_offset > end
        body = encode_batch([(0, b"x", b"")])
        answer = await peer.send(
            "T", body, code=RequestCode.SEND_BATCH_MESSAGE, m=True, unknownMember="1"
        )
        assert answer.code == ResponseCode.SUCCESS
        assert broker.parts.store.flushed_offset == broker.parts.store.max_physical_offset


async def test_a_flush_that_takes_too_long_is_code_10(tmp_path, monkeypatch):
    config = small_config(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=50)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")

        async def never(offset: int) -> bool:
            await asyncio.sleep(0)
            return False

        monkeypatch.setattr(broker.parts.writing.writer.flush_waits, "wait", never)
        answer = await peer.send("T", unknownMember="1")
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "msgId" in answer.ext_fields
        assert len(await peer.messages("T")) == 1


async def test_before_the_time_to_accept_sends_they_are_refused(tmp_path):
    tomorrow = int(time.time() * 1000) + 86_400_000
    config = small_config(tmp_path, start_accept_send_request_time_stamp=tomorrow)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for cold in ({}, {"unknownMember": "1"}):
            answer = await peer.send("T", **cold)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith("broker unable to service, until ")


# -- retries and dead letters -------------------------------------------------------------------
async def test_a_message_given_back_waits_in_the_schedule_topic(peer: Peer, broker: Broker):
    await peer.create_topic("T")
    sent = await peer.send("T", b"again", properties="KEYS\x01k")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields = {"offset": offset, "group": "readers", "delayLevel": 0, "maxReconsumeTimes": 16}
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SUCCESS
    assert broker.parts.tables.topics.get("%RETRY%readers") is not None
    entry = broker.parts.store.queue_entry("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert entry is not None
    message, _ = decode_record(broker.parts.store.lookup(entry[0]) or b"")
    assert message.reconsume_times == 1
    assert message.properties[PropertyKey.REAL_TOPIC] == "%RETRY%readers"
    assert message.properties[PropertyKey.RETRY_TOPIC] == "T"
    assert message.properties[PropertyKey.DELAY] == "3"
    assert message.properties[PropertyKey.ORIGIN_MESSAGE_ID] == sent.ext_fields["msgId"]
    assert abs(entry[2] - (message.store_timestamp + 10_000)) <= 1_000


@pytest.mark.parametrize(("level", "limit"), [(-1, 16), (0, 0)])
async def test_a_message_that_nobody_can_handle_becomes_a_dead_letter(
    peer: Peer, broker: Broker, level: int, limit: int
):
    await peer.create_topic("T")
    sent = await peer.send("T", b"poison")
    offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
    fields = {
        "offset": offset,
        "group": "readers",
        "delayLevel": level,
        "maxReconsumeTimes": limit,
    }
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    [message] = await peer.messages("%DLQ%readers")
    assert message.body == b"poison"
    assert message.properties[PropertyKey.RETRY_TOPIC] == "T"
    topic = broker.parts.tables.topics.get("%DLQ%readers")
    assert topic is not None
    assert topic.perm == 6


async def test_giving_back_what_is_not_there_is_code_1(peer: Peer):
    fields = {"offset": 12345, "group": "readers", "delayLevel": 0}
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "look message by offset failed, 12345"


async def test_giving_back_for_an_unknown_group_is_code_26(tmp_path):
    config = small_config(tmp_path, auto_create_subscription_group=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        fields = {"offset": 0, "group": "nobody", "delayLevel": 0}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_send_to_a_retry_topic_obeys_the_limit_of_retries(peer: Peer):
    answer = await peer.send("%RETRY%readers", b"poison", j=16)
    assert answer.code == ResponseCode.SUCCESS
    [message] = await peer.messages("%DLQ%readers")
    assert message.body == b"poison"
    assert (await peer.send("%RETRY%readers", b"again", j=15)).code == ResponseCode.SUCCESS
    [message] = await peer.messages("%RETRY%readers")
    assert message.reconsume_times == 15


async def test_an_empty_body_is_stored_as_one(any_peer: Peer):
    await any_peer.create_topic("T")
    assert (await any_peer.send("T", b"")).code == ResponseCode.SUCCESS
    assert [m.body for m in await any_peer.messages("T")] == [b""]


async def test_a_read_only_topic_still_takes_sends_of_producers_that_do_not_know(any_peer: Peer):
    # As RocketMQ: the name server takes the topic off the producers, the broker does not refuse.
    await any_peer.create_topic("T", perm=4)
    assert (await any_peer.send("T", b"late")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (PutMessageStatus.CREATE_MAPEDFILE_FAILED, 1, "create mapped file failed, server is busy"),
        (PutMessageStatus.OS_PAGECACHE_BUSY, 2, "[REJECTREQUEST]system busy, start flow control"),
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, 14, "service not available now."),
        (PutMessageStatus.MESSAGE_ILLEGAL, 13, "the message is illegal"),
        (PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, 13, "the message is illegal"),
        (PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, 1, "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]"),
        (PutMessageStatus.UNKNOWN_ERROR, 1, "UNKNOWN_ERROR"),
    ],
)
async def test_every_status_of_a_put_has_its_code_and_text(
    broker: Broker, peer: Peer, status: PutMessageStatus, code: int, text: str
):
    await peer.create_topic("T")
    broker.parts.store.set_writable(False)
    refused = Appended(status, 0, 0, 0, 0)
    with patch.object(
        broker.parts.writing.writer, "_store", Mock(append=Mock(return_value=refused))
    ):
        answer = await peer.send("T")
    assert answer.code == code
    assert text in (answer.remark or "")
    assert broker.parts.store_stats.runtime()["putMessageFailedTimes"] == "1"


async def test_without_a_free_buffer_of_the_transient_pool_the_broker_is_busy(tmp_path):
    never_ms = 3_600_000
    config = small_config(
        tmp_path,
        mapped_file_size_commit_log=1 << 16,
        max_message_size=20_000,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        commit_interval_commit_log=never_ms,
        commit_commit_log_thorough_interval=never_ms,
        commit_commit_log_least_pages=1_000_000,
    )
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for _ in range(100):
            answer = await peer.send("T", bytes(10_000))
            if answer.code != ResponseCode.SUCCESS:
                break
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
        back = {"offset": 0, "group": "G", "delayLevel": 0}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        info = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = fastjson.loads(info.body)["table"]
        assert table["remainTransientStoreBufferNumbs"] == "0"
        assert table["remainHowManyDataToCommit"] != "0 B"
        broker.parts.store.flush()
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert len(await peer.messages("T")) > 0
