"""Locks on queues for orderly consumers: ``RebalanceLockManager`` of RocketMQ.

A lock belongs to one client of a group. It ends some time after it was last taken or renewed
(``rebalanceLockMaxLiveTime``). For so long the queues of a client that died wait for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kerolox.broker.errors import system_busy
from kerolox.message import MessageQueue

LOCKS_MAX = 200_000
"""Locks of all groups together; who wants one more is refused."""

LOCK_BYTES = 400
"""What a lock takes besides its names, at the most."""

LOCKS_BYTES_MAX = 128 * 1024 * 1024


class QueueLocks:
    """The queue locks of all groups."""

    def __init__(self, now_ms: Callable[[], int], live_ms: int) -> None:
        """None is taken. ``now_ms``: of a clock that nobody sets; ``live_ms``: a lock's life."""
        self._now_ms = now_ms
        self._live_ms = live_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = self._bytes = 0

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Take or renew locks; the queues that the client holds now. BrokerError, code 2: there
        would be too many. Those that were free are taken.
        """
        now = self._now_ms()
        held = []
        for queue in queues:
            locks = self._locks.get(group, {})
            known = locks.get(queue)
            if known is None:
                self._check_capacity(_bytes_of(group, queue, client_id))
                locks = self._locks.setdefault(group, locks)
            elif known[0] != client_id and now - known[1] <= self._live_ms:
                continue
            else:
                self._count_lock(group, queue, known[0], -1)
            self._count_lock(group, queue, client_id, 1)
            locks[queue] = (client_id, now)
            held.append(queue)
        return held

    def turned(self, ms: int) -> None:
        """The clock was turned ahead by so much; locks live as long as they would have."""
        for locks in self._locks.values():
            for queue, (client_id, taken_ms) in locks.items():
                locks[queue] = (client_id, taken_ms + ms)

    def __len__(self) -> int:
        return self._count

    def expire(self) -> None:
        """Forget the locks that nobody renewed: whoever asks next has them anyway."""
        oldest = self._now_ms() - self._live_ms
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if lock[1] < oldest]:
                self._count_lock(group, queue, locks.pop(queue)[0], -1)
            if not locks:
                del self._locks[group]

    def _check_capacity(self, size: int) -> None:
        if self._count >= LOCKS_MAX or self._bytes + size > LOCKS_BYTES_MAX:
            raise system_busy(
                f"[OVERLOAD]system busy, {self._count} queues are locked already; try again later"
            )

    def _count_lock(self, group: str, queue: MessageQueue, client_id: str, sign: int) -> None:
        self._count += sign
        self._bytes += sign * _bytes_of(group, queue, client_id)

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give up the locks that the client holds; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
                self._count_lock(group, queue, client_id, -1)
        if not locks:
            self._locks.pop(group, None)


def _bytes_of(group: str, queue: MessageQueue, client_id: str) -> int:
    # Four bytes a character at the most, in memory; nearly all names are plain.
    names = (group, queue.topic, queue.broker_name, client_id)
    return LOCK_BYTES + sum(len(name) if name.isascii() else 4 * len(name) for name in names)
