"""What operators change at a broker has an audit line: every code that can is asked here."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.requests import ROUTER
from kerolox.protocol.bodies import SubscriptionGroupConfig, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.remoting import AUDIT_LOGGER
from tests.support.clients.peer import Peer

NOT_OF_OPERATORS = frozenset(
    (
        # Messages, offsets, locks and presence of clients.
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        *(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
        *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION),
        *(RequestCode.END_HALF_MESSAGES, RequestCode.UPDATE_CONSUMER_OFFSET),
        RequestCode.RECALL_MESSAGE,
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
        *(RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        *(RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT),
        *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        # Passed on to a client, and nothing of the broker changes.
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        # Questions.
        *(RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
        *(RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET),
        *(RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.CHECK_CLIENT_CONFIG),
        *(RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_CONFIG),
        *(RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
        *(RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET),
        *(RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS),
        *(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_TOPIC_STATS_INFO),
        *(RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST),
        *(RequestCode.GET_CONSUME_STATS, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
        *(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.QUERY_CONSUME_TIME_SPAN),
        *(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, RequestCode.GET_CONSUMER_RUNNING_INFO),
        *(RequestCode.QUERY_CORRECTION_OFFSET, RequestCode.VIEW_BROKER_STATS_DATA),
        *(RequestCode.GET_BROKER_CONSUME_STATS, RequestCode.QUERY_CONSUME_QUEUE),
        *(RequestCode.GET_ALL_PRODUCER_INFO, RequestCode.QUERY_TOPICS_BY_CONSUMER),
        *(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, RequestCode.GET_TOPIC_CONFIG),
        *(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_BROKER_HA_STATUS),
        *(RequestCode.QUERY_ASSIGNMENT, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        *(RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO),
        *(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG),
        *(RequestCode.GET_BROKER_ROLE, RequestCode.GET_POPPED_MESSAGES),
        *(RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.NOTIFY_BROKER_ROLE_CHANGED),
    )
)
OF_ACCOUNT_FILES = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    )
)
"""Their lines are examined where the files are."""


class Told:
    """The audit lines since the last check."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[dict[str, Any]]:
        found = [json.loads(r.getMessage()) for r in self._caplog.records if r.name == AUDIT_LOGGER]
        self._caplog.clear()
        return found


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    return Told(caplog)


def changing() -> set[int]:
    return {code for code, route in ROUTER.routes.items() if route.changes}


def test_every_code_is_one_of_operators_that_is_told_or_is_listed_as_none() -> None:
    assert not changing() & NOT_OF_OPERATORS
    assert ROUTER.codes - changing() - NOT_OF_OPERATORS == set()


async def prepare(broker: Broker, peer: Peer) -> None:
    """Something of each kind that can be changed."""
    await peer.create_topic("T", queues=1)
    await peer.send("T")
    for group in ("G", "H"):
        broker.parts.tables.groups.put(SubscriptionGroupConfig(group_name=group))
    broker.parts.tables.offsets.commit("G", "T", 0, 1, "test")
    pops = broker.parts.tables.pops
    key = QueueKey("poppers", "T", 0)
    pops.state.queues.deliver(key, 0, [0], 1, invisible_ms=60_000, now=pops.now())
    # Files of a topic that is in no table.
    await peer.create_topic("gone", queues=1)
    await peer.send("gone")
    broker.parts.tables.topics.delete("gone")


RESET = {"topic": "T", "group": "G", "timestamp": -1, "isForce": True, "queueId": 0, "offset": 0}
CLONE = {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": True}
CHANGES: dict[int, tuple[dict[str, object], bytes, dict[str, object]]] = {
    RequestCode.CHANGE_BROKER_ROLE: (
        {},
        b'{"action":"pause","token":"t","milliseconds":1000}',
        {"role": "pause", "old": {"paused": False}, "new": {"paused": True}},
    ),
    RequestCode.RELEASE_POPPED_MESSAGES: (
        {},
        b'{"group":"poppers"}',
        {"popped": "poppers", "old": {"out": 1}, "new": {"released": 1}},
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": 2,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        },
        b"",
        {"topic": "T", "old": {"readQueueNums": 1}, "new": {"readQueueNums": 2}},
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (
        {},
        b'{"topicConfigList":[{"topicName":"T","readQueueNums":2,"writeQueueNums":1}]}',
        {"topic": "T", "old": {"readQueueNums": 1}, "new": {"readQueueNums": 2}},
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "T"}, b"", {"topic": "T", "new": None}),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        {},
        encode_body(SubscriptionGroupConfig(group_name="G", retry_max_times=3)),
        {"group": "G", "old": {"retryMaxTimes": 16}, "new": {"retryMaxTimes": 3}},
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "H"}, b"", {"group": "H", "new": None}),
    RequestCode.UPDATE_BROKER_CONFIG: (
        {},
        b"fileReservedTime=48\ndeleteWhen=04\nflushDiskType=SYNC_FLUSH\n",
        {
            "settings": "fileReservedTime, deleteWhen, flushDiskType",
            "old": {"fileReservedTime": "72", "flushDiskType": "ASYNC_FLUSH"},
            "new": {"fileReservedTime": "48", "flushDiskType": "SYNC_FLUSH"},
        },
    ),
    RequestCode.CLEAN_UNUSED_TOPIC: ({}, b"", {"queuesOf": "gone"}),
    RequestCode.DELETE_EXPIRED_COMMITLOG: ({}, b"", {"old": None}),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (
        {},
        b'{"topic":"T","consumerGroup":"G","mode":"POP"}',
        {"requestMode": "G", "old": {"mode": "PULL"}, "new": {"mode": "POP"}},
    ),
    RequestCode.POP_ROLLBACK: ({}, b"", {"pops": "rollback"}),
    RequestCode.CLONE_GROUP_OFFSET: (CLONE, b"", {"offsets": "H@T", "old": {}, "new": {"0": 1}}),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (
        RESET,
        b"",
        {"offsets": "G@T", "old": {"0": 1}, "new": {"0": 0}},
    ),
}
NEEDS_MORE = frozenset(
    (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.RESUME_CHECK_HALF_MESSAGE)
)
"""Need a store whose first files are gone, a half that was given up: see the tests below."""


def test_every_code_that_changes_something_is_asked_here() -> None:
    assert CHANGES.keys() | NEEDS_MORE | OF_ACCOUNT_FILES >= changing()


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: code.name)
async def test_what_a_request_changed_is_told_with_old_and_new(
    broker: Broker, peer: Peer, told: Told, code: RequestCode
) -> None:
    await prepare(broker, peer)
    told.take()
    fields, body, expected = CHANGES[code]
    assert (await peer.ask(code, fields, body)).code == 0
    [line] = told.take()
    assert (line["outcome"], line["request"], line["server"]) == ("changed", code.name, "broker")
    assert line["from"].startswith("127.0.0.1:")
    assert {name: line[name] for name in expected} == expected


async def test_expired_queues_that_were_deleted_are_told_one_by_one(
    broker: Broker, peer: Peer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def delete(told: Any, _forget: Any) -> int:
        told("T:0")
        told("T:1")
        return 2

    monkeypatch.setattr(broker.parts.writing.cleaner, "delete_expired_queues", delete)
    await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert [line["queue"] for line in told.take()] == ["T:0", "T:1"]


async def test_a_refused_change_is_told_with_its_reason(peer: Peer, told: Told) -> None:
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerName=other\n")
    assert answer.code == 16
    [line] = told.take()
    assert (line["outcome"], line["answer"]) == ("refused", 16)
    assert "brokerName" in line["reason"]
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {})
    assert [(line["outcome"], line["answer"]) for line in told.take()] == [("refused", 1)] * 2
    await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "x"})
    assert [line["request"] for line in told.take()] == ["RESUME_CHECK_HALF_MESSAGE"]


async def test_a_topic_that_a_send_made_is_told_as_automatic(peer: Peer, told: Told) -> None:
    for _ in range(3):
        await peer.send("fresh")
    [line] = told.take()
    assert (line["topic"], line["automatic"], line["old"]) == ("fresh", True, None)
    assert line["new"]["writeQueueNums"] == 4


async def test_requests_of_clients_are_not_told(peer: Peer, told: Told) -> None:
    await peer.create_topic("T")
    told.take()
    await peer.send("T")
    await peer.heartbeat("c", topics={"T": "*"})
    await peer.pull("T")
    await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert told.take() == []
