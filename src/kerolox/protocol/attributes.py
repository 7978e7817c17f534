"""Attributes of topics and groups (RocketMQ 5): names with a text each.

Tools change them by ``+name=value`` and ``-name``, joined by commas (``AttributeParser``). A broker
takes the names that it knows, checks their values, and keeps all others as it found them
(``AttributeUtil``). Texts of errors are those of RocketMQ 5.3.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kerolox.protocol.java_numbers import LONG_MAX, java_long
from kerolox.protocol.names import length_fault
from kerolox.text import printable

MESSAGE_TYPE = "message.type"
"""Attribute of a topic: the messages that it is for."""

DEDUP_WINDOW = "dedup.window.ms"
"""Attribute of a topic, Kerolox's own: for so long a message with a key that was stored is not
stored again."""

DEDUP_KEY = "dedup.key"
"""The same: the property that is the key, of :class:`DedupKey`."""

DEDUP_WINDOW_MS_MAX = 86_400_000
"""A day."""

RESERVE_TIME = "reserve.time"
"""Attribute of a topic: for how many hours a tier keeps its messages; brokers with one log keep the
attribute, and go by their settings."""

ATTRIBUTES_FIELD = "attributes"
"""Member of a slave's request for the tables, and of our answer: who answers knows attributes, so
what has none in the table has none."""

ATTRIBUTES_MAX = 64
"""Attributes of one topic or group; each name and each value is as long as a name may be."""

_NAME, _VALUE = re.compile(r"[^+,=\s-]+"), re.compile(r"[^,=\s]+")


class TopicMessageType(StrEnum):
    """Values of ``message.type``, in the order in which Java prints them."""

    UNSPECIFIED = "UNSPECIFIED"
    TRANSACTION = "TRANSACTION"
    FIFO = "FIFO"
    MIXED = "MIXED"
    """All of the others."""
    DELAY = "DELAY"
    NORMAL = "NORMAL"


class DedupKey(StrEnum):
    """Values of ``dedup.key``."""

    UNIQ_KEY = "UNIQ_KEY"
    """The id that a producer gives a message, and keeps over its tries."""
    KEYS = "KEYS"
    """All of the text of its keys."""


class DedupRule(NamedTuple):
    """What a topic does against messages that come twice."""

    window_ms: int
    by_keys: bool
    """KEYS counts, not UNIQ_KEY."""


def dedup_rule(attributes: Mapping[str, str] | None) -> DedupRule | None:
    """The rule of a topic with these attributes; None: it stores what comes. Values that no request
    can set, of a file, count as if they were not there."""
    window = java_long((attributes or {}).get(DEDUP_WINDOW, ""))
    if attributes is None or window is None or not 0 < window <= DEDUP_WINDOW_MS_MAX:
        return None
    return DedupRule(window, attributes.get(DEDUP_KEY) == DedupKey.KEYS)


_TYPES = (
    TopicMessageType.NORMAL,
    TopicMessageType.FIFO,
    TopicMessageType.DELAY,
    TopicMessageType.TRANSACTION,
)


def types_taken(attributes: Mapping[str, str] | None) -> tuple[TopicMessageType, ...]:
    """The types of messages that a topic takes from clients by gRPC; without the attribute all, as
    by remoting."""
    kind = (attributes or {}).get(MESSAGE_TYPE, TopicMessageType.MIXED)
    if kind == TopicMessageType.MIXED:
        return _TYPES
    return tuple(each for each in _TYPES if each == kind) or (TopicMessageType.NORMAL,)


class AttributesError(ValueError):
    """Attributes can't be changed in that way; the text says why."""


class Attribute(NamedTuple):
    """An attribute that brokers know."""

    fault: Callable[[str], str | None]
    """What is wrong with a value; None: nothing."""
    is_changeable: bool = True
    """False: it is given when the topic is made, and stays."""


def _one_of(*values: str) -> Callable[[str], str | None]:
    """``EnumAttribute``; ``values`` stand in the order in which Java prints the set."""
    text = f"value is not in set: [{', '.join(values)}]"
    return lambda value: None if value in values else text


def _only(*values: str, of: tuple[str, ...]) -> Callable[[str], str | None]:
    """The same, of which Kerolox has some alone."""
    is_known = _one_of(*of)

    def fault(value: str) -> str | None:
        if value in values:
            return None
        return is_known(value) or (
            f"value {value} is not supported by this broker; {', '.join(values)} is"
        )

    return fault


def _long(low: int, high: int = LONG_MAX) -> Callable[[str], str | None]:
    """``LongRangeAttribute``."""

    def fault(value: str) -> str | None:
        number = java_long(value)
        if number is None:
            return f'For input string: "{printable(value)}"'
        return None if low <= number <= high else f"value is not in range({low}, {high})"

    return fault


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(_only("SimpleCQ", of=("SimpleCQ", "BatchCQ")), is_changeable=False),
    "cleanup.policy": Attribute(_only("DELETE", of=("DELETE", "COMPACTION")), is_changeable=False),
    MESSAGE_TYPE: Attribute(_one_of(*TopicMessageType)),
    RESERVE_TIME: Attribute(_long(-1)),
    DEDUP_WINDOW: Attribute(_long(1, DEDUP_WINDOW_MS_MAX)),
    DEDUP_KEY: Attribute(_one_of(*DedupKey)),
}
"""``TopicAttributes``, and Kerolox's own. Batch queues and compaction are no part of Kerolox."""

GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}
"""``SubscriptionGroupAttributes``: RocketMQ 5.3.3 knows none."""


def parse_attributes(text: str) -> dict[str, str]:
    """The changes that a tool asks for, by names with their signs; a value is empty where it is
    taken away (``AttributeParser.parseToMap``). AttributesError: no ``+name=value,-name``.
    """
    changes: dict[str, str] = {}
    # As Java's split: nothing follows the last comma.
    for part in text.rstrip(",").split(",") if text.strip(",") else ():
        key, equals, value = part.partition("=")
        if equals and ("+" not in key or not value or "=" in value):
            raise AttributesError(f"add/alter attribute format is wrong: {printable(key)}")
        if not equals and "-" not in key:
            raise AttributesError(f"delete attribute format is wrong: {printable(key)}")
        if key in changes:
            raise AttributesError(f"key duplication: {printable(key)}")
        changes[key] = value
    return changes


def format_changes(wanted: Mapping[str, str | None], old: Mapping[str, str] | None) -> str:
    """What a tool asks for, as :func:`parse_attributes` reads it; empty: nothing is to be changed.

    A value of None: the attribute is to go. AttributesError: a name or value is empty, or has what
    separates them on the way.
    """
    old = old or {}
    parts = []
    for key, value in wanted.items():
        if not _NAME.fullmatch(key) or (value is not None and not _VALUE.fullmatch(value)):
            raise AttributesError(
                f"attribute '{printable(key)}={printable(value or '')}' is illegal: a name has no "
                "'+' and no '-', a value no '=', neither a ',' or a space"
            )
        if value is None:
            parts += [f"-{key}"] if key in old else []
        elif old.get(key) != value:
            parts.append(f"+{key}={value}")
    return ",".join(parts)


def altered(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute],
    *,
    is_new: bool,
) -> dict[str, str]:
    """Attributes with changes made to them (``alterCurrentAttributes``).

    Args:
        current: those that there are; None: none.
        changes: as :func:`parse_attributes` gives them.
        known: those that may be changed.
        is_new: the topic or group is made, so nothing can be taken away.

    Raises:
        AttributesError: a change is malformed, of an unknown name, or to a value that is not
            allowed; or there would be more than ``ATTRIBUTES_MAX``.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise AttributesError("kv string format wrong.")
        if key in seen:
            raise AttributesError(f"alter duplication key. key: {printable(key)}")
        seen.add(key)
        if is_new and sign != "+":
            raise AttributesError(
                f"only add attribute is supported while creating topic. key: {printable(key)}"
            )
        if sign not in ("+", "-"):
            raise AttributesError(f"wrong format key: {printable(key)}")
        if sign == "-" and key not in result:
            raise AttributesError(f"attempt to delete a nonexistent key: {printable(key)}")
        attribute = known.get(key)
        if attribute is None:
            raise AttributesError(f"unsupported key: {printable(key)}")
        if not is_new and not attribute.is_changeable:
            raise AttributesError(
                f"attempt to update an unchangeable attribute. key: {printable(key)}"
            )
        if sign == "-":
            del result[key]
            continue
        fault = attribute.fault(value)
        if fault is not None:
            raise AttributesError(fault)
        result[key] = value
    if len(result) > ATTRIBUTES_MAX:
        raise AttributesError(f"more than {ATTRIBUTES_MAX} attributes")
    return result


def bounded_attributes(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """What a table keeps of the attributes that a file or a master has; None where there are
    none. Those that no request can have are left out: of ``ATTRIBUTES_MAX``, or too long."""
    if not attributes:
        return None
    kept = {
        key: value
        for key, value in list(attributes.items())[:ATTRIBUTES_MAX]
        if length_fault("", key) is None and length_fault("", value) is None
    }
    return kept or None
