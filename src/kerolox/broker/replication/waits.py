"""Senders that wait until their message is on a slave (``GroupTransferService``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.broker.config import BrokerConfig
from kerolox.broker.services.writer import FlushWaits
from kerolox.kernel.append import ReplicationKernel

if TYPE_CHECKING:
    from kerolox.broker.replication.master import SlaveEnd


class Replicated:
    """How far the log is on a slave, any of which is enough.

    Attributes:
        offset: everything below it is on a slave (``push2SlaveMaxOffset``).
    """

    def __init__(self, behind_max: int) -> None:
        """Without slaves. ``behind_max``: haSlaveFallbehindMax."""
        self._behind_max = behind_max
        self._links: set[SlaveEnd] = set()
        self.offset = 0

    @property
    def slaves(self) -> int:
        """Slaves that said where they stand."""
        return sum(link.position >= 0 for link in self._links)

    @property
    def links(self) -> list[SlaveEnd]:
        """Those slaves, in the order of their addresses."""
        return sorted((each for each in self._links if each.position >= 0), key=lambda e: e.peer)

    def add(self, link: SlaveEnd) -> None:
        """A slave connected."""
        self._links.add(link)

    def remove(self, link: SlaveEnd) -> None:
        """It is gone; what it acknowledged stays so."""
        self._links.discard(link)

    def note(self, link: SlaveEnd) -> bool:
        """Examine what a slave acknowledged; whether ``offset`` moved."""
        if link.acknowledged <= self.offset:
            return False
        self.offset = link.acknowledged
        return True

    def is_available(self, end_offset: int) -> bool:
        """Whether a record that ends there may wait for a slave (``isSlaveOK``). False is
        SLAVE_NOT_AVAILABLE."""
        return end_offset < self.available_below

    @property
    def available_below(self) -> int:
        """A record that ends before this offset may wait for a slave: one is connected and not too
        far behind. 0: none is."""
        return self.offset + self._behind_max if self.slaves else 0


class SlaveWaits:
    """Waits for ``Replicated.offset``, as for the flushed one. The kernel keeps those of the fast
    path, and gets each new value of that offset.

    Attributes:
        replicated: how far the log is on a slave.
        grown: set when somebody waits for what was appended.
    """

    has_failed = False
    """No slave that fails ends a wait: another one may come."""

    def __init__(self, config: BrokerConfig, store: ReplicationKernel) -> None:
        """Nobody waits. The store is notified of what slaves have."""
        self.replicated = Replicated(config.ha_slave_fallbehind_max)
        self.grown = asyncio.Event()
        self._on_ready: list[Callable[[], None]] = []
        self._waits = FlushWaits(self, config.slave_timeout / 1000)
        self._kernel = store
        self._notified = (0, 0)

    def subscribe(self, on_ready: Callable[[], None]) -> None:
        """Have a function be called when the kernel has answers for senders that waited."""
        self._on_ready.append(on_ready)

    @property
    def flushed_offset(self) -> int:
        """Everything below it is on a slave."""
        return self.replicated.offset

    def request_flush(self, physical_offset: int = 0) -> None:
        """Somebody waits for what was appended: have it sent at once."""
        self.grown.set()

    def add(self, link: SlaveEnd) -> None:
        """A slave connected."""
        self.replicated.add(link)

    def remove(self, link: SlaveEnd) -> None:
        """It is gone."""
        self.replicated.remove(link)
        self._notify()

    def note(self, link: SlaveEnd) -> None:
        """Examine what a slave reported; one wake-up for all that it acknowledged."""
        if self.replicated.note(link):
            self._waits.wake()
        self._notify()

    def begin_anew(self) -> None:
        """Forget what slaves acknowledged: this log is another one's copy now, and may lose its
        end."""
        self.replicated.offset = 0
        self._notify()

    def is_available(self, end_offset: int) -> bool:
        """See ``Replicated.is_available``."""
        return self.replicated.is_available(end_offset)

    async def wait(self, end_offset: int) -> bool:
        """Wait until everything below an offset is on a slave. False: not within slaveTimeout."""
        return await self._waits.wait(end_offset)

    def _notify(self) -> None:
        """Tell the kernel what changed, and have it answer those who waited for that."""
        replicated = self.replicated
        known = (replicated.offset, replicated.available_below)
        if known != self._notified:
            self._notified = known
            if self._kernel.set_replicated(*known):
                self._ready()

    def _ready(self) -> None:
        for on_ready in self._on_ready:
            on_ready()
