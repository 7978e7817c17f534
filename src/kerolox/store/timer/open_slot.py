"""A slot whose units are read: which of its messages are still to be delivered, and when."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kerolox.store.timer.puts import unique_keys_of
from kerolox.store.timer.wheel import NO_POSITION, Slot

GROUP_MS = 10
"""Messages whose moments are not further apart are delivered together."""
LAST_GROUP = 1 << 30
"""The group of those that wait for the end of the step."""


class OpenSlot:
    """A slot that is read. It takes 8 bytes of memory for each unit, and the key of each command to
    delete.

    Units come in their chains, from the last one backwards; those that were added since are a chain
    of their own, down to ``end`` before. So of each group the units of a chain are an array, the
    first of them last.

    Attributes:
        time_ms, end_ms: begin and end of the step.
        position, begin: the unit to be read next, and the end of its chain: it is read when
            ``position`` is before ``begin``.
        end: position of the timer log. Units before it are here, or in the chain.
        number: units that were taken.
        is_begun: some of them are done.
        keys: what commands to delete name.
        odd_keys: each ``UNIQ_KEY`` that one of ``keys`` may name.
    """

    def __init__(self, time_ms: int, end_ms: int, begin: int) -> None:
        """Units before the position ``begin`` of the timer log are delivered."""
        self.time_ms, self.end_ms = time_ms, end_ms
        self.position = NO_POSITION
        self.begin = self.end = begin
        self.number = 0
        self.is_begun = False
        self.keys: set[str] = set()
        self.odd_keys: set[str] = set()
        self._groups: dict[int, list[array[int]]] = {}
        self._chain: dict[int, array[int]] = {}

    def follow(self, slot: Slot | None) -> bool:
        """Begin with the chain of the units that are new, where the last one is read. False: there
        is nothing to be read."""
        if self.position >= self.begin:
            return True
        if slot is None or slot.last < self.end:
            return False
        self.position, self.begin, self.end = slot.last, self.end, slot.last + 1
        self._chain = {}
        return True

    def is_done(self, slot: Slot | None) -> bool:
        """All its units are read, and done."""
        is_read = self.position < self.begin and (slot is None or slot.last < self.end)
        return is_read and not self._groups

    def add(self, position: int, moment: int | None) -> None:
        """Take the next unit of the chain. ``moment``: when its message is due; None, and any that
        is not in the step: at the end."""
        group = LAST_GROUP
        if moment is not None and self.time_ms < moment < self.end_ms:
            group = (moment - self.time_ms + GROUP_MS - 1) // GROUP_MS
        found = self._chain.get(group)
        if found is None:
            found = self._chain[group] = array("q")
            self._groups.setdefault(group, []).append(found)
        found.append(position)

    def delete(self, key: str) -> None:
        """Take what a command to delete names."""
        self.keys.add(key)
        self.odd_keys |= unique_keys_of(key)

    @property
    def next_ms(self) -> int | None:
        """When the next group is due; None: none is before the end of the step."""
        group = min(self._groups, default=LAST_GROUP)
        return None if group == LAST_GROUP else self.time_ms + group * GROUP_MS

    def first(self, count: int) -> Sequence[int]:
        """Positions of the first units of the next group, ``count`` at most, in the order in which
        they came; none: nothing is left."""
        if not self._groups:
            return ()
        units = self._groups[min(self._groups)][0]
        return units[-count:].tolist()[::-1]

    def drop(self, count: int) -> None:
        """The first units of the next group are done: as many as :meth:`first` gave, or fewer."""
        if not count:
            return
        self.is_begun = True
        group = min(self._groups)
        chains = self._groups[group]
        del chains[0][len(chains[0]) - count :]
        if not chains[0]:
            del chains[0]
        if not chains:
            del self._groups[group]
            self._chain.pop(group, None)
