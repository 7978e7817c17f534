from __future__ import annotations

import pytest

from kerolox.client.core.consuming.pull import PullStatus, pull_request, pull_result
from kerolox.errors import RemoteProtocolError, SubscriptionNotLatestError
from kerolox.filter.tags import subscription_of
from kerolox.message import MessageExt, MessageQueue, encode_properties
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_record

QUEUE = MessageQueue("T", "b", 3)
ALL = subscription_of("T", "*", version=77)
FIELDS = {
    "nextBeginOffset": "12",
    "minOffset": "0",
    "maxOffset": "20",
    "suggestWhichBrokerId": "1",
}


def record(offset: int, tags: str) -> bytes:
    message = MessageExt(
        topic="T",
        body=b"x",
        queue_id=3,
        queue_offset=offset,
        commit_log_offset=offset,
        properties={},
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
    )
    return encode_record(message, encode_properties({"TAGS": tags}))


def test_a_held_pull_with_a_commit() -> None:
    request = pull_request(
        "g", QUEUE, 10, ALL, max_messages=32, suspend_timeout_ms=15_000, commit_offset=9
    )
    assert request.code == 11
    assert request.ext_fields == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "3",
        "queueOffset": "10",
        "maxMsgNums": "32",
        "sysFlag": "3",
        "commitOffset": "9",
        "suspendTimeoutMillis": "15000",
        "subVersion": "77",
        "expressionType": "TAG",
    }


def test_a_fast_pull_brings_its_subscription() -> None:
    subscription = subscription_of("T", "a || b", version=1)
    fields = pull_request(
        "g", QUEUE, 0, subscription, max_messages=1, with_subscription=True
    ).ext_fields
    assert (fields["sysFlag"], fields["commitOffset"]) == ("4", "0")
    assert fields["subscription"] == "a || b"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (19, PullStatus.NO_NEW_MSG),
        (20, PullStatus.NO_MATCHED_MSG),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_a_pull_without_messages_tells_where_to_go_on(code: int, status: PullStatus) -> None:
    result = pull_result(RemotingCommand(code, dict(FIELDS)), QUEUE, ALL, "h:1")
    assert result == (status, [], 12, 0, 20, 1)


def test_messages_get_their_broker_and_the_queues_bounds() -> None:
    response = RemotingCommand(0, dict(FIELDS), record(10, "a") + record(11, "b"))
    result = pull_result(response, QUEUE, ALL, "h:1")
    assert [message.queue_offset for message in result.messages] == [10, 11]
    assert result.messages[0].broker_name == "b"
    assert result.messages[0].properties == {"TAGS": "a"}
    assert result.messages[0].queue_bounds == (0, 20)


def test_tags_are_compared_by_text() -> None:
    response = RemotingCommand(0, dict(FIELDS), record(10, "Aa") + record(11, "BB"))
    result = pull_result(response, QUEUE, subscription_of("T", "BB"), "h:1")
    assert [message.tags for message in result.messages] == ["BB"]
    assert (result.status, result.next_offset) == (PullStatus.FOUND, 12)


def test_any_other_code_is_an_error() -> None:
    with pytest.raises(SubscriptionNotLatestError):
        pull_result(RemotingCommand(25), QUEUE, ALL, "h:1")


def test_a_malformed_answer_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        pull_result(RemotingCommand(0), QUEUE, ALL, "h:1")
    with pytest.raises(RemoteProtocolError):
        pull_result(RemotingCommand(0, dict(FIELDS), b"torn"), QUEUE, ALL, "h:1")
