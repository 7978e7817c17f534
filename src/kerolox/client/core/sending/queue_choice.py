"""Which queue the next message goes to: round robin, away from the broker that just failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.message import MessageQueue


class QueueChooser:
    """Goes round the queues of one topic.

    Args:
        queues: at least one.
        start: any number; where the round starts (a random one spreads producers).
    """

    def __init__(self, queues: Sequence[MessageQueue], *, start: int) -> None:
        if not queues:
            raise ValueError("no queue to choose from")
        self.queues = tuple(queues)
        self._index = start % len(self.queues)

    def next(self, avoid_broker: str | None = None) -> MessageQueue:
        """The next queue; one on another broker than ``avoid_broker`` if there is one."""
        queues = self.queues
        for _ in range(len(queues)):
            self._index = (self._index + 1) % len(queues)
            queue = queues[self._index]
            if queue.broker_name != avoid_broker:
                return queue
        self._index = (self._index + 1) % len(queues)
        return queues[self._index]
