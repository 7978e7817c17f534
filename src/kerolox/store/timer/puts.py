"""What becomes of a message with a time of delivery at each of its puts
(``HookUtils.handleScheduleMessage``, ``TimerMessageStore.convert``): no I/O, and the time is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kerolox.message import PropertyKey
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.java_numbers import INT_MAX, LONG_MAX, java_long
from kerolox.protocol.names import TIMER_TOPIC, TOPIC_BYTES_MAX
from kerolox.store.timer.log import FILE_BYTES
from kerolox.store.timer.wheel import SLOTS
from kerolox.text import printable

DRAWS = 1_000
"""How many values the draw of the flow control has."""
NEVER_ENQUEUED = LONG_MAX
"""``TIMER_ENQUEUE_MS`` of a message that was due when the timer came to it."""

ODD_NAMES = (
    PropertyKey.DELAY,
    PropertyKey.TIMER_DELETES,
    PropertyKey.TIMER_ROLL_TIMES,
    PropertyKey.TIMER_ENQUEUED,
    PropertyKey.TIMER_DEQUEUED,
)
"""A record of the timer's topic with one of these is more than a message that waited for its moment
once."""

BLANK_SLOTS = 60
"""Steps of the wheel that stay empty between what is over and what is to come."""

_TIMES = (
    (PropertyKey.TIMER_DELAY_SECONDS, 1_000, True),
    (PropertyKey.TIMER_DELAY, 1, True),
    (PropertyKey.TIMER_DELIVER, 1, False),
)
"""The first that a message has counts: name, milliseconds of its unit, from now on or not."""

_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay {}ms; or if set "
    "del msg, the delay time should be bigger than the current time"
)
_CONGESTED = (
    "timer message is under flow control, max num limit is {1} or the current value is greater "
    "than {0} and less than {1}, trigger random flow control"
)
_NOT_ENABLED = "accurate timer message is not enabled, timerWheelEnable is false"


class TimerSettings(NamedTuple):
    """Settings of a broker, with RocketMQ's defaults."""

    is_enabled: bool = True
    """``timerWheelEnable``."""
    precision_ms: int = 1_000
    """``timerPrecisionMs``: how long a step is."""
    max_delay_sec: int = 3 * 86_400
    """``timerMaxDelaySec``."""
    roll_window_slots: int = 2 * 86_400
    """``timerRollWindowSlot``: steps; a number out of range counts as the largest."""
    slot_messages: int = INT_MAX
    """``timerCongestNumEachSlot``: from here on puts are refused, see :func:`decide_put`."""
    log_file_bytes: int = FILE_BYTES
    """``mappedFileSizeTimerLog``."""
    slots: int = SLOTS
    """Half of those of the wheel; others than RocketMQ's are for tests."""

    @property
    def window(self) -> int:
        """Steps of delay from which on a message is rolled."""
        largest = self.slots - BLANK_SLOTS
        return self.roll_window_slots if 2 <= self.roll_window_slots <= largest else largest

    def step(self, time_ms: int) -> int:
        """The begin of the step that a moment is in (``formatTimeMs``)."""
        return time_ms // self.precision_ms * self.precision_ms


class AsItIs(NamedTuple):
    """The message is stored under its own topic, or where its delay level says."""

    without: tuple[str, ...] = ()
    """Properties that it loses."""


class ForTimer(NamedTuple):
    """The message goes to queue 0 of the timer's topic."""

    out_ms: int
    """Begin of the step whose end it waits for."""
    properties: Mapping[str, str]
    """What it gets besides its own."""


class Refused(NamedTuple):
    """The message is not stored."""

    code: ResponseCode
    text: str


def decide_put(
    properties: Mapping[str, str],
    settings: TimerSettings,
    *,
    topic: str,
    queue_id: int,
    now_ms: int,
    delay_level: int = 0,
    is_half: bool = False,
    waiting: Callable[[int], int] = lambda time_ms: 0,
    draw: int = 0,
) -> AsItIs | ForTimer | Refused:
    """What becomes of a message that is sent, or whose half is committed.

    A number too large for Java's long is refused here; RocketMQ lets the sum overflow, and delivers
    at once. So is a command to delete a message of another topic, which RocketMQ obeys.

    Args:
        topic: its own, with ``queue_id``.
        delay_level: as it counts for the broker; 0: it has none.
        is_half: it waits for its commit, and the rules count then.
        waiting: gives the messages of the slot of a moment.
        draw: a random number from 0 to :data:`DRAWS` - 1. From ``slot_messages`` to twice of it,
            the share of puts that are refused grows from none to all.
    """
    if is_half or topic == TIMER_TOPIC:
        return AsItIs()
    given = tuple(each for each in _TIMES if each[0] in properties)
    if delay_level > 0:
        return AsItIs(tuple(name for name, _, _ in given))
    if not given or PropertyKey.TIMER_OUT in properties:
        return AsItIs()
    if not settings.is_enabled:
        return Refused(ResponseCode.SYSTEM_ERROR, _NOT_ENABLED)
    deletes = properties.get(PropertyKey.TIMER_DELETES, "")
    if "+" in deletes and not deletes.startswith(delete_key(topic, "")):
        return _illegal(settings, f"it is to delete a message of another topic than {topic}")
    name, unit_ms, is_delay = given[0]
    number = java_long(properties[name])
    if number is None:
        return _illegal(settings, f'{name} is no number: "{printable(properties[name])}"')
    deliver_ms = number * unit_ms + is_delay * now_ms
    if deliver_ms <= now_ms:
        if PropertyKey.TIMER_DELETES in properties:
            return _illegal(settings, f"the moment {deliver_ms} is over at {now_ms}")
        return AsItIs()
    if deliver_ms - now_ms > settings.max_delay_sec * 1_000:
        return _illegal(settings, f"it is {deliver_ms - now_ms}ms")
    out_ms = settings.step(deliver_ms - 1)
    if _is_congested(waiting(out_ms), settings.slot_messages, draw):
        limit = settings.slot_messages
        return Refused(ResponseCode.SYSTEM_ERROR, _CONGESTED.format(limit, 2 * limit))
    return ForTimer(
        out_ms,
        {
            PropertyKey.TIMER_OUT: str(out_ms),
            PropertyKey.REAL_TOPIC: topic,
            PropertyKey.REAL_QUEUE_ID: str(queue_id),
        },
    )


def _illegal(settings: TimerSettings, why: str) -> Refused:
    text = _ILLEGAL.format(settings.max_delay_sec * 1_000)
    return Refused(ResponseCode.MESSAGE_ILLEGAL, f"{text}; {why}")


def _is_congested(messages: int, limit: int, draw: int) -> bool:
    if messages <= limit:
        return False
    return messages >= 2 * limit or draw * limit < DRAWS * (messages - limit)


class RealPlace(NamedTuple):
    """Where a message of the timer's topic is to be delivered."""

    topic: str
    queue_id: int


def real_place(properties: Mapping[str, str]) -> RealPlace | None:
    """Where a message of the timer's topic goes; None: its properties do not say, since something
    else than the timer put it there."""
    topic = properties.get(PropertyKey.REAL_TOPIC, "")
    queue_id = java_long(properties.get(PropertyKey.REAL_QUEUE_ID, ""))
    if not topic or queue_id is None or not 0 <= queue_id <= INT_MAX:
        return None
    return RealPlace(topic, queue_id)


def out_ms(properties: Mapping[str, str]) -> int | None:
    """The moment of a message of the timer's topic; None: it has none, as above."""
    found = java_long(properties.get(PropertyKey.TIMER_OUT, ""))
    return None if found is None or found < 0 else found


def delete_key(topic: str, unique_key: str) -> str:
    """What a command to delete a message names (``buildDeleteKey``)."""
    return f"{topic}+{unique_key}"


def unique_keys_of(deletes: str) -> set[str]:
    """Each ``UNIQ_KEY`` of a message that a command to delete may name: its topic may have the sign
    that parts it from the key, within the length of a topic."""
    signs = (at for at, each in enumerate(deletes[: TOPIC_BYTES_MAX + 1]) if each == "+")
    return {deletes[at + 1 :] for at in signs}


def key_of(properties: Mapping[str, str]) -> str | None:
    """What a command to delete this message would name; None: none can."""
    topic = properties.get(PropertyKey.REAL_TOPIC)
    unique_key = properties.get(PropertyKey.UNIQUE_KEY)
    return None if topic is None or unique_key is None else delete_key(topic, unique_key)


def delivered(properties: Mapping[str, str], enqueued_ms: int, now_ms: int) -> dict[str, str]:
    """The properties of the record of the real topic, from those of the record of the timer's.
    ``enqueued_ms``: when the timer took it, or :data:`NEVER_ENQUEUED`. ``now_ms``: when it is
    delivered.

    ``convertMessage`` of RocketMQ takes its place out of the message, and not out of the text that
    is stored.
    """
    return {**properties, **notes(enqueued_ms, now_ms)}


def rolled(properties: Mapping[str, str], enqueued_ms: int, now_ms: int) -> dict[str, str]:
    """The properties of a record that goes to the timer's topic again; arguments as above."""
    times = java_long(properties.get(PropertyKey.TIMER_ROLL_TIMES, "0")) or 0
    counted = {PropertyKey.TIMER_ROLL_TIMES: str(times + 1)}
    return {**properties, **counted, **notes(enqueued_ms, now_ms)}


def notes(enqueued_ms: int, now_ms: int) -> dict[str, str]:
    """What the timer adds to each record; arguments as above."""
    return {
        PropertyKey.TIMER_ENQUEUED: str(enqueued_ms),
        PropertyKey.TIMER_DEQUEUED: str(now_ms),
    }
