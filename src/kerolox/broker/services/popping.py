"""All of one broker that serves pops, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from kerolox.broker.base import Base
from kerolox.broker.pop.copies import normal_topic
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.held_pops import HeldPops
from kerolox.broker.services.pop_reader import PopReader
from kerolox.broker.services.pop_retries import RetryTopics
from kerolox.broker.services.pop_revival import PopRevival
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables


class Popping:
    """Reading, waiting, and coming again."""

    def __init__(self, base: Base, tables: Tables, writing: Writing, arrivals: Arrivals) -> None:
        """Nobody pops yet."""
        self._tables = tables
        self.held = HeldPops(base, tables.topics, arrivals)
        retries = RetryTopics(base, tables)
        self.reader = PopReader(base, tables, retries)
        self.revival = PopRevival(
            base, tables, writing.writer, writing.gate, retries, self.is_visible
        )

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
