"""What calls may say: limits, codes and texts of RocketMQ 5.3.3's proxy (``GrpcValidator``)."""

from __future__ import annotations

import re

from kerolox.broker.grpc.answers import AnswerError
from kerolox.message import RESERVED_PROPERTIES, TIMERS, PropertyKey
from kerolox.protocol.codes import LanguageCode
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.names import (
    NAME_BYTES_MAX,
    NAME_CHARACTERS,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    TOPIC_CHARACTERS_MAX,
    is_reserved_group,
    is_system_topic,
)
from kerolox.text import printable

GROUP_CHARACTERS_MAX = TOPIC_BYTES_MAX - len(RETRY_PREFIX)
"""A group that is longer could receive nothing: its topic of retries is too long for a record.
RocketMQ 5.3.3 has records with longer topics, and takes 255."""

PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16 * 1024
"""User properties, with tag and keys (``maxUserPropertySize``)."""

MESSAGE_GROUP_BYTES_MAX = 63
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10_000, 12 * 3_600_000
RECOVERY_MS_MAX = 3_600_000
"""``maxTransactionRecoverySecond``."""
_NAME = re.compile(f"[{NAME_CHARACTERS}]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

SHARDING_KEY = "__SHARDINGKEY"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
DEAD_LETTER_TOPIC, DEAD_LETTER_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"

SYSTEM_PROPERTIES = (
    RESERVED_PROPERTIES
    | TIMERS
    | {
        PropertyKey.TIMER_OUT,
        PropertyKey.TIMER_ENQUEUED,
        PropertyKey.TIMER_DEQUEUED,
        PropertyKey.TIMER_ROLL_TIMES,
        PropertyKey.TIMER_DELETES,
        PropertyKey.POP_RECEIPT,
        PropertyKey.FIRST_POP_TIME,
        PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET,
        PropertyKey.CHECK_IMMUNITY_TIME,
        PropertyKey.INNER_MULTI_DISPATCH,
        PropertyKey.START_DELIVER_TIME,
        SHARDING_KEY,
        BORN_HOST,
        BORN_TIMESTAMP,
        "BORN_HOST",
        TRACE_CONTEXT,
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_ID,
        "TIMER_DELAY_LEVEL",
    }
)
"""Names that no user property has, and that consumers see none of."""


def topic_name(topic: pb.Resource) -> str:
    """A topic's name; AnswerError ILLEGAL_TOPIC."""
    name: str = topic.name
    if len(topic.resource_namespace) > NAME_BYTES_MAX:
        raise AnswerError(
            pb.ILLEGAL_TOPIC, f"the namespace is longer than {NAME_BYTES_MAX} characters"
        )
    _check_name(name, "topic", TOPIC_CHARACTERS_MAX, pb.ILLEGAL_TOPIC)
    if is_system_topic(name):
        raise AnswerError(pb.ILLEGAL_TOPIC, f"cannot access system topic: {name}")
    return name


def group_name(group: pb.Resource) -> str:
    """A group's name; AnswerError ILLEGAL_CONSUMER_GROUP."""
    name: str = group.name
    _check_name(name, "consumerGroup", GROUP_CHARACTERS_MAX, pb.ILLEGAL_CONSUMER_GROUP)
    if is_reserved_group(name):
        raise AnswerError(pb.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group: {name}")
    return name


def _check_name(name: str, what: str, characters_max: int, code: int) -> None:
    if not name.strip():
        raise AnswerError(code, f"{what} name cannot be blank")
    if len(name) > characters_max:
        raise AnswerError(code, f"{what} name is longer than {characters_max} characters")
    if not _NAME.fullmatch(name):
        raise AnswerError(
            code,
            f"the {what} name {printable(name)!r} has characters other than {NAME_CHARACTERS}",
        )


def milliseconds(time: pb.Duration) -> int:
    """Of a ``Duration`` or a ``Timestamp``."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def set_ms(time: pb.Duration | pb.Timestamp, ms: int) -> None:
    """Make a ``Duration`` or a ``Timestamp`` so many milliseconds."""
    time.seconds, time.nanos = ms // 1000, ms % 1000 * 1_000_000


def receive_invisible_ms(duration: pb.Duration) -> int:
    """How long a received message is invisible; AnswerError ILLEGAL_INVISIBLE_TIME."""
    found = milliseconds(duration)
    if not INVISIBLE_MS_MIN <= found <= INVISIBLE_MS_MAX:
        raise AnswerError(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is {found} ms; it must be {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX}",
        )
    return found


def changed_invisible_ms(duration: pb.Duration) -> int:
    """The same of a change, which may say 0."""
    found = milliseconds(duration)
    if not 0 <= found <= INVISIBLE_MS_MAX:
        raise AnswerError(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is {found} ms; it must be 0 to {INVISIBLE_MS_MAX}",
        )
    return found


def check_message(
    message: pb.Message, *, body_bytes_max: int, language: LanguageCode = LanguageCode.OTHER
) -> None:
    """A message that is sent; ``language``: of its client."""
    system = message.system_properties
    if not message.body:
        # The client in Rust panics at a code that it does not know, and 5.0.0 does not know this.
        code = pb.BAD_REQUEST if language is LanguageCode.RUST else pb.MESSAGE_BODY_EMPTY
        raise AnswerError(code, "message body cannot be empty")
    if len(message.body) > body_bytes_max:
        raise AnswerError(
            pb.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {body_bytes_max}",
        )
    if not system.message_id.strip():
        raise AnswerError(pb.ILLEGAL_MESSAGE_ID, "message id cannot be null")
    _check_text(system.message_id, "message id", pb.ILLEGAL_MESSAGE_ID)
    if len(system.message_id.encode()) > NAME_BYTES_MAX:
        raise AnswerError(
            pb.ILLEGAL_MESSAGE_ID, f"message id is longer than {NAME_BYTES_MAX} bytes"
        )
    for what, text in (("trace context", system.trace_context), ("host", system.born_host)):
        if _CONTROL.search(text):
            raise AnswerError(pb.BAD_REQUEST, f"{what} cannot contain control character")
    # What is empty is as what is not there.
    if system.tag:
        _check_text(system.tag, "tag", pb.ILLEGAL_MESSAGE_TAG)
        if "|" in system.tag:
            raise AnswerError(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if sum(map(len, system.keys)) > PROPERTIES_BYTES_MAX:
        raise AnswerError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of the keys is too large, max: {PROPERTIES_BYTES_MAX}",
        )
    for key in filter(None, system.keys):
        _check_text(key, "key", pb.ILLEGAL_MESSAGE_KEY)
    if system.message_group:
        _check_text(system.message_group, "message group", pb.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) > MESSAGE_GROUP_BYTES_MAX:
            raise AnswerError(
                pb.ILLEGAL_MESSAGE_GROUP,
                f"message group exceed the max size {MESSAGE_GROUP_BYTES_MAX + 1}",
            )
    _check_properties(message)


def _check_properties(message: pb.Message) -> None:
    properties, system = message.user_properties, message.system_properties
    if len(properties) > PROPERTIES_MAX:
        raise AnswerError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max: {PROPERTIES_MAX}"
        )
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES:
            raise AnswerError(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}"
            )
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise AnswerError(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {printable(name)!r} has a control character",
            )
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise AnswerError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max: {PROPERTIES_BYTES_MAX}",
        )


def _check_text(text: str, what: str, code: int) -> None:
    if not text.strip():
        raise AnswerError(code, f"{what} cannot be blank")
    if _CONTROL.search(text):
        raise AnswerError(code, f"{what} cannot contain control character")
