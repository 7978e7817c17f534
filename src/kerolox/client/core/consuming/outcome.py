"""What becomes of the messages that a listener was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from kerolox.client.core.delays import level_of, seconds_of
from kerolox.errors import ConfigError
from kerolox.protocol.names import RETRY_PREFIX, SCHEDULE_QUEUES
from kerolox.text import printable, wrong_type

DEAD_LETTER_LEVEL = -1
"""The delay level of a send-back that asks for the dead-letter topic."""

REASON_CHARACTERS_MAX = 500
"""So long a reason is kept."""


class ConsumeStatus(Enum):
    """A listener's verdict on its messages."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """What orderly listeners of RocketMQ say for RECONSUME_LATER; both mean the same here."""


class Action(Enum):
    """The effect of an outcome."""

    ACK = "ack"
    NACK = "nack"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one message: :meth:`ack`, :meth:`nack` and :meth:`dead_letter` make it.

    A listener may return one for all its messages, or a list with one for each.
    """

    action: Action
    delay_level: int | None = None
    """Of the retry, or None: ``delay_level_when_next_consume``."""
    delay_seconds: float | None = None
    """How long an orderly queue pauses, or None: ``suspend_current_queue_ms``."""
    reason: str = ""

    @classmethod
    def ack(cls) -> Outcome:
        """The message is done with."""
        return _ACK

    @classmethod
    def nack(
        cls, *, delay: float | timedelta | None = None, delay_level: int | None = None
    ) -> Outcome:
        """The message comes again later.

        Args:
            delay: after at least so many seconds; it becomes the next level of the brokers'
                default ``messageDelayLevel``, at most 2 hours. An ordered queue pauses for just
                so long.
            delay_level: or that level itself; 0: the broker decides, longer with each try.

        Raises:
            ConfigError: both are given, or one is out of range.
        """
        if delay is None and delay_level is None:
            return _NACK
        if delay is not None:
            if delay_level is not None:
                raise ConfigError("give a delay or a delay_level, not both")
            seconds = seconds_of(delay)
            return cls(Action.NACK, level_of(seconds), seconds)
        if isinstance(delay_level, bool) or not isinstance(delay_level, int) or delay_level < 0:
            raise ConfigError(f"delay_level is {delay_level!r}; it must be 0 to {SCHEDULE_QUEUES}")
        return cls(Action.NACK, delay_level)

    @classmethod
    def dead_letter(cls, reason: str = "") -> Outcome:
        """The message goes to the group's dead letters at once.

        Args:
            reason: kept in the dead letter's property ``DEAD_LETTER_REASON``, up to 500
                characters, and in the log.

        Raises:
            ConfigError: it is no text.
        """
        if not isinstance(reason, str):
            raise ConfigError(f"reason {wrong_type(reason, 'str')}")
        return cls(
            Action.DEAD_LETTER,
            DEAD_LETTER_LEVEL,
            reason=printable(reason, characters_max=REASON_CHARACTERS_MAX).strip(),
        )


_ACK, _NACK = Outcome(Action.ACK), Outcome(Action.NACK)


@dataclass(frozen=True, slots=True)
class AckIndex:
    """A listener's result for a batch: all went well up to the message at this index, -1 for none;
    those behind it come again (``ackIndex``).

    Raises:
        ConfigError: it is no whole number.
    """

    index: int

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or not isinstance(self.index, int):
            raise ConfigError(f"index {wrong_type(self.index, 'int')}")


OneResult = ConsumeStatus | Outcome | None
"""What a listener says of one message; None means success."""

ListenerResult = OneResult | AckIndex | Sequence[OneResult]
"""One result for all messages, or a list with one for each."""


def failed_outcomes(result: object, count: int) -> dict[int, Outcome] | None:
    """Which of ``count`` messages are not done with, and what becomes of them, by what their
    listener returned.

    None: the result is none that a listener may return.
    """
    if result is None or result is ConsumeStatus.CONSUME_SUCCESS:
        return {}
    if isinstance(result, ConsumeStatus | Outcome):
        one = _outcome(result)
        return {} if one is None else dict.fromkeys(range(count), one)
    if isinstance(result, AckIndex):
        return dict.fromkeys(range(max(result.index + 1, 0), count), _NACK)
    if not isinstance(result, Sequence) or isinstance(result, str) or len(result) != count:
        return None
    if not all(each is None or isinstance(each, ConsumeStatus | Outcome) for each in result):
        return None
    outcomes = ((position, _outcome(each)) for position, each in enumerate(result))
    return {position: one for position, one in outcomes if one is not None}


def all_failed(count: int) -> dict[int, Outcome]:
    """Of ``count`` messages each is to be tried again."""
    return dict.fromkeys(range(count), _NACK)


def _outcome(given: OneResult) -> Outcome | None:
    """What becomes of a message, or None when it is done with."""
    if given is None or given is ConsumeStatus.CONSUME_SUCCESS:
        return None
    if isinstance(given, Outcome):
        return None if given.action is Action.ACK else given
    return _NACK


class WithoutListener(Enum):
    """The rule for messages whose topic has no listener here.

    That is no failure of the message. It never counts as a try, so it never makes a message a dead
    letter.
    """

    KEEP = "keep"
    """Its queue is about to be given up, or the topic to be subscribed again: the messages stay
    uncommitted, and whoever reads the queue next gets them."""
    PASS_ON = "pass on"
    """It came from the group's retry topic, which every member reads for all topics: it goes back
    there with its count of tries as it is, for a member that has a listener."""


def without_listener(queue_topic: str) -> WithoutListener:
    """What to do with a message without listener, by the topic of the queue it came from."""
    return WithoutListener.PASS_ON if queue_topic.startswith(RETRY_PREFIX) else WithoutListener.KEEP
