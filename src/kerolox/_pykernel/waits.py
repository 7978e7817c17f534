"""Waits for an offset of a queue: whoever reads for himself is notified when it is there.

Plain data, as :mod:`kerolox._pykernel.holds`. A wait has a number and no answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kerolox._pykernel.holds import QueueKey
from kerolox.kernel import ARRIVED_AT_ONCE_MAX, OFFSET_WAITS_MAX


class Wait(NamedTuple):
    """One wait."""

    group: str
    key: QueueKey
    offset: int
    deadline_ms: int


class OffsetWaits:
    """All waits of a store."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self.queues: dict[QueueKey, list[int]] = {}
        self.over: deque[int] = deque()
        """Those that are over and were not told."""

    def __len__(self) -> int:
        return len(self._waits) + len(self.over)

    def add(self, wait_id: int, wait: Wait, end: int) -> bool:
        """Add a wait, over at once when its offset is below ``end``. False: there are too many."""
        if len(self) >= OFFSET_WAITS_MAX:
            return False
        if wait.offset < end:
            self.over.append(wait_id)
        else:
            self._waits[wait_id] = wait
            self.queues.setdefault(wait.key, []).append(wait_id)
        return True

    def cancel(self, wait_id: int) -> None:
        """Forget a wait."""
        if wait_id in self.over:
            self.over.remove(wait_id)
        self._remove(wait_id)

    def end_below(self, key: QueueKey, end: int) -> None:
        """End the waits of a queue whose offsets are below its end."""
        for wait_id in list(self.queues.get(key, ())):
            if self._waits[wait_id].offset < end:
                self._end(wait_id)

    def end_where(self, is_over: Callable[[Wait], bool]) -> None:
        """End some waits."""
        for wait_id in [each for each, wait in self._waits.items() if is_over(wait)]:
            self._end(wait_id)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that wait for messages of a topic."""
        return {wait.group for wait in self._waits.values() if wait.key[0] == topic}

    def take(self) -> list[int]:
        """Some of those that are over, in the order of their ends."""
        return [self.over.popleft() for _ in range(min(len(self.over), ARRIVED_AT_ONCE_MAX))]

    def _end(self, wait_id: int) -> None:
        self._remove(wait_id)
        self.over.append(wait_id)

    def _remove(self, wait_id: int) -> None:
        wait = self._waits.pop(wait_id, None)
        if wait is not None:
            ids = self.queues[wait.key]
            ids.remove(wait_id)
            if not ids:
                del self.queues[wait.key]
