"""JSON bodies with types: what brokers, name servers and clients exchange beside records.

Fields stand in alphabetical order of their wire names, as fastjson writes them, so that
:func:`wire_value` gives the members in RocketMQ's order. Unknown members (a 5.x peer's
``stateVersion``) are ignored. Anything malformed is a :class:`BodyError`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from kerolox.errors import LocalProtocolError
from kerolox.message import ALL_TAGS, MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    Address,
    Expression,
    Int32,
    Int64,
    Keys,
    Name,
    TopicName,
    text_fault,
)
from kerolox.text import printable

REQUEST_BODY_BYTES_MAX = 1024 * 1024
"""Longest JSON body of a client's request: some ten thousand subscriptions or locks."""

HEARTBEAT_GROUPS_MAX = 2_048
"""Groups of one kind in a heartbeat; the client is in all of them at once."""

LENIENT_BODY_BYTES_MAX = 8 * 1024
"""Longest body that a server reads where it is no ordinary JSON, which no client sends to it: that
is read character by character."""

LOCK_QUEUES_MAX = 4_096
"""Queues of one broker that a consumer locks or unlocks with one request."""

LENIENT_BODY_VALUES_MAX = 10_000
"""Values of a body that are read as fastjson would: those of some hundred subscriptions."""

_Body = TypeVar("_Body", bound=msgspec.Struct)

"""Java's widths: no number may come in that could not go out again to a Java peer or a kernel."""


class BodyError(ValueError):
    """A body is no JSON, or not of the shape that the request needs."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class DataVersion(_Struct, frozen=True, kw_only=True):
    """Version of a table: a count of its changes and the time of the last one."""

    counter: Int64 = 0
    timestamp: Int64 = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)


class TopicConfig(_Struct, frozen=True, kw_only=True):
    """What a broker knows of a topic."""

    attributes: dict[Name, Name] | None = None
    """Of RocketMQ 5 (:mod:`kerolox.protocol.attributes`). None: there are none, or who says it does
    not know of any, as one of 4.9."""
    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: Name = "SINGLE_TAG"
    topic_name: TopicName
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16

    def __str__(self) -> str:
        """As RocketMQ prints it in remarks."""
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={permission_text(self.perm)}, "
            f"topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag}, "
            f"order={'true' if self.order else 'false'}]"
        )


class TopicConfigTable(_Struct, frozen=True, kw_only=True):
    """``TopicConfigSerializeWrapper``: topics.json and the body of a registration."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[TopicName, TopicConfig] = {}


class TopicList(_Struct, frozen=True, kw_only=True):
    """``CreateTopicListRequestBody``: UPDATE_AND_CREATE_TOPIC_LIST (18). The ``attributes`` of a
    topic are changes: each name has a sign before it."""

    topic_config_list: list[TopicConfig]


class SubscriptionGroupConfig(_Struct, frozen=True, kw_only=True):
    """What a broker knows of a consumer group."""

    attributes: dict[Name, Name] | None = None
    """As those of a :class:`TopicConfig`."""
    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool | None = None
    """Of RocketMQ 5: gRPC clients get the messages of a queue in order. None: no."""
    group_name: Name
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int32 = 1


class SubscriptionGroupTable(_Struct, frozen=True, kw_only=True):
    """subscriptionGroup.json."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[Name, SubscriptionGroupConfig] = {}


class SubscriptionData(_Struct, frozen=True, kw_only=True):
    """One topic that a consumer subscribes to."""

    class_filter_mode: bool = False
    code_set: list[Int32] = []
    expression_type: Name | None = "TAG"
    sub_string: Expression | None = ALL_TAGS
    sub_version: Int64 = 0
    tags_set: list[Keys] = []
    topic: TopicName

    @property
    def is_tag_type(self) -> bool:
        """It filters by tags; else by an expression such as SQL92."""
        return self.expression_type in (None, "", "TAG")

    @property
    def tag_codes(self) -> tuple[int, ...] | None:
        """The codes to match; None when every message matches."""
        if self.class_filter_mode or self.sub_string in (None, "", ALL_TAGS):
            return None
        return tuple(self.code_set)


class ProducerData(_Struct, frozen=True, kw_only=True):
    """A producer group of a heartbeat."""

    group_name: Name


class ConsumerData(_Struct, frozen=True, kw_only=True):
    """A consumer group of a heartbeat."""

    consume_from_where: Name = "CONSUME_FROM_LAST_OFFSET"
    consume_type: Name = "CONSUME_PASSIVELY"
    group_name: Name
    message_model: Name = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(_Struct, frozen=True, kw_only=True):
    """HEART_BEAT (34)."""

    client_id: Name = msgspec.field(name="clientID")
    consumer_data_set: Annotated[
        list[ConsumerData], msgspec.Meta(max_length=HEARTBEAT_GROUPS_MAX)
    ] = []
    producer_data_set: Annotated[
        list[ProducerData], msgspec.Meta(max_length=HEARTBEAT_GROUPS_MAX)
    ] = []


class ConnectedClient(_Struct, frozen=True, kw_only=True):
    """One client in the answers of 203 and 204."""

    client_addr: Address
    client_id: Name
    language: Name
    version: Int32
    protocol_type: Name | None = None
    """Kerolox's own: what it speaks, unless that is remoting."""
    client_version: Name | None = None
    """Kerolox's own: the version that it names, of a client by gRPC."""


class _QueueMember(_Struct, frozen=True, kw_only=True):
    broker_name: Name | None = ""
    queue_id: Int32
    topic: TopicName


class LockBatchBody(_Struct, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: Name
    consumer_group: Name
    mq_set: Annotated[list[_QueueMember], msgspec.Meta(max_length=LOCK_QUEUES_MAX)] = []

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues to lock or unlock."""
        return [MessageQueue(q.topic, q.broker_name or "", q.queue_id) for q in self.mq_set]


class QueryAssignmentBody(_Struct, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT (400)."""

    topic: TopicName
    consumer_group: Name
    client_id: Name
    strategy_name: Name | None = None
    message_model: Name | None = None


class CheckClientBody(_Struct, frozen=True, kw_only=True):
    """CHECK_CLIENT_CONFIG (46)."""

    client_id: Name | None = ""
    group: Name | None = ""
    subscription_data: SubscriptionData | None = None


def decode_body(
    data: bytes | memoryview, body_type: type[_Body], *, lenient_bytes_max: int | None = None
) -> _Body:
    """Decode a JSON body; fastjson's bare and object keys are understood, up to that length.
    BodyError: it is no JSON, or a member is missing or has the wrong type.
    """
    try:
        loaded = fastjson.loads(data, lenient_bytes_max=lenient_bytes_max)
        return msgspec.convert(loaded, body_type, strict=False)
    except (fastjson.FastjsonError, msgspec.ValidationError) as error:
        name = getattr(body_type, "__name__", str(body_type))
        raise BodyError(f"the body is no {name}: {printable(str(error))}") from None


def decode_request(data: bytes | memoryview, body_type: type[_Body]) -> _Body:
    """As :func:`decode_body`, for what clients send: with bounds, since others wait meanwhile.

    What is no such body as it stands, up to ``LENIENT_BODY_VALUES_MAX``, is read as fastjson would:
    the C++ client, and those in Python and Node.js above it, write enums as numbers, the .NET
    client has names of its own spelling, others write null where they have nothing.

    BodyError: also when it is longer than ``REQUEST_BODY_BYTES_MAX``, or a text in it longer than
    its type allows (``names``).
    """
    if len(data) > REQUEST_BODY_BYTES_MAX:
        raise BodyError(
            f"the body has {len(data)} bytes; at most {REQUEST_BODY_BYTES_MAX} are taken"
        )
    body = _decode_liberal(data, body_type)
    fault = text_fault(body)
    if fault is not None:
        raise BodyError(f"the body's {fault}")
    return body


def _decode_liberal(data: bytes | memoryview, body_type: type[_Body]) -> _Body:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # As nearly always: at once what takes two passes otherwise.
        return msgspec.json.decode(data, type=body_type, strict=False)
    loaded: object = None
    try:
        loaded = fastjson.loads(data, lenient_bytes_max=LENIENT_BODY_BYTES_MAX)
        return msgspec.convert(loaded, body_type, strict=False)
    except (fastjson.FastjsonError, msgspec.ValidationError) as error:
        if isinstance(error, msgspec.ValidationError):
            try:
                read = _AsFastjson(_INNER_NAMES | _lower(body_type)).read(loaded)
                return msgspec.convert(read, body_type, strict=False)
            except (fastjson.FastjsonError, msgspec.ValidationError):
                pass
        raise BodyError(f"the body is no {body_type.__name__}: {printable(str(error))}") from None


def encode_body(value: object) -> bytes:
    """Encode as fastjson does; structs, mappings, queues and lists may be nested.
    LocalProtocolError: a text has no encoding: it has half of a surrogate pair.
    """
    try:
        return fastjson.dumps(wire_value(value))
    except UnicodeEncodeError:
        raise LocalProtocolError(
            f"the body of a {type(value).__name__} has a text with half of a surrogate pair, which"
            " no encoding has; remove it"
        ) from None


_PLAIN = frozenset((str, int, float, bool))

_REQUEST_DEPTH_MAX = 8
"""Levels of a request's body that are looked into; those that clients send have five."""

_ENUMS = {
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
    "consumeType": (CONSUME_ACTIVELY, CONSUME_PASSIVELY),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
}
"""Names by number, as Java declares them."""


def _lower(*structs: type[msgspec.Struct]) -> dict[str, str]:
    """The members of structs as a body names them, by their names in lower case."""
    return {name.lower(): name for each in structs for name in each.__struct_encode_fields__}


_INNER_NAMES = _lower(ConsumerData, SubscriptionData, _QueueMember)


class _AsFastjson:
    """Gives a request's body its names as RocketMQ spells them and its enums as names, and takes
    out what is null."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._values_left = LENIENT_BODY_VALUES_MAX

    def read(self, value: object, depth: int = 0) -> object:
        """The value with all in it; FastjsonError: more than ``LENIENT_BODY_VALUES_MAX`` values."""
        self._values_left -= 1
        if self._values_left < 0:
            raise fastjson.FastjsonError(f"more than {LENIENT_BODY_VALUES_MAX} values")
        if depth == _REQUEST_DEPTH_MAX:
            return value
        if isinstance(value, list):
            return [self.read(each, depth + 1) for each in value]
        if not isinstance(value, dict):
            return value
        members: dict[object, object] = {}
        for key, member in value.items():
            if member is not None:
                name = self._names.get(str(key).replace("_", "").lower(), key)
                enum = _ENUMS.get(str(name), ())
                if type(member) is int and 0 <= member < len(enum):
                    members[name] = enum[member]
                else:
                    members[name] = self.read(member, depth + 1)
        return members


@functools.cache
def _wire_names(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))


def wire_value(value: object) -> object:
    """``value`` with its structs turned into mappings of wire names; None members are left out."""
    if isinstance(value, msgspec.Struct):
        members: dict[str, object] = {}
        for wire, name in _wire_names(type(value)):
            member = getattr(value, name)
            if member is not None:
                # Nearly all are plain, and a broker has tens of thousands of them.
                members[wire] = member if type(member) in _PLAIN else wire_value(member)
        return members
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, dict):
        return {key: wire_value(member) for key, member in value.items() if member is not None}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [wire_value(member) for member in value]
    return value


def permission_text(perm: int) -> str:
    """``perm2String``: R, W and X (inherit), or dashes."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", Perm.READ), ("W", Perm.WRITE), ("X", Perm.INHERIT))
    )
