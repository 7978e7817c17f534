"""Every request code of both roles, each with a header and a body that its handler takes.

The codes and the members of their headers come from the tables that the servers answer from, so a
code that is added there is abused here from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec

from kerolox.broker.requests import ROUTER
from kerolox.namesrv import handlers as namesrv_handlers
from kerolox.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.roles import RoleAction
from kerolox.protocol.headers import SEND_LONG_NAMES, Header
from kerolox.protocol.records import encode_batch
from kerolox.protocol.registration import RegisterBody, encode_registration
from tests.support.clients.requests import heartbeat_body

if TYPE_CHECKING:
    from kerolox.remoting.router import Route

__all__ = ["BROKER", "BROKER_KERNEL", "GROUP", "NAMESRV", "TOPIC", "Role"]

TOPIC, GROUP = "Abused", "abused"

VALUES = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "consumerGroup": GROUP,
    "producerGroup": GROUP,
    "groupName": GROUP,
    "group": GROUP,
    "srcGroup": GROUP,
    "destGroup": "abused-too",
    "compareGroup": GROUP,
    "clientId": "abuser",
    "clientID": "abuser",
    "defaultTopicQueueNums": "1",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "maxMsgNums": "1",
    "maxNum": "1",
    "count": "1",
    "subscription": "*",
    "expressionType": "TAG",
    "commitOrRollback": "8",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "properties": "",
    "namespace": "abused",
    "key": "abused",
    "value": "abused",
    "brokerName": "abused",
    "clusterName": "abused",
    "cluster": "abused",
    "brokerAddr": "10.0.0.9:10911",
    "haServerAddr": "10.0.0.9:10912",
    "brokerId": "0",
    "invisibleTime": "1000",
    "extraInfo": "0 1 1000 0 0 b 0 0",
}
"""Members that a handler examines, by their wire names; others get what fits their type."""

_LOCK = {"clientId": "abuser", "consumerGroup": GROUP}
_QUEUE = {"brokerName": "b", "queueId": 0, "topic": TOPIC}
_SUBSCRIPTION = {"topic": TOPIC, "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}
_TOPICS = TopicConfigTable(
    data_version=DataVersion(counter=1, timestamp=1),
    topic_config_table={TOPIC: TopicConfig(topic_name=TOPIC)},
)
REGISTRATION = RegisterBody(topic_config_serialize_wrapper=_TOPICS)

BROKER_BODIES: dict[int, bytes] = {
    RequestCode.SEND_MESSAGE: b"x",
    RequestCode.SEND_MESSAGE_V2: b"x",
    RequestCode.SEND_BATCH_MESSAGE: encode_batch([(0, b"x", b"")]),
    RequestCode.SEND_REPLY_MESSAGE: b"x",
    RequestCode.SEND_REPLY_MESSAGE_V2: b"x",
    RequestCode.UPDATE_BROKER_CONFIG: b"defaultQueryMaxNum=77\n",
    RequestCode.GET_POPPED_MESSAGES: json.dumps({"group": GROUP}).encode(),
    RequestCode.RELEASE_POPPED_MESSAGES: json.dumps({"group": GROUP}).encode(),
    RequestCode.CHANGE_BROKER_ROLE: json.dumps({"action": RoleAction.RESUME}).encode(),
    RequestCode.HEART_BEAT: heartbeat_body(
        "abuser", group=GROUP, topics={TOPIC: "a > 1"}, expression_type="SQL92", producers=[GROUP]
    ),
    RequestCode.LOCK_BATCH_MQ: json.dumps({**_LOCK, "mqSet": [_QUEUE]}).encode(),
    RequestCode.UNLOCK_BATCH_MQ: json.dumps({**_LOCK, "mqSet": [_QUEUE]}).encode(),
    RequestCode.CHECK_CLIENT_CONFIG: json.dumps(
        {"clientId": "abuser", "group": GROUP, "subscriptionData": _SUBSCRIPTION}
    ).encode(),
    RequestCode.QUERY_ASSIGNMENT: json.dumps(
        {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "abuser", "strategyName": "AVG"}
    ).encode(),
    RequestCode.SET_MESSAGE_REQUEST_MODE: json.dumps(
        {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP"}
    ).encode(),
    RequestCode.BATCH_ACK_MESSAGE: json.dumps(
        {
            "brokerName": "b",
            "acks": [
                {"b": "AQ==", "c": GROUP, "it": 1, "pt": 1, "q": 0, "r": "0", "so": 0, "t": TOPIC}
            ],
        }
    ).encode(),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: json.dumps(
        {"topicConfigList": [{"topicName": TOPIC, "attributes": {"+message.type": "FIFO"}}]}
    ).encode(),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: json.dumps(
        {"groupName": GROUP, "retryQueueNums": 1, "retryMaxTimes": 3}
    ).encode(),
}
NAMESRV_BODIES: dict[int, bytes] = {
    RequestCode.REGISTER_BROKER: encode_registration(REGISTRATION),
    RequestCode.QUERY_DATA_VERSION: encode_body(DataVersion(counter=1, timestamp=1)),
    RequestCode.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=true\n",
}


@dataclass(frozen=True)
class Role:
    """A server's codes, with the types of their headers."""

    name: str
    headers: Mapping[int, type[Header]]
    bodies: Mapping[int, bytes]
    short_names: frozenset[int] = frozenset()
    """Codes whose members have names of one letter."""

    def types(self, code: int) -> dict[str, str]:
        """Wire name → ``str``, ``int`` or ``bool`` of all members."""
        short = {long: name for name, long in SEND_LONG_NAMES.items()}
        found = {}
        for each in msgspec.structs.fields(self.headers[code]):
            name = short[each.encode_name] if code in self.short_names else each.encode_name
            found[name] = _base(each.type).__name__
        return found

    def members(self, code: int) -> dict[str, str]:
        """A header that the handler takes."""
        plain = {"int": "0", "bool": "false", "str": "x"}
        long = SEND_LONG_NAMES if code in self.short_names else {}
        return {
            name: VALUES.get(long.get(name, name), plain[kind])
            for name, kind in self.types(code).items()
        }

    def body(self, code: int) -> bytes:
        """A body that the handler takes."""
        return self.bodies.get(code, b"")


def _base(annotation: Any) -> type:
    """``str`` of ``Annotated[str, ...] | None``."""
    while origin := get_origin(annotation):
        inner = get_args(annotation)
        is_union = origin in (Union, UnionType)
        annotation = next(each for each in inner if not is_union or each is not type(None))
    return annotation  # type: ignore[no-any-return]


def _headers(routes: Mapping[int, Route[Any]]) -> dict[int, type[Header]]:
    return {code: route.decode.__self__ for code, route in routes.items()}  # type: ignore[attr-defined]


BROKER = Role(
    "broker",
    _headers(ROUTER.routes),
    BROKER_BODIES,
    frozenset(
        code for code, route in ROUTER.routes.items() if route.decode.__name__ == "decode_short"
    ),
)
_OF_THE_KERNEL = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.QUERY_CONSUME_QUEUE,
}
BROKER_KERNEL = replace(
    BROKER, headers={code: BROKER.headers[code] for code in sorted(_OF_THE_KERNEL)}
)
"""The codes of a broker whose answers depend on its kernel; all others are Python's alone."""

NAMESRV = Role("namesrv", _headers(namesrv_handlers.router.routes), NAMESRV_BODIES)
