"""Requests that can be read but not fulfilled: RocketMQ's code, a remark, and nothing else changes.

Each over the hot path, over the cold one and in both encodings of the header; a neighbour is served
all the while, and what was stored before is there after it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.protocol.codes import RequestCode, ResponseCode, SerializeType
from kerolox.protocol.records import encode_batch
from tests.support.clients.peer import Peer, peer_of, small_config

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 64 * 1024
"""maxMessageSize of the broker of these tests."""

ENCODINGS = pytest.mark.parametrize("encoding", SerializeType)
SENDS = pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]
)


async def stored(broker: Broker) -> tuple[int, dict[str, int]]:
    """What is in the store besides the neighbour's messages."""
    queues = {
        f"{topic}-{queue_id}": high
        for topic, queue_id, _, high in (queue[:4] for queue in broker.parts.store.queues())
        if topic != "Neighbour"
    }
    return len(broker.parts.tables.topics.names), queues


@ENCODINGS
@pytest.mark.parametrize("size", [LIMIT + 1, 4 * LIMIT, 8 << 20])
async def test_a_body_over_the_limit_is_code_13(
    broker: Broker, peer: Peer, size: int, encoding: SerializeType
) -> None:
    await peer.create_topic("T")
    assert (await peer.send("T", b"x" * LIMIT)).code == ResponseCode.SUCCESS
    before = await stored(broker)
    for properties in ("", "KEYS\x01k", "DELAY\x011"):
        answer = await peer.send("T", bytes(size), properties=properties, serialize_type=encoding)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"body length limit {LIMIT}B" in (answer.remark or "")
    assert await stored(broker) == before
    assert [len(message.body) for message in await peer.messages("T")] == [LIMIT]


async def test_a_batch_over_the_limit_is_code_13(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T")
    before = await stored(broker)
    body = encode_batch((0, bytes(1000), b"") for _ in range(100))
    answer = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, m=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await stored(broker) == before


@ENCODINGS
@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", "blank"),
        ("   ", "blank"),
        ("a b", "illegal characters"),
        ("../../etc", "illegal characters"),
        ("a/b", "illegal characters"),
        ("Thema-ä", "illegal characters"),
        ("T\0", "illegal characters"),
        ("t" * 128, "longer than"),
    ],
)
async def test_an_illegal_topic_is_code_1(
    broker: Broker, peer: Peer, topic: str, remark: str, encoding: SerializeType
) -> None:
    before = await stored(broker)
    answer = await peer.send(topic, serialize_type=encoding)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    # The binary encoding has no empty values.
    is_left_out = not topic and encoding == SerializeType.ROCKETMQ
    assert ("<b> is null" if is_left_out else remark) in (answer.remark or "")
    answer = await peer.create_topic(topic)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    answer = await peer.pull(topic)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert await stored(broker) == before


@ENCODINGS
async def test_a_topic_beyond_the_bound_of_names_is_code_1(
    broker: Broker, peer: Peer, encoding: SerializeType
) -> None:
    before, topic = await stored(broker), "t" * 5000
    sent = await peer.send(topic, serialize_type=encoding)
    for answer in (sent, await peer.create_topic(topic), await peer.pull(topic)):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "at most 255" in (answer.remark or "")
    assert await stored(broker) == before


@pytest.mark.parametrize("queue_id", [4, 5, 1000, 2**31 - 1])
async def test_a_queue_that_does_not_exist_is_code_1(
    broker: Broker, peer: Peer, queue_id: int
) -> None:
    await peer.create_topic("T", 4)
    before = await stored(broker)
    for encoding in SerializeType:
        answer = await peer.send("T", queue_id=queue_id, serialize_type=encoding)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"queueId[{queue_id}] is illegal" in (answer.remark or "")
    for tags in ("*", "a"):
        answer = await peer.pull("T", queue_id, tags=tags, suspend_ms=20_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"queueId[{queue_id}] is illegal" in (answer.remark or "")
    assert await stored(broker) == before


@pytest.mark.parametrize("queue_id", [-1, -(2**31)])
async def test_a_negative_queue_can_t_be_read(peer: Peer, queue_id: int) -> None:
    await peer.create_topic("T", 4)
    answer = await peer.pull("T", queue_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"queueId[{queue_id}] is illegal" in (answer.remark or "")


@pytest.mark.parametrize("offset", [-1, -(2**63), 1, 57, 10**12, 2**63 - 1])
async def test_an_offset_where_no_message_begins_is_refused(peer: Peer, offset: int) -> None:
    await peer.send("T", b"only", properties="KEYS\x01k")
    for code, fields in (
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "g", "delayLevel": 0}),
    ):
        answer = await peer.ask(code, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR, code
        assert answer.remark
    assert [m.body for m in await peer.messages("T")] == [b"only"]


@pytest.mark.parametrize("offset", [-5, 7, 2**62])
async def test_a_read_outside_a_queue_says_where_to_go_on(peer: Peer, offset: int) -> None:
    await peer.create_topic("T")
    for _ in range(3):
        await peer.send("T")
    answer = await peer.pull("T", offset=offset, suspend_ms=20_000)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    expected = "0" if offset < 0 else "3"
    assert answer.ext_fields["nextBeginOffset"] == expected
    assert (answer.ext_fields["minOffset"], answer.ext_fields["maxOffset"]) == ("0", "3")


# -- settings -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("brokerNam=x", "did you mean 'brokerName'"),
        ("listenPort=x", "listenPort"),
        ("listenPort=70000", "listenPort"),
        ("listenPort=", "listenPort"),
        ("brokerId=-1", "brokerId"),
        ("flushDiskType=NEVER", "flushDiskType"),
        ("mappedFileSizeCommitLog=1", "mappedFileSizeCommitLog"),
        ("mappedFileSizeConsumeQueue=0", "mappedFileSizeConsumeQueue"),
        ("maxMessageSize=-1", "maxMessageSize"),
        ("messageDelayLevel=1s soon", "messageDelayLevel"),
        ("namesrvAddr=nowhere", "namesrvAddr"),
        ("brokerIP1=no address", "brokerIP1"),
        ("autoCreateTopicEnable=perhaps", "autoCreateTopicEnable"),
        ("brokerRole=KING", "brokerRole"),
        ("just words", "broker.conf"),
    ],
)
def test_a_wrong_setting_of_a_broker_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"brokerName=a\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(path).store_address()
    assert reason in str(caught.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("listenPor=1", "did you mean 'listenPort'"), ("listenPort=x", "listenPort")],
)
def test_a_wrong_setting_of_a_name_server_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        NamesrvConfig.load(path)
    assert reason in str(caught.value)


async def test_settings_that_a_store_can_t_follow_stop_the_start_and_change_nothing(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.send("T", b"kept")
    changes: dict[str, Any] = {"mapped_file_size_commit_log": 2 << 20}
    with pytest.raises(Exception, match="1048576"):
        await Broker(dataclasses.replace(config, **changes)).start()
    async with Broker(config) as broker, peer_of(broker) as peer:
        found = [await peer.messages("T", queue_id) for queue_id in range(4)]
        assert [m.body for messages in found for m in messages] == [b"kept"]
