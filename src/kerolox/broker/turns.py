"""Long work of one request in short turns, so that other requests are served in between."""

from __future__ import annotations

import asyncio
import time

__all__ = ["TURN_SECONDS_MAX", "Turns"]

TURN_SECONDS_MAX = 0.005
"""How long a request works before others get their turn."""


class Turns:
    """The turns of one request; the first begins when this is made."""

    def __init__(self) -> None:
        self._end = time.monotonic() + TURN_SECONDS_MAX

    async def give(self) -> None:
        """To be called between steps: lets others go on when the turn is over.

        Whatever was looked at before may have changed after it.
        """
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + TURN_SECONDS_MAX
