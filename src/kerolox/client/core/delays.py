"""Which delay level a duration is, as long as brokers have the levels of RocketMQ's own."""

from __future__ import annotations

from datetime import timedelta

from kerolox.errors import ConfigError

DELAYS_SECONDS = (1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)))
DELAYS_SECONDS += (1_200, 1_800, 3_600, 7_200)
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
