"""What is wrong with a request about pops: RocketMQ's codes and texts."""

from __future__ import annotations

from kerolox.broker.errors import no_group, no_permission, no_topic
from kerolox.errors import BrokerError
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import Perm, ResponseCode
from kerolox.protocol.pop_names import (
    INVISIBLE_MS_MAX,
    POLL_GRACE_MS,
    POP_MESSAGES_MAX,
    retry_topic_fault,
)

__all__ = ["check_group", "check_invisible", "check_poll", "check_queue", "check_range"]


def check_poll(
    broker: str, count: int, born_ms: int, poll_ms: int, now_ms: int
) -> BrokerError | None:
    """What a pop asks for. ``broker``: its address, for the texts. ``count``: ``maxMsgNums``;
    RocketMQ takes 0 and less for none. ``born_ms``: when the client asked; 0 or less: now.
    ``poll_ms``: how long it waits. ``now_ms``: by the wall clock.
    """
    if born_ms > 0 and now_ms - born_ms - poll_ms > POLL_GRACE_MS:
        return BrokerError(
            f"the broker[{broker}] pop message is timeout too much",
            code=ResponseCode.POLLING_TIMEOUT,
        )
    if count > POP_MESSAGES_MAX:
        return BrokerError(
            f"the broker[{broker}] pop message's num is greater than {POP_MESSAGES_MAX}",
            code=ResponseCode.INVALID_PARAMETER,
        )
    if count < 1:
        return BrokerError(
            f"the broker[{broker}] pop message's num is {count}; it must be 1 to "
            f"{POP_MESSAGES_MAX}",
            code=ResponseCode.INVALID_PARAMETER,
        )
    return None


def check_invisible(milliseconds: int, *, is_change: bool) -> BrokerError | None:
    """How long a message is to be invisible. A change may say 0: it comes again at once."""
    low = 0 if is_change else 1
    if low <= milliseconds <= INVISIBLE_MS_MAX:
        return None
    return BrokerError(
        f"the invisible time is {milliseconds} ms; it must be {low} to {INVISIBLE_MS_MAX}",
        code=ResponseCode.INVALID_PARAMETER,
    )


def check_topic(topic: TopicConfig | None, name: str) -> BrokerError | None:
    """A topic that is popped from."""
    if topic is None:
        return no_topic(name)
    if not topic.perm & Perm.READ:
        return no_permission(f"the topic[{name}] peeking message is forbidden")
    return None


def check_group(group: SubscriptionGroupConfig | None, name: str, topic: str) -> BrokerError | None:
    """A group that pops from a topic."""
    if group is None:
        return no_group(name)
    if not group.consume_enable:
        return no_permission(f"subscription group no permission, {name}")
    fault = retry_topic_fault(topic, name)
    return None if fault is None else BrokerError(fault, code=ResponseCode.INVALID_PARAMETER)


def check_queue(
    topic: TopicConfig | None,
    name: str,
    queue_id: int,
    consumer: str,
    *,
    is_pop: bool = False,
    is_held: bool = False,
) -> BrokerError | None:
    """A queue of a topic. ``queue_id``: a pop may say -1 for all. ``consumer``: the address of who
    asks, for the texts. ``is_pop``: else it is an acknowledgement or a change. ``is_held``: a
    message of the queue is out: it may be acknowledged, also when the topic has lost the queue
    meanwhile.
    """
    if topic is None:
        return no_topic(name)
    if is_held or (-1 if is_pop else 0) <= queue_id < topic.read_queue_nums:
        return None
    return BrokerError(
        f"queueId[{queue_id}] is illegal, topic:[{name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{consumer}]",
        code=ResponseCode.INVALID_PARAMETER if is_pop else ResponseCode.MESSAGE_ILLEGAL,
    )


def check_range(
    name: str, queue_id: int, offset: int, bounds: tuple[int, int], *, is_change: bool = False
) -> BrokerError | None:
    """The offset of an acknowledgement or a change, by the first and the next offset of its queue.
    RocketMQ takes the next one for an acknowledgement, not for a change."""
    low, end = bounds
    if low <= offset < end or (offset == end and not is_change):
        return None
    return BrokerError(
        f"offset is illegal, key:{name}@{queue_id}, commit:{offset}, store:{low}~{end}",
        code=ResponseCode.NO_MESSAGE,
    )


def illegal_order(
    name: str, group: str, queue_id: int, offset: int, committed: int, consumer: str
) -> BrokerError:
    """An acknowledgement in order of a message that the pop did not deliver."""
    return BrokerError(
        f"offset is illegal, key:{name}@{group}@{queue_id}, old:{committed}, commit:{offset}, "
        f"next:-1, {consumer}",
        code=ResponseCode.MESSAGE_ILLEGAL,
    )
