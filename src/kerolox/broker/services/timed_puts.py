"""Messages for a moment on their way into the store: ``HookUtils.handleScheduleMessage``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kerolox.broker.base import Base
from kerolox.broker.tables.topics import TopicTable
from kerolox.message import TIMERS, PropertyKey
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig
    from kerolox.store.timer.puts import Refused, TimerSettings

_OF_HALVES = (HALF_TOPIC, CHECK_MAX_TIME_TOPIC)


class TimedRecord(Protocol):
    """A record that is to be stored."""

    topic: str
    queue_id: int
    properties: dict[str, str]
    property_text: str | None

    @property
    def is_final(self) -> bool:
        """It is no half of a transaction."""

    @property
    def delay_level(self) -> int:
        """As it counts for the broker; 0: it has none."""


class TimedPuts:
    """Has each record for a moment wait in the timer's topic.

    Attributes:
        waiting: gives the messages of the slot of a moment, once there is a timer.
    """

    def __init__(self, base: Base, topics: TopicTable) -> None:
        """``topics``: gets the timer's topic with the first message for a moment."""
        self._settings = base.settings
        self._now_ms = base.now_ms
        self._topics = topics
        self.waiting: Callable[[int], int] = _nothing
        self._made: tuple[BrokerConfig, TimerSettings] | None = None

    def place(self, record: TimedRecord) -> Refused | None:
        """Say where a record is stored and what it gets; why it is refused, None: it is not."""
        properties = record.properties
        if TIMERS.isdisjoint(properties):
            return None
        if PropertyKey.TIMER_OUT in properties and PropertyKey.DELAY not in properties:
            return None  # It has waited, or waits on.
        import random

        from kerolox.store.timer.puts import DRAWS, AsItIs, Refused, decide_put

        is_half = not record.is_final or record.topic in _OF_HALVES
        found = decide_put(
            properties,
            self._timer_settings(),
            topic=record.topic,
            queue_id=record.queue_id,
            now_ms=self._now_ms(),
            delay_level=0 if is_half else record.delay_level,
            is_half=is_half,
            waiting=self.waiting,
            draw=random.randrange(DRAWS),
        )
        if isinstance(found, Refused):
            return found
        if isinstance(found, AsItIs):
            if found.without:
                kept = {k: v for k, v in properties.items() if k not in found.without}
                record.properties, record.property_text = kept, None
            return None
        if TIMER_TOPIC not in self._topics:
            self._topics.create_for_group(TIMER_TOPIC, 1)
        record.properties = {**properties, **found.properties}
        record.property_text = None
        record.topic, record.queue_id = TIMER_TOPIC, 0
        return None

    def _timer_settings(self) -> TimerSettings:
        """Those in force, made once for each change."""
        config = self._settings.current
        if self._made is None or self._made[0] is not config:
            self._made = config, config.timer_settings
        return self._made[1]


def _nothing(_time_ms: int) -> int:
    return 0
