"""Delays as durations: brokers know levels only (``messageDelayLevel``)."""

from __future__ import annotations

from datetime import timedelta

from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms

DELAYS_SECONDS = tuple(ms // 1_000 for ms in delay_levels_ms(DEFAULT_DELAY_LEVELS))
"""Levels 1 to 18 of the default ``messageDelayLevel``."""


def seconds_of(delay: float | timedelta) -> float:
    """A duration that may be given in seconds.

    Raises:
        ConfigError: it is negative or no number.
    """
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


def delay_level(after: Duration, levels_ms: tuple[int, ...], *, round_up: bool = False) -> int:
    """The delay level of a duration.

    Args:
        after: from now; 0 is no delay. It is taken to the millisecond.
        levels_ms: the delay of level 1, 2 and so on.
        round_up: take the shortest level that is no shorter; else it must be a level's exactly.

    Raises:
        MessageRejectedError: no level has it; the text names those nearest.
    """
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise MessageRejectedError(
            f"deliver_after is {after!r}; it must be seconds from 0 on, or a timedelta"
        )
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
