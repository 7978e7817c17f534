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
        self.upcoming = (start + 1) % len(self.queues)
        """The number of the next one; whoever uses it calls :meth:`advance`."""

    def advance(self) -> None:
        """The next one is used."""
        self.upcoming = (self.upcoming + 1) % len(self.queues)

    def next(self, tried: Sequence[str] = ()) -> MessageQueue:
        """The next queue of a broker that was not tried; if there is none, of another one than
        the last that was; if there is only that, of it."""
        for avoided in (tried, tried[-1:]) if tried else ():
            for _ in self.queues:
                queue = self._taken()
                if queue.broker_name not in avoided:
                    return queue
        return self._taken()

    def _taken(self) -> MessageQueue:
        queue = self.queues[self.upcoming]
        self.advance()
        return queue
