"""What RocketMQ refuses before it sends: names, bodies, batches (``Validators`` of 4.9.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kerolox.client.core.checking import (
    check_encodable,
    not_whole,
    unencodable,
)
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.message import (
    ITEM_END,
    NAME_END,
    Message,
    MessageQueue,
    PropertyKey,
    check_body_type,
    check_parts,
    encode_properties,
)
from kerolox.protocol.names import (
    GROUP_CHARACTERS_MAX,
    RETRY_PREFIX,
    TOPIC_CHARACTERS_MAX,
    has_name_characters,
    is_closed_topic,
    is_system_topic,
)
from kerolox.text import printable, wrong_type

_SHOWN_NAMES = {PropertyKey.KEYS: "keys", PropertyKey.TAGS: "tags"}


def check_topic(topic: str) -> None:
    """Refuse a topic name that no broker takes by a MessageRejectedError: blank, longer than 127,
    or with a character outside ``%|a-zA-Z0-9_-``.
    """
    fault = _name_fault(topic, TOPIC_CHARACTERS_MAX)
    if fault:
        raise MessageRejectedError(f"topic {printable(topic)!r} {fault}")


def check_send_topic(topic: str) -> None:
    """As :func:`check_topic`, and refuse the topics that only the broker writes."""
    check_topic(topic)
    if is_closed_topic(topic):
        raise MessageRejectedError(f"topic {topic!r} is written by the broker only; use another")


def check_new_topic(topic: str) -> None:
    """Refuse a topic that nobody may create by a MessageRejectedError: illegal, RocketMQ's own."""
    check_topic(topic)
    if is_system_topic(topic):
        raise MessageRejectedError(f"topic {topic!r} belongs to RocketMQ itself; use another")


def check_producer_group(group: str) -> None:
    """Refuse a producer group name by a ConfigError: blank, longer than 255, illegal characters, or
    ``DEFAULT_PRODUCER``.
    """
    _check_group(group, "producer", "DEFAULT_PRODUCER")


def check_consumer_group(group: str) -> None:
    """Refuse a consumer group name by a ConfigError: blank, longer than 255, illegal characters, or
    ``DEFAULT_CONSUMER``.
    """
    _check_group(group, "consumer", "DEFAULT_CONSUMER")


def _check_group(group: str, kind: str, reserved: str) -> None:
    fault = _name_fault(group, GROUP_CHARACTERS_MAX)
    if fault:
        raise ConfigError(f"{kind} group {printable(group)!r} {fault}")
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
    """Refuse an empty body and one over the limit, or no bytes; the MessageRejectedError has size
    and limit.
    """
    if type(body) is not bytes:
        check_body_type(body)
    if not body:
        raise MessageRejectedError("the body is empty; a message needs at least one byte")
    if len(body) > bytes_max:
        raise MessageRejectedError(f"the body has {len(body)} bytes; the limit is {bytes_max}")


DEDUP_KEY_BYTES_MAX = 255
"""As many as an id may have."""


def checked_key(dedup_key: str | None) -> str:
    """The key by which a broker knows a message again; empty: it has none. MessageRejectedError: it
    is no text, empty, longer than 255 bytes, or has characters that no property may have."""
    if dedup_key is None:
        return ""
    if not isinstance(dedup_key, str) or not dedup_key:
        raise MessageRejectedError(f"dedup_key is {printable(repr(dedup_key))}; it must be a text")
    check_encodable(dedup_key, "dedup_key", MessageRejectedError)
    if len(dedup_key.encode()) > DEDUP_KEY_BYTES_MAX:
        raise MessageRejectedError(
            f"dedup_key has {len(dedup_key.encode())} bytes; the limit is {DEDUP_KEY_BYTES_MAX}"
        )
    if not dedup_key.isprintable() or "," in dedup_key:
        # The ids of a batch are joined by commas.
        raise MessageRejectedError(
            f"dedup_key {printable(dedup_key)!r} has a comma or a character that is not printable"
        )
    return dedup_key


def checked_keys(dedup_keys: Sequence[str] | None, count: int) -> list[str]:
    """The keys of a batch of so many messages, none or one for each. MessageRejectedError: another
    number of them, or one that can't be a key."""
    if dedup_keys is None:
        return []
    if isinstance(dedup_keys, str) or len(dedup_keys) != count:
        raise MessageRejectedError(f"{count} messages, and dedup_keys are not as many")
    return [checked_key(key) for key in dedup_keys]


def check_delay_level(level: object, *, level_max: int) -> None:
    """Refuse by a MessageRejectedError what is no whole number from 0 to ``level_max``. A broker
    itself takes any: it delays by its highest level where one is too high, and not at all where one
    is negative.
    """
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= level_max:
        raise MessageRejectedError(
            f"delay_level is {level!r}; it must be from 0 (no delay) to {level_max}. Where the "
            "brokers' messageDelayLevel has more levels, set delay_level_max in the settings"
        )


def property_text(properties: Mapping[str, str]) -> str:
    """Property text that reads back as these properties and no others.

    MessageRejectedError: a name or a value has U+0001 or U+0002 in it, which end names and values
    there: what follows would be read as further properties; or half of a surrogate pair, which has
    no encoding.
    """
    text, count = encode_properties(properties), len(properties)
    if unencodable(text) is not None:
        for name, value in properties.items():
            check_encodable(name, "the name of a property", MessageRejectedError)
            what = _SHOWN_NAMES.get(name, f"property {name!r}")
            check_encodable(value, what, MessageRejectedError)
    if text.count(NAME_END) != count or text.count(ITEM_END) != max(count - 1, 0):
        for name, value in properties.items():
            _check_property_part(name, f"the name of property {name!r}")
            _check_property_part(str(value), _SHOWN_NAMES.get(name, f"property {name!r}"))
    return text


def with_properties(text: str, more: Mapping[str, str]) -> str:
    """Property text with further properties behind it. Errors: see :func:`property_text`."""
    added = property_text(more)
    return f"{text}{ITEM_END}{added}" if text else added


def _check_property_part(part: str, what: str) -> None:
    for position, character in enumerate(part):
        if character in (NAME_END, ITEM_END):
            raise MessageRejectedError(
                f"{what} has U+{ord(character):04X} at position {position}, which ends a name or "
                "a value where properties travel as one text; remove it, or encode what has it"
            )


def check_message(message: object) -> None:
    """Refuse what is no message, or has a part of a wrong type; the MessageRejectedError names it.
    Texts are looked into where they are encoded: :func:`property_text`.
    """
    if not isinstance(message, Message):
        raise MessageRejectedError(f"message {wrong_type(message, 'Message')}")
    check_parts(message)
    if type(message.topic) is not str and not isinstance(message.topic, str):
        raise MessageRejectedError(f"topic {wrong_type(message.topic, 'str')}")
    if type(message.flag) is not int and (
        isinstance(message.flag, bool) or not isinstance(message.flag, int)
    ):
        raise MessageRejectedError(f"flag {wrong_type(message.flag, 'int')}")
    if type(message.wait_store_ok) is not bool:
        raise MessageRejectedError(f"wait_store_ok {wrong_type(message.wait_store_ok, 'bool')}")


def check_ways(queue: object, selector: object, round_up: object, timeout_ms: object) -> None:
    """Refuse arguments of a send that are of a wrong type by a ConfigError: a queue that is a
    number would count for none.
    """
    if queue is not None and not isinstance(queue, MessageQueue):
        raise ConfigError(f"queue {wrong_type(queue, 'MessageQueue')}")
    if selector is not None and not callable(selector):
        raise ConfigError(f"selector {wrong_type(selector, 'function')}")
    if type(round_up) is not bool:
        raise ConfigError(f"round_up {wrong_type(round_up, 'bool')}")
    if timeout_ms is not None and (fault := not_whole(timeout_ms)) is not None:
        raise ConfigError(f"timeout_ms {fault}")


def check_batch(messages: Sequence[Message]) -> None:
    """Refuse messages that can't travel together by a MessageRejectedError: none at all, several
    topics, delay levels, a retry topic, or some that wait for the store and some that don't.
    """
    if not messages:
        raise MessageRejectedError("the batch is empty")
    for message in messages:
        check_message(message)
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageRejectedError(f"retry topic {first.topic!r} takes no batches")
    for message in messages:
        if message.topic != first.topic:
            raise MessageRejectedError(
                f"a batch has one topic; this one has {first.topic!r} and {message.topic!r}"
            )
        if message.delay_level:
            raise MessageRejectedError("a batch can't be delayed; send delayed messages singly")
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageRejectedError("wait_store_ok must be the same for all messages of a batch")
