"""What becomes of the messages that a listener was given."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kerolox.protocol.names import RETRY_PREFIX


class ConsumeStatus(Enum):
    """What a listener says about its messages."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


ListenerResult = ConsumeStatus | Sequence[ConsumeStatus | None] | None
"""One status for all messages, or a list with one for each; None means success."""


def failed_positions(result: object, count: int) -> list[int] | None:
    """Which of ``count`` messages are to be tried again, by what their listener returned.

    A list of statuses says it for each (``ackIndex`` of RocketMQ can only say up to where all went
    well). None: the result is none that a listener may return.
    """
    if result is None or result is ConsumeStatus.CONSUME_SUCCESS:
        return []
    if result is ConsumeStatus.RECONSUME_LATER:
        return list(range(count))
    if not isinstance(result, Sequence) or len(result) != count:
        return None
    if not all(status is None or isinstance(status, ConsumeStatus) for status in result):
        return None
    return [i for i, status in enumerate(result) if status is ConsumeStatus.RECONSUME_LATER]


class Unheard(Enum):
    """What to do with messages whose topic has no listener here.

    That this member has none is no failure of the message: it is never counted as a try, so it
    never brings a message to the dead letters.
    """

    KEEP = "keep"
    """Its queue is about to be given up, or the topic to be subscribed again: the messages stay
    uncommitted, and whoever reads the queue next gets them."""
    PASS_ON = "pass on"
    """It came from the group's retry topic, which every member reads for all topics: it goes back
    there with its count of tries as it is, for a member that has a listener."""


def unheard(queue_topic: str) -> Unheard:
    """What to do with a message without listener, by the topic of the queue it came from."""
    return Unheard.PASS_ON if queue_topic.startswith(RETRY_PREFIX) else Unheard.KEEP
