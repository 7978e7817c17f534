"""How long names and other texts of a request may be, and which characters names have.

RocketMQ's ``Validators`` run in its clients; its servers take what comes. Here every text that a
header or a request's body may have carries its bound in its type (``Name``, ``TopicName``,
``Properties`` ...), and :func:`text_fault` checks all of a struct at once: a table that clients
fill is never given a name that its file, or another server, could not hold.

A name is checked for its length at every code. Its characters are checked only where RocketMQ's
broker does (topics that are made): groups and client ids in other scripts work.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Annotated, TypeGuard, cast, get_args, get_type_hints

import msgspec

from kerolox.protocol.codes import HEADER_BYTES_MAX
from kerolox.text import printable

NAME_BYTES_MAX = 255
"""Longest name (group, client id, broker, cluster ...) in UTF-8. A topic may have the prefix of
retries or dead letters before the name of its group."""
TOPIC_CHARACTERS_MAX = 127
"""Longest topic that can be made."""
TOPIC_BYTES_MAX = 127
"""The same in a record, whose byte for the length has a sign."""
GROUP_CHARACTERS_MAX = 255
"""Longest group that a client may be made with."""
NAME_CHARACTERS = "%|a-zA-Z0-9_-"
"""What a topic's name, and the group of our clients, consists of (``Validators.VALID_PATTERN``)."""
PROPERTIES_BYTES_MAX = 32_767
"""Longest properties of a record, and so longest key or id that a message can have."""
EXPRESSION_BYTES_MAX = 1024 * 1024
"""Longest subscription; what evaluates it, SQL92 or tags, has narrower bounds of its own."""
ADDRESS_BYTES_MAX = NAME_BYTES_MAX + len("[]:65535")
"""A host name or an address, with its port."""
ATTRIBUTES_BYTES_MAX = 4 * 1024
"""Changes of a topic's attributes in one request."""
NAMES_BYTES_MAX = 64 * 1024
"""Several names in one text."""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
"""Of light message queues."""
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
"""Behind a cluster's name: where its replies are stored."""

ACCESS_KEY_FIELD, SECURITY_TOKEN_FIELD = "AccessKey", "SecurityToken"
SIGNATURE_FIELD = "Signature"
"""Header fields of a signed request: who signs, and the signature (``SessionCredentials``)."""
ONS_CHANNEL_FIELD, REQUEST_TYPE_FIELD = "OnsChannel", "ReqT"
"""Header fields that some clients add to each request; they are signed like others."""
UNIQUE_KEY_QUERY_FIELD = "_UNIQUE_KEY_QUERY"
"""Header field of a query by the producer's id; no part of a signature."""

AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose route and permissions a new topic takes over."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where messages wait for their delay to end."""
SCHEDULE_QUEUES = 18
"""Its queues, one for each delay level of RocketMQ's own ``messageDelayLevel``."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Where messages wait for their moment, in queue 0."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Whose offsets say how far the broker is in both."""
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

NOT_SENDABLE_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
"""Topics that clients may not send to (``TopicValidator``)."""
SYSTEM_TOPICS = NOT_SENDABLE_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
"""What names of the broker's own topics may begin with (``TopicValidator``)."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
"""What names of the broker's own groups begin with (``MixAll``)."""
REVIVE_TOPIC_PREFIX = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
"""The log of pops of a RocketMQ 5 broker has the name of the cluster behind it
(``buildClusterReviveTopic``)."""
REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""Reads that log: its offset of a queue is the last record that is dealt with, not the next one."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of command-line tools, which every broker knows."""
MONITOR_GROUP = "__MONITOR_CONSUMER"
"""The group of ``mqadmin startMonitoring``."""
BUILT_IN_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has from its start."""
SYSTEM_GROUPS = frozenset((*BUILT_IN_GROUPS, MONITOR_GROUP, "DEFAULT_CONSUMER"))
"""Consumer groups that users have no use for."""

CONSUME_ACTIVELY, CONSUME_PASSIVELY = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"
"""How a member of a group consumes: pulling as it likes, or pushed (``ConsumeType``)."""

ACL_PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB")
"""What an account may do with a topic or group, as ``plain_acl.yml`` has it."""

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
"""The metric of messages stored, by topic (``Stats``)."""
GROUP_GET_NUMS = "GROUP_GET_NUMS"
"""The metric of messages delivered, by ``topic@group``."""

DEFAULT_REGION = "DefaultRegion"
"""The region of a broker that is given none."""

SHOWN_CHARACTERS = 32
"""Characters of a name that is too long, in the error about it."""

_NAME = re.compile(f"[{NAME_CHARACTERS}]+")


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own (``TopicValidator.isSystemTopic``). A broker has some more,
    of its own name and its cluster's."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_closed_topic(topic: str) -> bool:
    """Whether clients may not send to a topic. RocketMQ lets them send to the timer's: what came
    there would be stored under any topic that it names."""
    return topic in NOT_SENDABLE_TOPICS or topic == TIMER_TOPIC


def is_reserved_group(group: str) -> bool:
    """Whether a group is the broker's own by its name (``MixAll.isSysConsumerGroup``)."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether a group is RocketMQ's own: the broker's, or one of its tools."""
    return group in SYSTEM_GROUPS or is_reserved_group(group)


@dataclass(frozen=True, slots=True)
class TextBound:
    """Says in a type how long its text may be."""

    bytes_max: int
    is_topic: bool = False
    """A prefix of retries or dead letters does not count."""


Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Java's ``int`` and ``long``: no other number fits a member."""
Name = Annotated[str, TextBound(NAME_BYTES_MAX)]
"""A group, client id, broker, cluster, key of a key-value ..."""
TopicName = Annotated[str, TextBound(NAME_BYTES_MAX, is_topic=True)]
"""A topic, also that of a group's retries."""
Names = Annotated[str, TextBound(NAMES_BYTES_MAX)]
"""Several names with commas, or names put together as the key of a metric."""
Attributes = Annotated[str, TextBound(ATTRIBUTES_BYTES_MAX)]
"""Changes of a topic's attributes."""
Address = Annotated[str, TextBound(ADDRESS_BYTES_MAX)]
"""``host:port``."""
Keys = Annotated[str, TextBound(PROPERTIES_BYTES_MAX)]
"""A key or an id of a message: no longer than the properties that hold it."""
Expression = Annotated[str, TextBound(EXPRESSION_BYTES_MAX)]
"""What a consumer subscribes to."""
Properties = Annotated[str, TextBound(4 * PROPERTIES_BYTES_MAX)]
"""A message's properties. Those that are too long for a record are refused by who stores it, with
code 13, and after something was taken out of them; much longer ones are not even examined."""
LongText = Annotated[str, TextBound(HEADER_BYTES_MAX)]
"""A text that its handler bounds."""


def has_name_characters(name: str) -> bool:
    """Whether a name consists of ``NAME_CHARACTERS``; False for an empty one."""
    return _NAME.fullmatch(name) is not None


def length_fault(
    member: str, text: str, bytes_max: int = NAME_BYTES_MAX, *, is_topic: bool = False
) -> str | None:
    """What is wrong with the length of a text: names the member, its length and the limit. None:
    it is short enough.

    Args:
        member: whose text it is, as the error is to name it.
        text: the text.
        bytes_max: how long it may be in UTF-8.
        is_topic: leave out a prefix of retries or dead letters.
    """
    size = len(text)
    if size * 4 <= bytes_max or (size <= bytes_max and text.isascii()):
        return None
    if is_topic:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if text.startswith(prefix):
                bytes_max += len(prefix)
                break
    # A text of many bytes is not copied to be counted.
    if size <= bytes_max:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size <= bytes_max:
            return None
    return (
        f'{member} "{printable(text[:SHOWN_CHARACTERS])}..." has {size} bytes; '
        f"at most {bytes_max} are allowed"
    )


def text_fault(value: object, *, member_format: str = "{}") -> str | None:
    """What :func:`length_fault` says of the first text of a struct, of those inside it, or of a
    list of structs, that is longer than its type allows; None: nothing. ``member_format``: how the
    error shows the member's wire name.
    """
    # Those of one type together: a body has tens of thousands, of which few texts are long.
    pending: list[list[object]] = [value if isinstance(value, list) else [value]]
    while pending:
        structs = pending.pop()
        if not structs:
            continue
        struct_type = cast("type[msgspec.Struct]", type(structs[0]))
        for field, wire, bound, is_nested in text_bounds(struct_type):
            members = list(map(attrgetter(field), structs))
            if bound is not None:
                for text in _texts_longer_than(bound.bytes_max // 4, members):
                    name = member_format.format(wire)
                    fault = length_fault(name, text, bound.bytes_max, is_topic=bound.is_topic)
                    if fault is not None:
                        return fault
            if is_nested:
                pending.append(_inner_structs(members))
    return None


def _texts_longer_than(characters: int, members: list[object]) -> list[str]:
    """Of texts, lists of texts and maps by texts."""
    texts = [each for each in members if type(each) is str]
    if len(texts) < len(members):
        texts.extend(chain.from_iterable(filter(_is_filled_container, members)))
    if max(map(len, texts), default=0) <= characters:
        return []
    return [text for text in texts if len(text) > characters]


def _is_filled_container(member: object) -> TypeGuard[Iterable[str]]:
    return bool(member) and type(member) is not str


def _inner_structs(members: list[object]) -> list[object]:
    # Tens of thousands of members are mostly of one kind.
    kinds = set(map(type, members)) - {type(None)}
    if kinds <= {list}:
        return list(chain.from_iterable(cast("list[list[object]]", list(filter(None, members)))))
    found: list[object] = []
    for member in members:
        if isinstance(member, dict):
            found.extend(member.values())
        elif isinstance(member, list):
            found.extend(member)
        elif member is not None:
            found.append(member)
    return found


@functools.cache
def text_bounds(
    struct: type[msgspec.Struct],
) -> tuple[tuple[str, str, TextBound | None, bool], ...]:
    """The members of a struct that :func:`text_fault` examines.

    Of each its name, its wire name, the bound of its text (of each text of a list, of each key of a
    map), and whether structs are inside.
    """
    hints = get_type_hints(struct, include_extras=True)
    found = []
    for field, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        parts = list(_parts(hints[field]))
        bounds = [each for each in parts if isinstance(each, TextBound)]
        is_nested = any(isinstance(p, type) and issubclass(p, msgspec.Struct) for p in parts)
        if bounds or is_nested:
            found.append((field, wire, bounds[0] if bounds else None, is_nested))
    return tuple(found)


def _parts(hint: object) -> Iterator[object]:
    """A type and all that it is made of, with what ``Annotated`` adds."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)
