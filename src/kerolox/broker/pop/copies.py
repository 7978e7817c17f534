"""Where the copy of a message goes that nobody acknowledged in its time (``PopReviveService``)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kerolox.broker.pop.leases import QueueKey
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from kerolox.protocol.pop_names import TopicKind, pop_retry_topic

__all__ = ["CopyTarget", "LastCopies", "copy_target", "kind_of", "normal_topic"]

LAST_COPIES_MAX = 10_000
"""Copies that a slave may lack and that are remembered, each in some 150 bytes."""


class CopyTarget(NamedTuple):
    """A topic with one queue, 0, which is made when it is not there."""

    topic: str
    is_dead_letter: bool
    """It is nobody's to pop; else it is a topic of retries, where the group begins at 0."""


def copy_target(
    key: QueueKey, reconsume_times: int, retry_max_times: int, *, is_v2: bool = False
) -> CopyTarget:
    """Where a record of a queue is copied to; its copy has one more of ``reconsumeTimes``.

    RocketMQ copies to the topic of retries for ever, and leaves dead letters to its clients, of
    which some forget them. Here the group's maximum counts, also when it is 0; negative counts as
    0.

    ``key``: the queue that it was delivered from; a topic of retries is its own. ``is_v2``: new
    topics of retries have names of version 2 (``enableRetryTopicV2``).
    """
    if reconsume_times >= max(retry_max_times, 0):
        return CopyTarget(DLQ_PREFIX + key.group, True)
    if kind_of(key) is not TopicKind.NORMAL:
        return CopyTarget(key.topic, False)
    return CopyTarget(pop_retry_topic(key.topic, key.group, is_v2=is_v2), False)


def kind_of(key: QueueKey) -> TopicKind:
    """Which of its group's topics a queue is of."""
    start = RETRY_PREFIX + key.group
    if key.topic.startswith(f"{start}+"):
        return TopicKind.RETRY_V2
    return TopicKind.RETRY_V1 if key.topic.startswith(f"{start}_") else TopicKind.NORMAL


def normal_topic(key: QueueKey) -> str:
    """The topic that a queue's messages were sent to: whose pops are to be woken."""
    if kind_of(key) is TopicKind.NORMAL:
        return key.topic
    return key.topic[len(RETRY_PREFIX) + len(key.group) + 1 :]


class LastCopies:
    """The last copies that were stored, in the order of the log. A slave whose log ends before one
    lacks that message, unless its group gets the first record again."""

    def __init__(self) -> None:
        """None."""
        self._copies: deque[tuple[int, QueueKey, int]] = deque(maxlen=LAST_COPIES_MAX)

    def add(self, key: QueueKey, offset: int, end_offset: int) -> None:
        """Message ``offset`` of a queue is copied; its copy ends at ``end_offset`` of the log."""
        self._copies.append((end_offset, key, offset))

    def lowest_behind(self, log_end: int) -> dict[tuple[str, str, int], int]:
        """By group, topic and queue the lowest message whose copy is not in a log that ends
        there."""
        lowest: dict[tuple[str, str, int], int] = {}
        for end_offset, key, offset in reversed(self._copies):
            if end_offset <= log_end:
                break
            lowest[key] = min(offset, lowest.get(key, offset))
        return lowest

    def clear(self) -> None:
        """The log is another broker's from now on."""
        self._copies.clear()
