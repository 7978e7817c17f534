"""Which queues a pop reads, in which order."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kerolox.broker.pop.leases import QueueKey
from kerolox.protocol.pop_names import TopicKind

__all__ = ["RETRY_PERCENT", "queues_to_read"]

RETRY_PERCENT = 20
"""Of a hundred pops, those that read retries first (``popFromRetryProbability``)."""


def queues_to_read(
    group: str,
    topic: str,
    queue_id: int,
    *,
    queue_count: int,
    retry_kinds: Container[TopicKind],
    chance: int,
    is_order: bool,
    retry_percent: int = RETRY_PERCENT,
) -> Sequence[QueueKey]:
    """The queues, until the pop has as many messages as it asked for.

    Args:
        group: who pops.
        topic: the topic that was asked for.
        queue_id: of its queue; -1: all of them, in turn from one by chance.
        queue_count: how many can be read.
        retry_kinds: which topics of retries of the group there are. Of both versions a pop reads
            one, since old clients tell them apart no further; the next pops read the other.
        chance: a number from 0 to 99, another one for each pop.
        is_order: an ordered pop has no retries.
        retry_percent: the chance that retries come first; else they come last.
    """
    if queue_id >= 0:
        queues = [QueueKey(group, topic, queue_id)]
    else:
        places = (chance + step for step in range(queue_count))
        queues = [QueueKey(group, topic, place % queue_count) for place in places]
    kinds = [each for each in (TopicKind.RETRY_V1, TopicKind.RETRY_V2) if each in retry_kinds]
    if is_order or not kinds:
        return queues
    retries = QueueKey(group, kinds[chance % len(kinds)].topic(topic, group), 0)
    return [retries, *queues] if chance < retry_percent else [*queues, retries]
