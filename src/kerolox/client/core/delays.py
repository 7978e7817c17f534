"""Which delay level a duration is, as long as brokers have the levels of RocketMQ's own."""

from __future__ import annotations

from datetime import timedelta

from kerolox.errors import ConfigError
from kerolox.kernel.settings import DEFAULT_DELAY_LEVELS, delay_levels_ms

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
