"""Locks on queues for orderly consumers: ``RebalanceLockManager`` of RocketMQ.

A lock belongs to one client of a group and ends some time after it was last taken or renewed
(``rebalanceLockMaxLiveTime``): so long the queues of a client that died wait for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kerolox.errors import BrokerError
from kerolox.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from kerolox.message import MessageQueue

__all__ = ["LOCKS_MAX", "QueueLocks"]

LOCKS_MAX = 200_000
"""Locks of all groups together; who wants one more is refused."""


class QueueLocks:
    """The queue locks of all groups."""

    def __init__(self, now_ms: Callable[[], int], live_ms: int) -> None:
        """None is taken. ``now_ms``: the clock; ``live_ms``: how long a lock lives."""
        self._now_ms = now_ms
        self._live_ms = live_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Take or renew locks; the queues that the client holds now.

        Raises:
            BrokerError: code 2; there would be too many. Those that were free are taken.
        """
        now = self._now_ms()
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            known = locks.get(queue)
            if known is None:
                self._count_one_more()
            elif known[0] != client_id and now - known[1] <= self._live_ms:
                continue
            locks[queue] = (client_id, now)
            held.append(queue)
        return held

    def __len__(self) -> int:
        return self._count

    def expire(self) -> None:
        """Forget the locks that nobody renewed: whoever asks next has them anyway."""
        oldest = self._now_ms() - self._live_ms
        for group, locks in list(self._locks.items()):
            kept = {queue: lock for queue, lock in locks.items() if lock[1] >= oldest}
            self._count -= len(locks) - len(kept)
            if kept:
                self._locks[group] = kept
            else:
                del self._locks[group]

    def _count_one_more(self) -> None:
        if self._count >= LOCKS_MAX:
            raise BrokerError(
                f"[OVERLOAD]system busy, {LOCKS_MAX} queues are locked already; try again later",
                code=ResponseCode.SYSTEM_BUSY,
            )
        self._count += 1

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give up the locks that the client holds; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)
