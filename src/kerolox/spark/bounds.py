"""Where reading starts and ends, as options say it: words, offsets or times per queue.

JSON is nested by topic, broker name and queue id, as in ``{"orders":{"broker-a":{"0":123}}}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark.option_values import WHOLE_MAX
from kerolox.text import looks_like_seconds, printable, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kerolox.spark.selection import Selection

EARLIEST = -2
"""In an offsets JSON: the queue's first message."""

LATEST = -1
"""In an offsets JSON: after the queue's last message."""

QUEUE_ID_MAX = 65_534
"""A topic has 65,535 queues on one broker at most."""

_OFFSETS_EXAMPLE = '{"topic":{"broker-a":{"0":123,"1":-2}}}'
_TIMES_EXAMPLE = '{"topic":{"broker-a":{"0":1700000000000}}}'
_QUEUES_EXAMPLE = '{"topic":{"broker-a":[0,1]}}'


class Bound(Enum):
    """An end of a queue as it is when the query is planned, or the place of a group in it."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"


class Beyond(Enum):
    """The rule for a queue without a message from a time on: fail, or start at its end."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Since:
    """The first message of each queue that was stored at a time (ms) or later."""

    times: int | dict[MessageQueue, int]
    option: str
    """Which says so."""


OffsetBound = Bound | Since | dict[MessageQueue, int]
"""One end for all queues, or one per queue (``EARLIEST`` and ``LATEST`` as values)."""


def parse_bound(
    text: str, selection: Selection, *, option: str, words: Iterable[Bound] = ()
) -> OffsetBound:
    """``earliest``, ``latest``, or JSON by topic, broker name and queue id, of what the selection
    reads. ConfigError: neither; a topic or queue that is not read; an offset below -2.
    """
    known = {each.value: each for each in (Bound.EARLIEST, Bound.LATEST, *words)}
    word = text.strip().lower()
    if word in known:
        return known[word]
    fault = f"is neither {', '.join(known)} nor JSON"

    def offset(value: object, where: str) -> int:
        if type(value) is not int or not EARLIEST <= value <= WHOLE_MAX:
            raise ConfigError(
                f"option {option} has offset {value!r:.100} for {where}; write 0 or more, "
                "-1 (latest) or -2 (earliest)"
            )
        return value

    return _per_queue(text, selection, option, fault, _OFFSETS_EXAMPLE, offset)


def parse_times(text: str, selection: Selection, *, option: str) -> Since:
    """Times in ms by topic, broker name and queue id. ConfigError: no such JSON; a topic or queue
    that is not read; a time below 0.
    """

    def time(value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value <= WHOLE_MAX:
            raise ConfigError(
                f"option {option} has time {value!r:.100} for {where}; write milliseconds since "
                "1970"
            )
        if looks_like_seconds(value):
            raise ConfigError(f"option {option}, {where}: {seconds_text(value, UTC)}")
        return value

    return Since(_per_queue(text, selection, option, "is no JSON", _TIMES_EXAMPLE, time), option)


def parse_queues(text: str, *, option: str) -> frozenset[MessageQueue]:
    """Queues: JSON by topic and broker name, with a list of queue ids; ConfigError: no such JSON,
    or no queue in it.
    """
    queues: set[MessageQueue] = set()
    example = _QUEUES_EXAMPLE
    for topic, brokers in json_object(text, option, "is no JSON", example).items():
        for broker_name, ids in members(brokers, option, example):
            if not isinstance(ids, list):
                raise ConfigError(
                    f"option {option} has {ids!r:.100} where a list of queue ids must be; "
                    f"write {example}"
                )
            for each in ids:
                if type(each) is not int or not 0 <= each <= QUEUE_ID_MAX:
                    raise ConfigError(f"option {option} has queue id {each!r:.100}; {example}")
                queues.add(MessageQueue(topic, broker_name, each))
    if not queues:
        raise ConfigError(f"option {option} names no queue; write {example}")
    return frozenset(queues)


def _per_queue(
    text: str,
    selection: Selection,
    option: str,
    fault: str,
    example: str,
    checked: Callable[[object, str], int],
) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for given, brokers in json_object(text, option, fault, example).items():
        topic = selection.wire_topic(given)
        if not selection.names_topic(topic):
            raise ConfigError(
                f"option {option} has topic {printable(given)!r}, which {selection.option} does "
                "not name"
            )
        for broker_name, queues in members(brokers, option, example):
            for queue_id, value in members(queues, option, example):
                number = checked_queue_id(queue_id, option, example)
                queue = MessageQueue(topic, broker_name, number)
                where = printable(f"{given} {broker_name} {queue_id}")
                if not selection.has(queue):
                    raise ConfigError(
                        f"option {option} has {where}, which {selection.option} does not name"
                    )
                found[queue] = checked(value, where)
    return found


def checked_queue_id(text: str, option: str, example: str) -> int:
    """A queue id that is a name in a JSON object."""
    # More than seven digits are none, and take long to read.
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    if not is_number or int(text) > QUEUE_ID_MAX:
        raise ConfigError(f"option {option} has queue id {printable(text)!r}; write {example}")
    return int(text)


def json_object(text: str, option: str, fault: str, example: str) -> dict[str, object]:
    """The JSON object that an option is, with something in it; ``fault``: what the ConfigError says
    of a text that is no JSON.
    """
    shown = printable(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"option {option}={shown!r} {fault} ({error}); JSON looks like {example}"
        ) from error
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"option {option}={shown!r} is no object; write {example}")
    return value


def members(value: object, option: str, example: str) -> Iterable[tuple[str, object]]:
    """Names and values of an object within an option's JSON."""
    if not isinstance(value, dict):
        raise ConfigError(
            f"option {option} has {value!r:.100} where an object must be; write {example}"
        )
    return value.items()
