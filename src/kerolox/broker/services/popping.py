"""All of one broker that serves pops, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from kerolox.broker.base import Base
from kerolox.broker.pop.copies import normal_topic
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.held_pops import HeldPops
from kerolox.broker.services.pop_retries import RetryTopics
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables

if TYPE_CHECKING:
    from kerolox.broker.services.pop_reader import PopReader
    from kerolox.broker.services.pop_revival import PopRevival


class Popping:
    """Reading, waiting, and coming again."""

    def __init__(self, base: Base, tables: Tables, writing: Writing, arrivals: Arrivals) -> None:
        """Nobody pops yet."""
        self._base, self._tables = base, tables
        self.held = HeldPops(base, tables.topics, arrivals)
        self._writing = writing
        self._retries = RetryTopics(base, tables)

    @cached_property
    def reader(self) -> PopReader:
        """Loaded for the first pop: most brokers see none."""
        from kerolox.broker.services.pop_reader import PopReader

        return PopReader(self._base, self._tables, self._retries)

    @cached_property
    def revival(self) -> PopRevival:
        """Loaded for the first message that is out."""
        from kerolox.broker.services.pop_revival import PopRevival

        writing = self._writing
        return PopRevival(
            self._base, self._tables, writing.writer, writing.gate, self._retries, self.is_visible
        )

    @property
    def is_due(self) -> bool:
        """Messages have to come again, and the revival is not at it."""
        is_out = self._tables.pops.state.queues.next_end is not None
        return is_out and self.revival.is_due

    @asynccontextmanager
    async def resetting(
        self, group: str, topic: str, queue_ids: Collection[int] | None = None
    ) -> AsyncIterator[None]:
        """See ``PopTables``; then those who wait try again."""
        try:
            async with self._tables.pops.resetting(group, topic, queue_ids):
                yield
        finally:
            self.held.wake(topic, group)

    def is_visible(self, topic: str, group: str) -> None:
        """Messages of a topic came again for a group."""
        self.held.wake_starved(topic, group)
        self.held.wake(topic, group)

    def is_done(self, key: QueueKey) -> None:
        """Messages of a queue are acknowledged."""
        self.held.wake_starved(normal_topic(key), key.group)
