"""What both roles had before somebody was hostile, and must have after it and after a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kerolox.properties import parse_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from tests.support.clients.patient import PatientConnection
from tests.support.clients.requests import pull_fields, send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from tests.support.servers.up import Up

__all__ = ["differing", "fitted", "keep", "kept", "tables"]

TOPIC, GROUP, NAMESPACE = "Kept", "kept", "kept"
MESSAGES = 10
OFFSET = 5

_BROKER_TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def ask(
    address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
) -> RemotingCommand:
    """One request on a connection of its own."""
    with PatientConnection(address) as connection:
        command = RemotingCommand.request(code, fields, body=body)
        return connection.invoke(command, SECONDS_MAX)


def keep(up: Up) -> None:
    """A topic with messages, a group with an offset, a key-value, a setting of each role; and a
    group with an offset behind its queue's end, as requests that race each other leave some."""
    offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": OFFSET}
    behind = {**offset, "consumerGroup": "behind-the-end", "commitOffset": (1 << 63) - 1}
    pair = {"namespace": NAMESPACE, "key": "a", "value": "b=c\\u000ad"}
    group = json.dumps({"groupName": GROUP, "retryMaxTimes": 7}).encode()
    made = [
        (up.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, queues=2), b""),
        (up.broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group),
        *(
            (up.broker, RequestCode.SEND_MESSAGE_V2, send_fields(b=TOPIC), b"kept %d" % number)
            for number in range(MESSAGES)
        ),
        (up.broker, RequestCode.UPDATE_CONSUMER_OFFSET, offset, b""),
        (up.broker, RequestCode.UPDATE_CONSUMER_OFFSET, behind, b""),
        (up.broker, RequestCode.UPDATE_BROKER_CONFIG, {}, b"defaultQueryMaxNum=77\n"),
        (up.namesrv, RequestCode.PUT_KV_CONFIG, pair, b""),
        (up.namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n"),
    ]
    for address, code, fields, body in made:
        answer = ask(address, code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, (code, answer.remark)


def kept(up: Up) -> dict[str, object]:
    """The values of what :func:`keep` made."""
    fields = pull_fields(topic=TOPIC, consumerGroup="readers", sysFlag=4)
    pulled = ask(up.broker, RequestCode.PULL_MESSAGE, fields)
    found = tables(up)
    topics, groups = found["21"], found["201"]
    assert isinstance(topics, dict)
    assert isinstance(groups, dict)
    offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    pair = {"namespace": NAMESPACE, "key": "a"}
    broker, namesrv = found["broker settings"], found["namesrv settings"]
    assert isinstance(broker, dict)
    assert isinstance(namesrv, dict)
    return {
        "messages": [message.body for message in decode_records(pulled.body)],
        "topic": topics["topicConfigTable"][TOPIC],
        "group": groups["subscriptionGroupTable"][GROUP],
        "offset": ask(up.broker, RequestCode.QUERY_CONSUMER_OFFSET, offset).ext_fields,
        "key-value": ask(up.namesrv, RequestCode.GET_KV_CONFIG, pair).ext_fields,
        "defaultQueryMaxNum": broker["defaultQueryMaxNum"],
        "orderMessageEnable": namesrv["orderMessageEnable"],
        "kvConfigPath": namesrv["kvConfigPath"],
        "storePathRootDir": broker["storePathRootDir"],
    }


def tables(up: Up) -> dict[str, Any]:
    """All that both roles keep in files, besides messages and key-values."""
    found: dict[str, Any] = {}
    for code in _BROKER_TABLES:
        found[str(int(code))] = fastjson.loads(ask(up.broker, code).body)
    settings = ask(up.broker, RequestCode.GET_BROKER_CONFIG).body.decode()
    found["broker settings"] = parse_properties(settings)
    settings = ask(up.namesrv, RequestCode.GET_NAMESRV_CONFIG).body.decode()
    found["namesrv settings"] = parse_properties(settings)
    return found


def fitted(up: Up, offsets: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """The table of consumer offsets as the next start makes it: one that somebody committed behind
    the end of a queue with messages is at that end (``OffsetTable.fit``)."""
    found = {}
    for key, queues in offsets.items():
        topic = key.partition("@")[0]
        found[key] = dict(queues)
        for queue_id, offset in queues.items():
            if offset > 0:
                fields = {"topic": topic, "queueId": queue_id}
                end = int(ask(up.broker, RequestCode.GET_MAX_OFFSET, fields).ext_fields["offset"])
                found[key][queue_id] = min(offset, end or offset)
    return found


def differing(before: Any, after: Any, where: str = "") -> list[str]:
    """Which keys of :func:`tables` are others now, each with both values."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{where}: {before!r} is {after!r} now"]
    found = []
    for key in sorted({*before, *after}, key=str):
        place = f"{where}/{key}"
        if key not in before:
            found.append(f"{place}: {after[key]!r} is new")
        elif key not in after:
            found.append(f"{place}: {before[key]!r} is gone")
        else:
            found += differing(before[key], after[key], place)
    return found
