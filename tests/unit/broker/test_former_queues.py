"""What waits for a queue that its topic has lost by the time it is delivered, on each kernel."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.tables.former_queues import FormerQueues, queues_for_former
from kerolox.message import MessageId, MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import TopicConfig, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import peer_of, small_config
from tests.support.clients.requests import topic_fields
from tests.unit.broker.test_half_ends import ONE, end_range
from tests.unit.broker.test_schedule import deliver_at
from tests.unit.broker.test_transactions import COMMIT, end, half_properties

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.broker.config import BrokerConfig
    from kerolox.protocol.command import RemotingCommand
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

QUEUES = 8
HOUR_MS = 3_600_000


@pytest.fixture
def long_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    """Nothing is delivered but by the test."""
    monkeypatch.setattr("kerolox.broker.broker.DELIVER_SECONDS", 3_600.0)
    return small_config(tmp_path, message_delay_level="1h")


async def narrow(peer: Peer, read: int, write: int) -> None:
    fields = topic_fields("T", queues=write, readQueueNums=read)
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SUCCESS


async def bodies(peer: Peer, topic: str = "T") -> dict[int, list[bytes]]:
    """Of all queues that have had messages, in their order."""
    found = {
        queue_id: [message.body for message in await peer.messages(topic, queue_id)]
        for queue_id in range(QUEUES)
    }
    return {queue_id: texts for queue_id, texts in found.items() if texts}


async def delay_one_for_each_queue(peer: Peer, rounds: int = 1) -> None:
    await peer.create_topic("T", queues=QUEUES)
    for turn in range(rounds):
        for queue_id in range(QUEUES):
            body = b"%d/%d" % (queue_id, turn)
            sent = await peer.send("T", body, queue_id=queue_id, properties="DELAY\x011")
            assert sent.code == ResponseCode.SUCCESS


async def test_delayed_messages_go_to_queues_that_their_topic_still_has(
    long_delays: BrokerConfig, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await delay_one_for_each_queue(peer, rounds=2)
        await narrow(peer, read=3, write=3)
        assert await deliver_at(broker, HOUR_MS, monkeypatch) == 2 * QUEUES
        found = await bodies(peer)
    assert found == {
        0: [b"0/0", b"3/0", b"6/0", b"0/1", b"3/1", b"6/1"],
        1: [b"1/0", b"4/0", b"7/0", b"1/1", b"4/1", b"7/1"],
        2: [b"2/0", b"5/0", b"2/1", b"5/1"],
    }


async def test_delayed_messages_stay_in_queues_that_are_still_read(
    long_delays: BrokerConfig, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await delay_one_for_each_queue(peer)
        await narrow(peer, read=6, write=2)
        await deliver_at(broker, HOUR_MS, monkeypatch)
        found = await bodies(peer)
    # 6 and 7 go where producers write.
    assert found == {
        0: [b"0/0", b"6/0"],
        1: [b"1/0", b"7/0"],
        **{queue_id: [b"%d/0" % queue_id] for queue_id in range(2, 6)},
    }


async def test_the_log_tells_once_of_a_topic_that_lost_queues(
    long_delays: BrokerConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await delay_one_for_each_queue(peer)
        await narrow(peer, read=2, write=2)
        with caplog.at_level(logging.WARNING, logger="kerolox.broker"):
            await deliver_at(broker, HOUR_MS, monkeypatch)
    told = [each.getMessage() for each in caplog.records if "topic T" in each.getMessage()]
    assert told == [
        "topic T has lost queue 2, for which messages waited; such messages go to the queue that "
        "is their number modulo 2"
    ]


async def test_a_delayed_message_of_a_topic_that_is_gone_is_stored_and_told_of(
    long_delays: BrokerConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await delay_one_for_each_queue(peer)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        with caplog.at_level(logging.WARNING, logger="kerolox.broker"):
            assert await deliver_at(broker, HOUR_MS, monkeypatch) == QUEUES
        assert broker.parts.store.queue_bounds("T", 7) == (0, 1)
    told = [each.getMessage() for each in caplog.records if "topic T" in each.getMessage()]
    assert told == [
        "topic T is gone: a message that waited for its queue 0 is stored there, and nobody gets "
        "it; create the topic again to have it read"
    ]


async def test_transactions_end_in_queues_that_their_topic_still_has(any_peer: Peer) -> None:
    await any_peer.create_topic("T", queues=QUEUES)
    halves = [
        await any_peer.send(
            "T", b"%d" % queue_id, queue_id=queue_id, properties=half_properties(f"U{queue_id}")
        )
        for queue_id in range(QUEUES)
    ]
    await narrow(any_peer, read=3, write=3)
    for half in halves:
        assert (await end(any_peer, half, COMMIT)).code == ResponseCode.SUCCESS
    found = await bodies(any_peer)
    assert found == {0: [b"0", b"3", b"6"], 1: [b"1", b"4", b"7"], 2: [b"2", b"5"]}


async def test_halves_ended_in_bulk_go_to_queues_that_their_topic_still_has(
    any_peer: Peer,
) -> None:
    await any_peer.create_topic("T", queues=QUEUES)
    for queue_id in range(QUEUES):
        text = half_properties(f"U{queue_id}", KEROLOX_SINK=ONE)
        await any_peer.send("T", b"%d" % queue_id, queue_id=queue_id, properties=text)
    await narrow(any_peer, read=3, write=3)
    done = await end_range(any_peer, ONE)
    assert (done.ended, done.next_offset) == (QUEUES, QUEUES)
    found = await bodies(any_peer)
    assert found == {0: [b"0", b"3", b"6"], 1: [b"1", b"4", b"7"], 2: [b"2", b"5"]}


@pytest.mark.parametrize(
    ("read", "write", "shared"), [(4, 2, 2), (2, 4, 2), (4, 0, 4), (0, 4, 4), (0, 0, 0), (-1, 3, 3)]
)
async def test_former_queues_share_those_that_are_read_and_written(
    read: int, write: int, shared: int
) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write, perm=6)
    assert queues_for_former(topic) == shared


async def test_without_any_queue_a_message_stays_where_it_was_for(broker: Broker) -> None:
    topics = broker.parts.tables.topics
    topics.put(TopicConfig(topic_name="T", read_queue_nums=0, write_queue_nums=0, perm=6))
    assert FormerQueues(topics).queue_now("T", 5) == 5


# -- retry topics -----------------------------------------------------------------------------
async def set_group(peer: Peer, retry_queues: int, **more: object) -> None:
    body = encode_body({"groupName": "readers", "retryQueueNums": retry_queues, **more})
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def give_back(peer: Peer, count: int, **more: object) -> None:
    for number in range(count):
        sent = await peer.send("T", b"%d" % number)
        offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
        fields = {"offset": offset, "group": "readers", "delayLevel": 1, **more}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0


def queues_of(broker: Broker, topic: str = "%RETRY%readers") -> tuple[int, int] | None:
    found = broker.parts.tables.topics.get(topic)
    return None if found is None else (found.read_queue_nums, found.write_queue_nums)


async def test_more_retry_queues_of_a_group_widen_its_retry_topic(
    long_delays: BrokerConfig, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await give_back(peer, 1)
        assert queues_of(broker) == (1, 1)
        version = broker.parts.tables.topics.version.counter
        await set_group(peer, 4)
        assert queues_of(broker) == (4, 4)
        assert broker.parts.tables.topics.version.counter > version, "name servers hear of it"
        assert '"%RETRY%readers"' in (long_delays.config_folder / "topics.json").read_text()
        await give_back(peer, 40)
        assert await deliver_at(broker, HOUR_MS, monkeypatch) == 41
        found = await bodies(peer, "%RETRY%readers")
        assert set(found) <= {0, 1, 2, 3}
        assert sum(map(len, found.values())) == 41
        assert len(found) > 1
    async with Broker(long_delays, kernel=kernel) as broker:
        assert queues_of(broker) == (4, 4)


async def test_fewer_retry_queues_leave_the_others_readable(peer: Peer, broker: Broker) -> None:
    await peer.create_topic("T")
    await set_group(peer, 4)
    await give_back(peer, 1)
    await set_group(peer, 2)
    assert queues_of(broker) == (4, 2)
    await set_group(peer, 2, retryMaxTimes=3)
    assert queues_of(broker) == (4, 2)
    await set_group(peer, 3)
    assert queues_of(broker) == (4, 3)


async def test_a_change_of_something_else_leaves_a_wide_retry_topic_alone(
    peer: Peer, broker: Broker
) -> None:
    await peer.create_topic("T")
    await set_group(peer, 1)
    await peer.create_topic("%RETRY%readers", queues=8)
    await set_group(peer, 1, retryMaxTimes=3)
    assert queues_of(broker) == (8, 8)


@pytest.mark.parametrize("by", ["heartbeat", "message given back"])
async def test_a_retry_topic_that_was_left_too_narrow_is_widened(
    peer: Peer, broker: Broker, by: str
) -> None:
    await peer.create_topic("T")
    await set_group(peer, 4)
    # As RocketMQ, and earlier versions, leave them.
    await peer.create_topic("%RETRY%readers", queues=1)
    if by == "heartbeat":
        await peer.heartbeat("c1")
    else:
        await give_back(peer, 1)
    assert queues_of(broker) == (4, 4)


async def test_a_group_made_again_gets_as_many_retry_queues_as_it_says(
    peer: Peer, broker: Broker
) -> None:
    await peer.create_topic("T")
    await set_group(peer, 2)
    await give_back(peer, 1)
    await peer.ask(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers", "removeOffset": True}
    )
    assert queues_of(broker) == (2, 2), "its retry topic is deleted by a request of its own"
    await set_group(peer, 5)
    assert queues_of(broker) == (5, 5)


async def test_dead_letters_come_to_a_topic_that_has_a_queue(peer: Peer, broker: Broker) -> None:
    await peer.create_topic("T")
    await peer.create_topic("%DLQ%readers", queues=0)
    await give_back(peer, 3, delayLevel=-1)
    assert queues_of(broker, "%DLQ%readers") == (1, 1)
    assert len(await peer.messages("%DLQ%readers")) == 3


async def test_a_broker_without_room_for_more_queues_takes_back_all_the_same(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create_topic("T")
    await set_group(peer, 4)
    await peer.create_topic("%RETRY%readers", queues=1)
    monkeypatch.setattr("kerolox.broker.tables.topics.QUEUES_OF_ALL_MAX", 1)
    assert (await peer.heartbeat("c1")).code == ResponseCode.SUCCESS
    await give_back(peer, 5)
    assert queues_of(broker) == (1, 1)
    body = encode_body({"groupName": "readers", "retryQueueNums": 5})
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no space for another one" in (answer.remark or "")
    group = broker.parts.tables.groups.get("readers")
    assert group is not None
    assert group.retry_queue_nums == 4


@pytest.mark.parametrize("number", [-1, 65_537, 2_147_483_647])
async def test_a_number_of_retry_queues_out_of_range_is_refused(
    peer: Peer, broker: Broker, number: int
) -> None:
    body = encode_body({"groupName": "readers", "retryQueueNums": number})
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"retryQueueNums[{number}] is illegal; 0 to 65536 are allowed"
    assert broker.parts.tables.groups.get("readers") is None


# -- what is reported of queues that are gone ------------------------------------------------------
async def commit(peer: Peer, queue_id: int, offset: int) -> None:
    fields = {
        "consumerGroup": "readers",
        "topic": "T",
        "queueId": queue_id,
        "commitOffset": offset,
    }
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


async def lags(peer: Peer) -> dict[int, int]:
    """By queue, as GET_CONSUME_STATS tells them."""
    fields = {"consumerGroup": "readers", "topic": "T"}
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, fields)
    return {
        queue.queue_id: each["brokerOffset"] - each["consumerOffset"]
        for queue, each in table_of(answer).items()
    }


def table_of(answer: RemotingCommand) -> dict[MessageQueue, Any]:
    body = fastjson.loads(answer.body)
    assert isinstance(body, dict)
    found: dict[MessageQueue, Any] = body["offsetTable"]
    return found


async def test_messages_in_a_lost_queue_count_as_lag(any_peer: Peer) -> None:
    await set_group(any_peer, 1)
    await any_peer.create_topic("T", queues=4)
    for queue_id in range(4):
        for _ in range(3):
            await any_peer.send("T", queue_id=queue_id)
        await commit(any_peer, queue_id, 3 - queue_id)
    await narrow(any_peer, read=2, write=2)
    assert await lags(any_peer) == {0: 0, 1: 1, 2: 2, 3: 3}
    await commit(any_peer, 3, 3)
    assert await lags(any_peer) == {0: 0, 1: 1, 2: 2}
    answer = await any_peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    assert fastjson.loads(answer.body)["totalDiff"] == 3  # type: ignore[index,call-overload]


async def test_queues_that_are_only_read_or_only_written_are_told_of(any_peer: Peer) -> None:
    for read, write in ((4, 1), (1, 4)):
        await any_peer.create_topic("T", queues=4)
        for queue_id in range(4):
            await any_peer.send("T", queue_id=queue_id)
        await narrow(any_peer, read=read, write=write)
        assert set(await lags(any_peer)) == {0, 1, 2, 3}
        state = await any_peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        assert sorted(queue.queue_id for queue in table_of(state)) == [0, 1, 2, 3]
        fields = {"group": "readers", "topic": "T"}
        spans = await any_peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        told = fastjson.loads(spans.body)["consumeTimeSpanSet"]  # type: ignore[index,call-overload]
        assert len(told) == 4


async def test_a_reset_covers_the_queues_that_are_only_read(any_peer: Peer) -> None:
    await any_peer.create_topic("T", queues=4)
    for queue_id in range(4):
        await any_peer.send("T", queue_id=queue_id)
    for queue_id in range(3):
        await commit(any_peer, queue_id, 0)
    await narrow(any_peer, read=4, write=2)
    await any_peer.heartbeat("c1", topics={"T": "*"})
    fields = {"topic": "T", "group": "readers", "timestamp": -1, "isForce": True}
    answer = await any_peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    offsets = {queue.queue_id: offset for queue, offset in table_of(answer).items()}
    assert offsets == {0: 1, 1: 1, 2: 1}
