"""Flow control: when a consumer has so much that it pulls no more for now."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.client.core.consuming.process_queue import MIB, Backlog, PopQueue, ProcessQueue
from kerolox.errors import BrokerError
from kerolox.protocol.codes import ResponseCode


class FlowLimits(NamedTuple):
    """How much may be cached; -1: no limit."""

    queue_count: int
    queue_mib: int
    queue_span: int
    topic_count: int
    topic_mib: int
    all_count: int
    all_mib: int


class Hold(NamedTuple):
    """Why a queue is not pulled now."""

    reason: str
    is_own: bool
    """It is for messages of the queue itself, so that it may go on when some of them leave."""


class FlowControl:
    """The limits of one consumer, and what it has of each topic and in all.

    Beyond a limit for a topic or for all a queue that has nothing may still pull once: so no queue
    starves for another one. In all there is at most the limit, and one pull for each queue.
    """

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self.everything = Backlog()
        self._topics: dict[str, Backlog] = {}

    def process_queue(self, topic: str) -> ProcessQueue:
        """A new queue of a topic, which counts here until it is dropped."""
        return ProcessQueue((self.everything, self._topics.setdefault(topic, Backlog())))

    def pop_queue(self, topic: str) -> PopQueue:
        """The same for what is popped."""
        return PopQueue((self.everything, self._topics.setdefault(topic, Backlog())))

    def hold(self, topic: str, queue: ProcessQueue, *, is_ordered: bool = False) -> Hold | None:
        """Why the queue may not be pulled now, or None. What is read in order has no limit for the
        distance between the oldest and the newest message."""
        limits = self._limits
        reason = queue.flow_limit(
            count_max=limits.queue_count,
            mib_max=limits.queue_mib,
            span_max=queue.span if is_ordered else limits.queue_span,
        )
        if reason is not None:
            return Hold(reason, is_own=True)
        if not len(queue):
            return None
        in_topic = self._topics.get(topic)
        if in_topic is not None:
            what = f"of topic {topic}"
            reason = _beyond(in_topic, what, limits.topic_count, limits.topic_mib)
        if reason is None:
            reason = _beyond(self.everything, "in all", limits.all_count, limits.all_mib)
        return None if reason is None else Hold(reason, is_own=False)


def _beyond(backlog: Backlog, what: str, count_max: int, mib_max: int) -> str | None:
    if 0 <= count_max < backlog.messages:
        return f"{backlog.messages} messages {what} are cached; the limit is {count_max}"
    if 0 <= mib_max < backlog.body_bytes // MIB:
        return f"{backlog.body_bytes} bytes {what} are cached; the limit is {mib_max} MiB"
    return None


def is_flow_control(error: Exception) -> bool:
    """The broker asks to pull more slowly."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
