"""The part of a broker's settings that is about messages for a moment: ``timer*`` of
``MessageStoreConfig`` of RocketMQ 5.3.3, and what ``BrokerConfig`` has on taking them back.
``recallMessageEnable`` is on here."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kerolox.broker.pop_settings import PopSettings
from kerolox.role_settings import LATER, LIVE
from kerolox.settings_class import settings_dataclass

if TYPE_CHECKING:
    from kerolox.store.timer.puts import TimerSettings

_INT_MAX = (1 << 31) - 1


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class TimerKeys(PopSettings):
    """Settings of the timer."""

    timer_wheel_enable: bool = field(default=True, metadata=LATER)
    """Messages may be for a moment; false: they are refused, and those that wait stay."""
    timer_precision_ms: int = field(default=1_000, metadata={"min": 1, "max": _INT_MAX})
    """How long a step of the wheel is: 100, 200, 500 or 1000; another number counts as the next
    one below, or as 100."""
    timer_max_delay_sec: int = field(
        default=3 * 86_400, metadata=LIVE | {"min": 0, "max": _INT_MAX}
    )
    """No moment is further away."""
    timer_roll_window_slot: int = field(
        default=2 * 86_400, metadata=LATER | {"min": 0, "max": _INT_MAX}
    )
    """From so many steps of delay on, a message is stored again on its way."""
    timer_congest_num_each_slot: int = field(
        default=_INT_MAX, metadata=LIVE | {"min": 1, "max": _INT_MAX}
    )
    """From so many messages in a step on, some more are refused, and all from twice of it on."""
    timer_flush_interval_ms: int = field(
        default=1_000, metadata=LATER | {"min": 10, "max": _INT_MAX}
    )
    timer_stop_enqueue: bool = field(default=False, metadata=LIVE)
    """New messages wait in the log alone."""
    timer_stop_dequeue: bool = field(default=False, metadata=LIVE)
    """Nothing is delivered."""
    mapped_file_size_timer_log: int = field(
        default=100 << 20, metadata={"min": 4_096, "max": _INT_MAX}
    )
    recall_message_enable: bool = field(default=True, metadata=LIVE)
    """Messages that wait may be taken back."""
    allow_recall_when_broker_not_writeable: bool = field(default=True, metadata=LIVE)
    """The same while ``brokerPermission`` lacks the right to write."""

    @property
    def timer_settings(self) -> TimerSettings:
        """What decisions of the timer need."""
        from kerolox.store.timer.puts import TimerSettings
        from kerolox.store.timer.wheel import PRECISIONS_MS

        precisions = [each for each in PRECISIONS_MS if each <= self.timer_precision_ms]
        return TimerSettings(
            is_enabled=self.timer_wheel_enable,
            precision_ms=max(precisions, default=PRECISIONS_MS[0]),
            max_delay_sec=self.timer_max_delay_sec,
            roll_window_slots=self.timer_roll_window_slot,
            slot_messages=self.timer_congest_num_each_slot,
            log_file_bytes=self.mapped_file_size_timer_log,
        )
