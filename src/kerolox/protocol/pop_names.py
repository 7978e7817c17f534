"""Numbers of pops, and the names of the topics of their retries: what a broker knows before one
comes. Names are those of RocketMQ 5.3.3 (``KeyBuilder``, ``PopAckConstants``)."""

from __future__ import annotations

from enum import IntEnum

from kerolox.protocol.names import RETRY_PREFIX, TOPIC_BYTES_MAX
from kerolox.text import printable

POP_FRAME = b'{"code":200'
"""How the header of a pop, of an acknowledgement and of their like begins, in JSON: clients write
the code first."""

POP_MESSAGES_MAX = 32
"""Most messages of one pop."""

ORDER_REVIVE_QUEUE = 999
"""``reviveQid`` of ordered pops (``POP_ORDER_REVIVE_QUEUE``)."""

POLL_GRACE_MS = 500
"""How long after its time a pop that waited counts as given up by its client."""

INVISIBLE_MS_MAX = 3 * 24 * 3_600_000
"""Longest time that a message may be invisible: three days, as the longest delay by a timer.
RocketMQ's proxy allows 12 hours, its broker anything."""


class PopInitMode(IntEnum):
    """Where a group begins that has no offset (``ConsumeInitMode``)."""

    MIN = 0
    MAX = 1


class TopicKind(IntEnum):
    """Which of a group's topics a queue is of; ``retry`` of a receipt."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2

    def topic(self, topic: str, group: str) -> str:
        """The queue's own topic."""
        if self is TopicKind.NORMAL:
            return topic
        return pop_retry_topic(topic, group, is_v2=self is TopicKind.RETRY_V2)


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Where messages of a topic go that a group did not acknowledge (``buildPopRetryTopic``).

    Both parts may have a ``_``, so the name cannot be taken apart: whoever needs them keeps them.
    """
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def retry_topic_fault(topic: str, group: str) -> str | None:
    """Why a group can't pop from a topic: no record could name the topic of its retries, and what
    is not acknowledged would be lost. None: it can."""
    size = len(pop_retry_topic(topic, group).encode("utf-8", "surrogatepass"))
    if size <= TOPIC_BYTES_MAX:
        return None
    return (
        f"the retry topic of group [{printable(group)}] and topic [{printable(topic)}] has {size} "
        f"bytes; at most {TOPIC_BYTES_MAX} are allowed: take a shorter group"
    )
