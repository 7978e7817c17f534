"""The store that the Java broker wrote, served by ours: every message of its manifest."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.message import MessageExt, MessageId
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import SMALL, Peer, peer_of
from tests.support.kernels import KERNELS
from tests.support.stores.golden import Golden, copy_golden

pytestmark = pytest.mark.asyncio

MESSAGES = 1_864


@pytest.fixture
def golden(tmp_path: Path) -> Golden:
    return copy_golden(tmp_path)


@pytest_asyncio.fixture(params=KERNELS)
async def broker(request: pytest.FixtureRequest, golden: Golden) -> AsyncIterator[Broker]:
    config = BrokerConfig.load(
        golden.folder / "broker.conf",
        **{name: SMALL[name] for name in ("broker_ip1", "listen_host", "listen_port")},
        broker_name="broker-a",
        namesrv_addr="",
        store_path_root_dir=golden.folder / "store",
        # What was waiting when the store was written stays where it is.
        message_delay_level=" ".join(["9999d"] * 18),
    )
    async with Broker(config, kernel=request.param) as started:
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(broker) as client:
        yield client


def as_manifest(message: MessageExt) -> dict[str, Any]:
    """A message in the manifest's terms."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "bodyLength": len(message.body),
        "bodySha1": hashlib.sha1(message.body).hexdigest(),
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host[0],
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
    }


def differences(message: MessageExt, line: dict[str, Any]) -> dict[str, Any]:
    """Where a message is not what the manifest says."""
    found = as_manifest(message)
    return {key: (found[key], line[key]) for key in found if found[key] != line[key]}


async def test_the_store_opens_clean(broker: Broker) -> None:
    assert broker.recovery.clean
    assert broker.recovery.truncated_bytes == 0
    assert broker.parts.tables.topics.get("GoldenA") is not None
    assert broker.parts.tables.groups.get("golden-retry") is not None
    assert broker.parts.tables.offsets.query("golden-retry", "GoldenC", 0) == 37
    assert broker.parts.writing.schedule.offsets == {1: 3, 3: 3}


async def test_every_message_of_the_manifest_is_pulled(golden: Golden, peer: Peer) -> None:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in golden.messages():
        queues[line["topic"], line["queueId"]].append(line)
    read = 0
    for (topic, queue_id), lines in queues.items():
        wanted = {line["queueOffset"]: line for line in lines}
        offset = min(wanted)
        while offset <= max(wanted):
            answer = await peer.pull(topic, queue_id, offset)
            assert answer.code == ResponseCode.SUCCESS, (topic, queue_id, offset, answer.remark)
            for message in decode_records(answer.body):
                line = wanted.get(message.queue_offset)
                assert line is None or not differences(message, line)
                read += line is not None
            offset = int(answer.ext_fields["nextBeginOffset"])
    assert read == MESSAGES


async def test_every_message_of_the_manifest_is_viewed_by_its_id(
    golden: Golden, peer: Peer
) -> None:
    read = 0
    for line in golden.messages():
        offset = MessageId.parse(line["offsetMsgId"]).physical_offset
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        [message] = decode_records(answer.body)
        assert not differences(message, line)
        read += 1
    assert read == MESSAGES


async def test_every_unique_key_of_the_manifest_is_found(golden: Golden, peer: Peer) -> None:
    wanted = [line for line in golden.messages() if "UNIQ_KEY" in line["properties"]]
    assert wanted
    for line in wanted:
        fields = {
            "topic": line["topic"],
            "key": line["msgId"],
            "maxNum": 64,
            "beginTimestamp": 0,
            "endTimestamp": 1 << 61,
        }
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, fields)
        offsets = [m.commit_log_offset for m in decode_records(answer.body)]
        assert line["commitLogOffset"] in offsets, line


async def test_new_messages_follow_the_old_ones(broker: Broker, peer: Peer) -> None:
    _, end = broker.parts.store.queue_bounds("GoldenA", 0)
    answer = await peer.send("GoldenA", b"new")
    assert answer.code == ResponseCode.SUCCESS
    assert int(answer.ext_fields["queueOffset"]) == end
    [message] = await peer.messages("GoldenA", 0, end)
    assert message.body == b"new"
