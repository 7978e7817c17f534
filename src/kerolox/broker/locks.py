"""Locks on queues for orderly consumers: ``RebalanceLockManager`` of RocketMQ.

A lock belongs to one client of a group and ends some time after it was last taken or renewed
(``rebalanceLockMaxLiveTime``): so long the queues of a client that died wait for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.message import MessageQueue

__all__ = ["QueueLocks"]


class QueueLocks:
    """The queue locks of all groups."""

    def __init__(self, now_ms: Callable[[], int], live_ms: int) -> None:
        """None is taken. ``now_ms``: the clock; ``live_ms``: how long a lock lives."""
        self._now_ms = now_ms
        self._live_ms = live_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Take or renew locks; the queues that the client holds now."""
        now = self._now_ms()
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            owner, since = locks.get(queue, (client_id, now))
            if owner == client_id or now - since > self._live_ms:
                locks[queue] = (client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give up the locks that the client holds; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)
