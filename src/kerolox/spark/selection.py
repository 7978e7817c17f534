"""What a query reads: topics by name, topics by a pattern, or single queues.

Exactly one of the options ``subscribe``, ``subscribePattern`` and ``assign`` says it. Topics here
are named as brokers know them, with the namespace; options and patterns have them without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.validate import check_topic
from kerolox.errors import ConfigError
from kerolox.protocol.names import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    is_system_topic,
)
from kerolox.spark.option_values import of_option
from kerolox.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kerolox.message import MessageQueue

    _Value = TypeVar("_Value")

TOPICS_MAX = 1000

PATTERN_CHARACTERS_MAX = 1000

_HIDDEN_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What one of the three options says."""

    option: str = "subscribe"
    topics: tuple[str, ...] = ()
    """By name, as brokers know them; empty with a pattern."""
    pattern: str | None = None
    queues: frozenset[MessageQueue] = frozenset()
    """Only these of the topics; empty: all."""
    namespace: str = ""

    def wire_topic(self, name: str) -> str:
        """A topic of an option as brokers know it."""
        return with_namespace(self.namespace, name)

    def names_topic(self, topic: str) -> bool:
        """Whether the topic is read, once it exists."""
        if self.pattern is None:
            return topic in self.topics
        name = without_namespace(self.namespace, topic)
        if self.wire_topic(name) != topic:
            return False  # of another namespace, or of none
        return re.fullmatch(self.pattern, name) is not None

    def has(self, queue: MessageQueue) -> bool:
        """Whether the queue is read, once it exists."""
        return queue in self.queues if self.queues else self.names_topic(queue.topic)

    def only(self, held: Mapping[MessageQueue, _Value]) -> dict[MessageQueue, _Value]:
        """What is held of the queues that are read."""
        if not self.queues:
            return dict(held)
        return {queue: value for queue, value in held.items() if queue in self.queues}

    def choose(self, listed: Iterable[str], system: Collection[str]) -> tuple[str, ...]:
        """The topics that the pattern means, sorted; ConfigError: more than ``TOPICS_MAX``.

        Retry, dead-letter and light message queue topics, and those of RocketMQ itself, are left
        out unless the pattern begins with what they begin with. ``system``: those that belong to
        RocketMQ by what the name servers say.
        """
        assert self.pattern is not None
        chosen = sorted(
            topic
            for topic in set(listed)
            if self.names_topic(topic) and not self._hides(topic, system)
        )
        if len(chosen) > TOPICS_MAX:
            raise ConfigError(
                f"option subscribePattern={printable(self.pattern)!r} matches {len(chosen)} "
                f"topics, over {TOPICS_MAX}; write a narrower one"
            )
        return tuple(chosen)

    def _hides(self, topic: str, system: Collection[str]) -> bool:
        pattern = self.pattern or ""
        for prefix in _HIDDEN_PREFIXES:
            if topic.startswith(prefix):
                return not pattern.startswith(prefix)
        is_system = topic in system or is_system_topic(topic)
        if not is_system and not (
            topic.endswith(REPLY_TOPIC_SUFFIX) and topic.removesuffix(REPLY_TOPIC_SUFFIX) in system
        ):
            return False
        if topic.lower().startswith(SYSTEM_TOPIC_PREFIX):
            return not pattern.lower().startswith(SYSTEM_TOPIC_PREFIX)
        return pattern != topic


def checked_pattern(text: str) -> str:
    """A pattern that can be compared with topics; ConfigError: it is empty, too long, or no regular
    expression.
    """
    pattern = text.strip()
    shown = f"option subscribePattern={printable(pattern)!r}"
    if not pattern or len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ConfigError(
            f"{shown} must have 1 to {PATTERN_CHARACTERS_MAX} characters, as in orders-.*"
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"{shown} is no regular expression: {error}; write one that the whole name of a topic "
            "matches, as in orders-.*"
        ) from error
    return pattern


def checked_topics(option: str, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Topics of an option, as brokers know them; ConfigError: there is none, there are more than
    ``TOPICS_MAX``, or one has no legal name.
    """
    if not topics:
        raise ConfigError(f"option {option} names no topic; write one or more, joined by ','")
    if len(topics) > TOPICS_MAX:
        raise ConfigError(f"option {option} names {len(topics)} topics, over {TOPICS_MAX}")
    with of_option(option):
        for topic in topics:
            check_topic(topic)
    return topics
