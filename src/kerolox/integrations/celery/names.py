"""Names of queues and exchanges as names of topics, and back. No I/O.

A queue is a topic, which the group of the same name reads. What a topic's name can't have is
written as in URLs: the queue ``mail.high`` is the topic ``mail%2Ehigh``. So is the first character
of a name that is RocketMQ's own. What goes to all readers of an exchange has a topic that
begins with ``exchange_``; a queue whose name begins so has its first character written that way.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from kerolox.errors import ConfigError
from kerolox.protocol.names import (
    RETRY_PREFIX,
    TOPIC_CHARACTERS_MAX,
    is_system_group,
    is_system_topic,
)

EXCHANGE_PREFIX = "exchange_"

CHARACTERS_MAX = (TOPIC_CHARACTERS_MAX - len(f"{RETRY_PREFIX}_")) // 2
"""Longest topic of a queue: the topic of its retries has the names of group and topic, which are
the same."""

_ESCAPED = re.compile(r"[^a-zA-Z0-9_-]")


def queue_topic(queue: str) -> str:
    """The topic of a queue, and its group. ConfigError: the name is too long, or empty."""
    topic = _ESCAPED.sub(_escaped, queue)
    is_taken = is_system_topic(topic) or is_system_group(topic)
    if is_taken or topic.startswith(EXCHANGE_PREFIX):
        topic = f"%{ord(topic[0]):02X}{topic[1:]}"
    return _bounded(topic, "queue", queue, CHARACTERS_MAX)


def exchange_topic(exchange: str) -> str:
    """The topic of what goes to all readers of an exchange. ConfigError: as above."""
    topic = EXCHANGE_PREFIX + _ESCAPED.sub(_escaped, exchange)
    return _bounded(topic, "exchange", exchange, TOPIC_CHARACTERS_MAX)


def name_of(topic: str) -> str:
    """The queue, or exchange, of a topic."""
    return unquote(topic.removeprefix(EXCHANGE_PREFIX))


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def _bounded(topic: str, kind: str, name: str, most: int) -> str:
    if not name:
        raise ConfigError(f"the {kind} has no name")
    if len(topic) > most:
        raise ConfigError(
            f"{kind} {name[:most]!r} is the topic {topic[:most]!r}, which has {len(topic)} "
            f"characters; it may have {most}. Choose a shorter name"
        )
    return topic
