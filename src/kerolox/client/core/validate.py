"""What RocketMQ refuses before it sends: names, bodies, batches (``Validators`` of 4.9.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.protocol.names import (
    GROUP_CHARACTERS_MAX,
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_CHARACTERS_MAX,
    has_name_characters,
)

if TYPE_CHECKING:
    from kerolox.message import Message


def check_topic(topic: str) -> None:
    """Refuse a topic name that no broker takes.

    Raises:
        MessageRejectedError: blank, longer than 127, or with a character outside ``%|a-zA-Z0-9_-``.
    """
    fault = _name_fault(topic, TOPIC_CHARACTERS_MAX)
    if fault:
        raise MessageRejectedError(f"topic {topic!r} {fault}")


def check_send_topic(topic: str) -> None:
    """As :func:`check_topic`, and refuse the topics that only the broker writes."""
    check_topic(topic)
    if topic in NOT_SENDABLE_TOPICS:
        raise MessageRejectedError(f"topic {topic!r} is written by the broker only; use another")


def is_system_topic(topic: str) -> bool:
    """The topic belongs to RocketMQ itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def check_new_topic(topic: str) -> None:
    """Refuse a topic that nobody may create.

    Raises:
        MessageRejectedError: the name is illegal or RocketMQ's own.
    """
    check_topic(topic)
    if is_system_topic(topic):
        raise MessageRejectedError(f"topic {topic!r} belongs to RocketMQ itself; use another")


def check_producer_group(group: str) -> None:
    """Refuse a producer group name.

    Raises:
        ConfigError: blank, longer than 255, illegal characters, or ``DEFAULT_PRODUCER``.
    """
    _check_group(group, "producer", "DEFAULT_PRODUCER")


def check_consumer_group(group: str) -> None:
    """Refuse a consumer group name.

    Raises:
        ConfigError: blank, longer than 255, illegal characters, or ``DEFAULT_CONSUMER``.
    """
    _check_group(group, "consumer", "DEFAULT_CONSUMER")


def _check_group(group: str, kind: str, reserved: str) -> None:
    fault = _name_fault(group, GROUP_CHARACTERS_MAX)
    if fault:
        raise ConfigError(f"{kind} group {group!r} {fault}")
    if group == reserved:
        raise ConfigError(f"{kind} group {group!r} is reserved; choose another name")


def _name_fault(name: str, characters_max: int) -> str | None:
    if not name or name.isspace():
        return "is blank"
    if len(name) > characters_max:
        return f"has {len(name)} characters; the limit is {characters_max}"
    if not has_name_characters(name):
        return "has an illegal character; allowed are % | a-z A-Z 0-9 _ -"
    return None


def check_body(body: bytes, *, bytes_max: int) -> None:
    """Refuse an empty body and one over the limit.

    Raises:
        MessageRejectedError: with the size and the limit.
    """
    if not body:
        raise MessageRejectedError("the body is empty; a message needs at least one byte")
    if len(body) > bytes_max:
        raise MessageRejectedError(f"the body has {len(body)} bytes; the limit is {bytes_max}")


def check_batch(messages: Sequence[Message]) -> None:
    """Refuse messages that can't travel together.

    Raises:
        MessageRejectedError: none at all, several topics, delay levels, a retry topic, or some that
            wait for the store and some that don't.
    """
    if not messages:
        raise MessageRejectedError("the batch is empty")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageRejectedError(f"retry topic {first.topic!r} takes no batches")
    for message in messages:
        if message.topic != first.topic:
            raise MessageRejectedError(
                f"a batch has one topic; this one has {first.topic!r} and {message.topic!r}"
            )
        if message.delay_level > 0:
            raise MessageRejectedError("a batch can't be delayed; send delayed messages singly")
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageRejectedError("wait_store_ok must be the same for all messages of a batch")
