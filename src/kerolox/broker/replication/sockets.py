"""What both ends of replication need of sockets, clocks and settings."""

from __future__ import annotations

import asyncio
import re
import time

from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.wire import ReplicationSettings

CHECK_SECONDS = 1.0
"""How often the silence of the other end is examined."""

LOG_SECONDS = 60.0
"""Time between two lines that say the same."""
TEXTS_MAX = 64
_NUMBER = re.compile(r"\d+")


class LoggedTexts:
    """Texts logged lately, so that a repeated failure makes no line each time."""

    def __init__(self) -> None:
        self._texts: dict[str, float] = {}

    def is_new(self, text: str, now: float, whom: str = "") -> bool:
        """Whether to say it of somebody: it was not within ``LOG_SECONDS``, with whatever numbers.
        ``now``: in seconds."""
        text = f"{whom} {_NUMBER.sub('#', text)}"
        if text in self._texts and now - self._texts[text] < LOG_SECONDS:
            return False
        self._texts.pop(text, None)
        self._texts[text] = now
        if len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        return True

    def forget(self) -> None:
        """All of it can be said again."""
        self._texts.clear()


def steady_ms() -> int:
    """Milliseconds of a clock that nobody sets."""
    return time.monotonic_ns() // 1_000_000


def replication_settings(config: BrokerConfig) -> ReplicationSettings:
    """The ``ha*`` settings of a connection."""
    return ReplicationSettings(
        config.ha_send_heartbeat_interval,
        config.ha_housekeeping_interval,
        config.ha_transfer_batch_size,
    )


def check_seconds(settings: ReplicationSettings) -> float:
    """How often to check whether something is due."""
    shortest_ms = min(settings.heartbeat_ms, settings.housekeeping_ms)
    return min(CHECK_SECONDS, shortest_ms / 2_000)


async def read_some(reader: asyncio.StreamReader, most: int, seconds: float) -> bytes | None:
    """Up to ``most`` bytes; b"": the other end closed, None: nothing came in time.

    What is there already is read without a wait, so others get an iteration of the event loop
    first.
    """
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(seconds):
            return await reader.read(most)
    except TimeoutError:
        return None
