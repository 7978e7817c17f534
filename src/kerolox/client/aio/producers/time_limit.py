"""The one time limit of a call, whatever it waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from kerolox.errors import RequestTimeoutError


class TimeLimit(NamedTuple):
    """When a call has to be over, whatever it waits for."""

    ms: int
    """As it was given."""
    deadline: float
    """A ``loop.time()``."""

    @classmethod
    def of(cls, ms: int) -> TimeLimit:
        """The limit of a call that begins now."""
        return cls(ms, asyncio.get_running_loop().time() + ms / 1000)

    @property
    def seconds_left(self) -> float:
        """0 or less: it is over."""
        return self.deadline - asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def around(self, what: str) -> AsyncIterator[None]:
        """End what is done within at the limit.

        Raises:
            RequestTimeoutError: at the limit; its text begins with ``what`` and tells it.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                yield
        except TimeoutError:
            raise RequestTimeoutError(f"{what} within {self.ms} ms; nothing was sent") from None
