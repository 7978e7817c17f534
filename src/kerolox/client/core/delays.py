"""Delays as durations, and moments: brokers without a timer know levels only
(``messageDelayLevel``)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.message import PropertyKey

DELAYS_SECONDS = tuple(ms // 1_000 for ms in delay_levels_ms(DEFAULT_DELAY_LEVELS))
"""Levels 1 to 18 of the default ``messageDelayLevel``."""

SECONDS_MAX = 1e12
"""No delay is so long."""


def seconds_of(delay: float | timedelta) -> float:
    """A duration that may be given in seconds; ConfigError: it is negative or no number."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigError(f"delay is {delay!r}; it must be seconds or a timedelta, not negative")
    return seconds


def level_of(seconds: float) -> int:
    """The first level that delays for so long or longer; the highest beyond that."""
    for level, delay in enumerate(DELAYS_SECONDS, start=1):
        if seconds <= delay:
            return level
    return len(DELAYS_SECONDS)


Duration = float | timedelta
"""Seconds, or a ``timedelta``."""


class Timing(NamedTuple):
    """When a message is to be delivered."""

    name: str
    """The property that says it."""
    ms: int
    """From its arrival at the broker on, or since the epoch."""

    def seconds_left(self, now_ms: int) -> float:
        """From now on; negative: it is over."""
        is_delay = self.name == PropertyKey.TIMER_DELAY
        return (self.ms if is_delay else self.ms - now_ms) / 1000


def timing(after: Duration | None, at: datetime | None) -> Timing | None:
    """What ``deliver_after`` and ``deliver_at`` of a send mean; None: at once.

    Raises:
        MessageRejectedError: both are given, ``at`` has no zone, or one is out of range.
    """
    if at is not None:
        if after is not None:
            raise MessageRejectedError("give one of deliver_after and deliver_at only")
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise MessageRejectedError(
                f"deliver_at is {at!r}; it must be a datetime with a zone, such as"
                " datetime.now(UTC) + timedelta(hours=1)"
            )
        return Timing(PropertyKey.TIMER_DELIVER, max(0, round(at.timestamp() * 1000)))
    if after is None:
        return None
    seconds = _seconds(after)
    if seconds >= SECONDS_MAX:
        raise MessageRejectedError(f"deliver_after is {after!r}; no broker waits for so long")
    ms = round(seconds * 1000)
    return Timing(PropertyKey.TIMER_DELAY, ms) if ms else None


def _seconds(after: Duration) -> float:
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:
        raise MessageRejectedError(
            f"deliver_after is {after!r}; it must be seconds from 0 on, or a timedelta"
        )
    return seconds


def delay_level(after: Duration, levels_ms: tuple[int, ...], *, round_up: bool = False) -> int:
    """The delay level of a duration from now, to the millisecond; 0 is no delay. ``levels_ms``: the
    delay of level 1, 2 and so on. MessageRejectedError: no level has it; the text names those
    nearest. ``round_up``: take the shortest level that is no shorter; else it must be a level's
    exactly.
    """
    seconds = _seconds(after)
    if seconds > max(levels_ms) / 1000:
        raise MessageRejectedError(
            f"deliver_after is {_text(seconds)}; the longest delay level is"
            f" {_text(max(levels_ms) / 1000)}. Where the brokers' messageDelayLevel has a longer"
            " one, set delay_levels in the settings"
        )
    ms = round(seconds * 1000)
    if not ms:
        return 0
    fitting = min(level for level in levels_ms if level >= ms)
    if fitting == ms or round_up:
        return levels_ms.index(fitting) + 1
    shorter = max((level for level in levels_ms if level < ms), default=None)
    near = " and ".join(_text(each / 1000) for each in (shorter, fitting) if each is not None)
    raise MessageRejectedError(
        f"deliver_after is {_text(seconds)}, which no delay level has; the nearest are {near}."
        " Give one of them, or round_up=True for the longer one"
    )


def _text(seconds: float) -> str:
    return f"{seconds:g} s"
