"""Which topics of retries are whose.

A name of version 1 does not say where its group ends: ``%RETRY%a_b_c`` is of group ``a`` and topic
``b_c``, or of group ``a_b`` and topic ``c``. The first pair has it, and its group an offset there;
the other pair gets a name of version 2.
"""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.tables.pops import SELF
from kerolox.broker.tables.tables import Tables

FOREIGN_MAX = 10_000
"""Topics that are remembered as those of others."""


class RetryTopics:
    """Asks the tables."""

    def __init__(self, base: Base, tables: Tables) -> None:
        """Nothing is remembered."""
        self._store = base.store
        self._tables = tables
        self._foreign: set[tuple[str, str]] = set()

    def is_own(self, group: str, topic: str) -> bool:
        """Whether a topic of retries that is there is of a group. One that is nobody's becomes its
        own: a crash may forget the offset, and keep the topic."""
        offsets = self._tables.offsets
        if offsets.query(group, topic, 0) >= 0:
            return True
        if (group, topic) in self._foreign:
            return False
        if not offsets.groups_of(topic):
            self.take(group, topic)
            return True
        if len(self._foreign) >= FOREIGN_MAX:
            self._foreign.clear()
        self._foreign.add((group, topic))
        return False

    def take(self, group: str, topic: str) -> None:
        """A topic of retries is of a group, which begins at its first message."""
        if self._tables.offsets.query(group, topic, 0) < 0:
            first, _ = self._store.queue_bounds(topic, 0)
            self._tables.offsets.commit(group, topic, 0, first, SELF, is_own=True)
