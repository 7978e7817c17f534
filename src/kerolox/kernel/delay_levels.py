"""The delays of RocketMQ's delay levels (``messageDelayLevel``)."""

from __future__ import annotations

import re

from kerolox.errors import ConfigError

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_LEVEL = re.compile(r"([0-9]+)([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_levels_ms(text: str, *, name: str = "messageDelayLevel") -> tuple[int, ...]:
    """The delay of level 1, 2 and so on, from a list like ``DEFAULT_DELAY_LEVELS``; ``name``: what
    the setting is called. ConfigError: it is empty, or an item is not a number with a unit of s, m,
    h or d.
    """
    if not text.strip():
        raise ConfigError(f"{name}: empty; write at least one delay, such as 1s")
    levels = []
    for item in text.split():
        match = _LEVEL.fullmatch(item)
        if match is None:
            raise ConfigError(f"{name}: {item!r} is no delay; write a number and one of s m h d")
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(levels)
