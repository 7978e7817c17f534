"""Which queue the next message goes to: round robin, away from brokers that failed."""

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
        self.index = start % len(self.queues)
        """The number of the last one; codecs count it up by themselves."""

    def next_index(self) -> int:
        """The number of the next queue."""
        self.index = index = (self.index + 1) % len(self.queues)
        return index

    def step_back(self) -> None:
        """The last choice is not used: the next one is the same."""
        self.index = (self.index - 1) % len(self.queues)

    def next(self, tried: Sequence[str] = ()) -> MessageQueue:
        """The next queue of a broker that was not tried; if there is none, of another one than
        the last that was; if there is only that, of it."""
        queues = self.queues
        if not tried:
            return queues[self.next_index()]
        for avoided in (tried, tried[-1:]):
            for _ in range(len(queues)):
                self.index = (self.index + 1) % len(queues)
                queue = queues[self.index]
                if queue.broker_name not in avoided:
                    return queue
        self.index = (self.index + 1) % len(queues)
        return queues[self.index]
