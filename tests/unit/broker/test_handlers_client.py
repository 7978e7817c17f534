"""Heartbeats, members, notices and locks, over a real socket."""

from __future__ import annotations

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.tables.clients import EXPIRED_MS
from kerolox.message import MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


async def members(peer: Peer, group: str = "readers") -> list[str]:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return sorted(fastjson.loads(answer.body)["consumerIdList"]) if answer.body else []


def change_notices(peer: Peer) -> list[str]:
    return [
        notice.ext_fields["consumerGroup"]
        for notice in peer.notices
        if notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    ]


async def test_all_members_hear_of_a_new_one_and_of_one_that_leaves(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"})
    await until(lambda: len(change_notices(peer)) == 1)
    async with peer_of(broker) as other:
        await other.heartbeat("c2", topics={"T": "*"})
        assert await members(peer) == ["c1", "c2"]
        await until(lambda: len(change_notices(peer)) == 2 and len(change_notices(other)) == 1)
        await other.heartbeat("c2", topics={"T": "*"})
        fields = {"clientID": "c2", "consumerGroup": "readers"}
        await other.ask(RequestCode.UNREGISTER_CLIENT, fields)
        assert await members(peer) == ["c1"]
        await until(lambda: len(change_notices(peer)) == 3)
    assert change_notices(peer) == ["readers"] * 3
    assert len(change_notices(other)) == 1


async def test_a_closed_connection_is_a_member_less(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"})
    async with peer_of(broker) as other:
        await other.heartbeat("c2", topics={"T": "*"}, producers=["p"])
        assert broker.parts.tables.clients.producers("p") is not None
    await until(lambda: broker.parts.tables.clients.producers("p") is None)
    assert await members(peer) == ["c1"]
    await until(lambda: len(change_notices(peer)) == 3)


async def test_a_silent_client_expires_and_is_closed(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"}, producers=["p"])
    [member] = broker.parts.tables.clients.group("readers").members.values()
    broker.parts.tables.clients.expire()
    assert broker.parts.tables.clients.group("readers") is not None
    member.last_heartbeat_ms -= EXPIRED_MS + 1_000
    broker.parts.tables.clients.expire()
    assert broker.parts.tables.clients.group("readers") is None
    assert broker.parts.tables.clients.producers("p") is None
    await until(lambda: member.connection.closed)


async def test_a_change_of_topics_is_a_change(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"})
    await peer.heartbeat("c1", topics={"T": "*", "U": "*"}, version=2)
    await until(lambda: len(change_notices(peer)) == 2)
    await peer.heartbeat("c1", topics={"U": "*"}, version=3)
    await until(lambda: len(change_notices(peer)) == 3)
    assert list(broker.parts.tables.clients.group("readers").subscriptions) == ["U"]
    assert broker.parts.tables.clients.subscription("readers", "T") is None


async def test_a_group_can_do_without_notices(broker: Broker, peer: Peer):
    body = encode_body({"groupName": "readers", "notifyConsumerIdsChangedEnable": False})
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    await peer.heartbeat("c1", topics={"T": "*"})
    await peer.heartbeat("c1", "loud", topics={"T": "*"})
    await until(lambda: "loud" in change_notices(peer))
    assert change_notices(peer) == ["loud"]


async def test_a_broker_can_do_without_notices(tmp_path):
    config = small_config(tmp_path, notify_consumer_ids_changed_enable=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", topics={"T": "*"})
        assert await members(peer) == ["c1"]
        assert change_notices(peer) == []


async def test_a_heartbeat_makes_the_retry_topic_of_its_group(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", topics={"T": "*"})
    topic = broker.parts.tables.topics.get("%RETRY%readers")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


async def test_a_group_without_members_is_code_1(peer: Peer):
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "no consumer for this group, nobody"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":3,"consumerDataSet":7}'])
async def test_a_heartbeat_that_is_none_is_code_1(peer: Peer, body: bytes):
    answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("the body is no HeartbeatData: ")


async def test_subscriptions_are_bounded(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    assert (await peer.heartbeat("c1", topics={"T": "*"})).code == ResponseCode.SUCCESS
    for codes, tags in ((list(range(4_097)), []), ([], [f"t{n}" for n in range(4_097)])):
        many = await peer.heartbeat("c1", topics={"T": "a"}, codes=codes, tags=tags, version=2)
        assert many.code == ResponseCode.SYSTEM_ERROR
        assert many.remark == (
            "group readers wants 4097 tags of T; at most 4096 are allowed, use * or an expression"
        )
    monkeypatch.setattr("kerolox.broker.requests.client.TOPICS_PER_GROUP_MAX", 2)
    many = await peer.heartbeat("c1", topics=dict.fromkeys("TUV", "*"), version=2)
    assert many.code == ResponseCode.SYSTEM_ERROR
    assert many.remark.startswith("group readers subscribes to 3 topics; at most 2 are allowed")
    # What was registered before stands.
    connections = await peer.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}
    )
    assert list(fastjson.loads(connections.body)["subscriptionTable"]) == ["T"]


async def test_a_queue_lock_belongs_to_one_client_until_it_ends(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    queues = [MessageQueue("T", "broker-t", 0), MessageQueue("T", "broker-t", 1)]

    async def ask(code: int, client: str, wanted: list[MessageQueue]) -> list[MessageQueue]:
        body = encode_body({"clientId": client, "consumerGroup": "g", "mqSet": wanted})
        answer = await peer.ask(code, body=body)
        assert answer.code == ResponseCode.SUCCESS
        found = fastjson.loads(answer.body)["lockOKMQSet"] if answer.body else []
        return [MessageQueue(q["topic"], q["brokerName"], q["queueId"]) for q in found]

    assert await ask(RequestCode.LOCK_BATCH_MQ, "c1", queues[:1]) == queues[:1]
    assert await ask(RequestCode.LOCK_BATCH_MQ, "c2", queues) == queues[1:]
    assert await ask(RequestCode.LOCK_BATCH_MQ, "c1", queues) == queues[:1]
    await ask(RequestCode.UNLOCK_BATCH_MQ, "c2", queues)
    assert await ask(RequestCode.LOCK_BATCH_MQ, "c1", queues) == queues
    later = broker.parts.now_ms() + 60_001
    monkeypatch.setattr(broker.parts.tables.locks, "_now_ms", lambda: later)
    assert await ask(RequestCode.LOCK_BATCH_MQ, "c2", queues) == queues


async def test_locks_are_bounded_and_those_that_ended_are_forgotten(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kerolox.broker.tables.locks.LOCKS_MAX", 2)

    async def ask(code: int, client: str, *queue_ids: int) -> tuple[int, int]:
        queues = [MessageQueue("T", "broker-t", queue_id) for queue_id in queue_ids]
        body = encode_body({"clientId": client, "consumerGroup": "g", "mqSet": queues})
        answer = await peer.ask(code, body=body)
        return answer.code, len(broker.parts.tables.locks)

    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    assert await ask(lock, "c1", 0, 1) == (ResponseCode.SUCCESS, 2)
    assert await ask(lock, "c1", 0, 1, 2) == (ResponseCode.SYSTEM_BUSY, 2)
    assert await ask(lock, "c2", 0, 1) == (ResponseCode.SUCCESS, 2)
    assert await ask(unlock, "c1", 0) == (ResponseCode.SUCCESS, 1)
    assert await ask(lock, "c2", 0) == (ResponseCode.SUCCESS, 2)
    later = broker.parts.now_ms() + 60_001
    monkeypatch.setattr(broker.parts.tables.locks, "_now_ms", lambda: later)
    assert await ask(lock, "c3", 0) == (ResponseCode.SUCCESS, 2)
    broker.parts.tables.locks.expire()
    assert len(broker.parts.tables.locks) == 1
    assert await ask(lock, "c1", 0, 1) == (ResponseCode.SUCCESS, 2)


async def test_a_subscription_is_checked_before_it_is_used(peer: Peer):
    def body(expression_type: str) -> bytes:
        subscription = {"topic": "T", "subString": "a", "expressionType": expression_type}
        return encode_body({"clientId": "c", "group": "g", "subscriptionData": subscription})

    answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body("TAG"))
    assert answer.code == ResponseCode.SUCCESS
    answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body("SQL92"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (answer.remark or "")


async def test_a_closed_connection_leaves_every_group_that_it_was_in(broker: Broker, peer: Peer):
    await peer.heartbeat("c1", "one", {"T": "*"}, producers=["p1", "p2"])
    async with peer_of(broker) as other:
        for group in ("one", "two"):
            await other.heartbeat("c2", group, {"T": "*"}, producers=["p1", "p2", "p3"])
        assert sorted(broker.parts.tables.clients.producer_groups) == ["p1", "p2", "p3"]
        fields = {"clientID": "c2", "producerGroup": "p2", "consumerGroup": "two"}
        await other.ask(RequestCode.UNREGISTER_CLIENT, fields)
        assert broker.parts.tables.clients.group("two") is None
        assert broker.parts.tables.clients.producer("c2") is not None
    await until(lambda: broker.parts.tables.clients.producer("c2") is None)
    assert await members(peer, "one") == ["c1"]
    assert {
        g: [c.client_id for c in m] for g, m in broker.parts.tables.clients.producer_groups.items()
    } == {
        "p1": ["c1"],
        "p2": ["c1"],
    }
    assert len(broker.parts.tables.clients._joined) == 1


async def test_a_group_whose_retry_topic_no_record_can_name_consumes_all_the_same(
    broker: Broker, peer: Peer
) -> None:
    group = "g" * 255
    answer = await peer.heartbeat("c1", group, {"T": "*"})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    members = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    assert members.body == b'{"consumerIdList":["c1"]}'
    assert f"%RETRY%{group}" not in broker.parts.tables.topics
