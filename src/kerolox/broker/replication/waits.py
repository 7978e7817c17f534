"""Senders that wait until their message is on a slave (``GroupTransferService``)."""

from __future__ import annotations

import asyncio

from kerolox.broker.replication.master import Replicated
from kerolox.broker.services.writer import FlushWaits


class SlaveWaits:
    """Waits for ``Replicated.offset``, as for the flushed one.

    Attributes:
        replicated: how far the log is on a slave.
        grown: set when somebody waits for what was appended.
    """

    has_failed = False
    """No slave that fails ends a wait: another one may come."""

    def __init__(self, replicated: Replicated, timeout_seconds: float) -> None:
        """Nobody waits. ``timeout_seconds``: slaveTimeout."""
        self.replicated = replicated
        self.grown = asyncio.Event()
        self._waits = FlushWaits(self, timeout_seconds)

    @property
    def flushed_offset(self) -> int:
        """Everything below it is on a slave."""
        return self.replicated.offset

    def request_flush(self, physical_offset: int) -> None:
        """Somebody waits for it: have it sent at once."""
        self.grown.set()

    def is_available(self, end_offset: int) -> bool:
        """See ``Replicated.is_available``."""
        return self.replicated.is_available(end_offset)

    async def wait(self, end_offset: int) -> bool:
        """Wait until everything below an offset is on a slave. False: not within slaveTimeout."""
        return await self._waits.wait(end_offset)

    def wake(self) -> None:
        """A slave acknowledged more; one wake-up for all that it covers."""
        self._waits.wake()
