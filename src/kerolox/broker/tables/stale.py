"""Groups whose members may hold an offset of a queue's earlier life.

A queue that is deleted begins anew at offset 0. A member that read it before goes on at its old
offset, and commits that every few seconds. Its requests do not name the life that they mean. So the
broker remembers, by topic and group, the queues without a sign of the new life: there the group is
*stale*. It is so until it pulls the queue at its start, or an operator sets its offset. Until then
its commits do not count, and the answer to a pull further on sends it to the start.

A member that reads everything by itself (broadcasting) stands for nobody else. So each connection
that was there is stale by itself, as long as it lives. A group that read without known members may
be a program that reads ranges. It is no longer stale when that program reads anywhere.

Whoever is away at the deletion, and has stored no offset, is known to nobody: its broker may have
been killed before the first commit. So the queues that were deleted lately are remembered, too. A
group that comes back meanwhile, and has no offset there, is stale from then on.

Plain data: knows neither requests nor files. RocketMQ has nothing like it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kerolox.broker.tables.clients import EXPIRED_MS
from kerolox.broker.tables.json_file import text_bytes
from kerolox.broker.tables.topics import QUEUES_MAX

STALE_BYTES_MAX = 8 * 1024 * 1024
"""What all of it may take; the groups that became stale first are forgotten first."""

LATELY_MS = EXPIRED_MS
"""Who is away for longer is no member any more."""

LATELY_BYTES_MAX = 8 * 1024 * 1024
"""What the queues take that were deleted lately; the first ones are forgotten first."""

NOBODY_YET = ""
"""In place of a group, where files and slaves hear of queues that were deleted lately."""

PAIR_BYTES, CONNECTION_BYTES = 400, 200
"""What a topic of a group takes besides its names and its bits, and what each connection."""

ANYBODY = -1
"""In place of a connection: a group that read, and of which the broker knows nothing else."""

Key = tuple[str, str]
"""(topic, group)."""


@dataclass(slots=True, eq=False)
class _Queues:
    """The queues in which a group, or its connections, are stale: bit i stands for queue i."""

    group: int
    by_connection: dict[int, int]

    @property
    def any(self) -> int:
        """Where anybody is stale."""
        bits = self.group
        for each in self.by_connection.values():
            bits |= each
        return bits


class StaleGroups:
    """All of them, oldest first."""

    def __init__(self, queues_of: Callable[[str], int], push: Callable[[Key, bool], None]) -> None:
        """Nobody is stale. ``queues_of``: how many queues of a topic can be read; 0: there is no
        such topic. ``push`` tells the kernel whether the pulls of a group of a topic are to be
        examined.
        """
        self._queues_of = queues_of
        self._push = push
        self._table: dict[Key, _Queues] = {}
        self._watched: set[Key] = set()
        """What the kernel knows."""
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._table)

    def begin(self, topic: str, group: str, bits: int, connections: Collection[int] = ()) -> int:
        """Queues of a topic begin anew; how many groups are forgotten for it, without space.
        ``connections``: of a broadcasting group: those of its members; or ``ANYBODY``.
        """
        key = topic, group
        known = self._take(key) or _Queues(0, {})
        if connections:
            for each in connections:
                known.by_connection[each] = known.by_connection.get(each, 0) | bits
        else:
            known.group |= bits
        # Held pulls of an earlier life end, those of queues that were seen meanwhile, too.
        self._watched.discard(key)
        self._put(key, known)
        return self._evict()

    def is_stale(self, topic: str, group: str, queue_id: int, connection_id: int = ANYBODY) -> bool:
        """Whether a request of a group may come from an earlier life of a queue."""
        known = self._table.get((topic, group))
        if known is None or not 0 <= queue_id < QUEUES_MAX:
            return False
        bits = known.group
        for each in {ANYBODY, connection_id}:
            bits |= known.by_connection.get(each, 0)
        return bool(bits >> queue_id & 1)

    def is_known(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether all of a group is stale in a queue, of which the broker knows more than that it
        read."""
        known = self._table.get((topic, group))
        return known is not None and bool(known.group >> queue_id & 1)

    def refresh(self, topic: str, group: str, queue_id: int, connection_id: int = ANYBODY) -> None:
        """A group has begun in the new life of a queue."""
        key = topic, group
        if not self.is_stale(topic, group, queue_id, connection_id):
            return
        known = self._take(key)
        assert known is not None
        kept = ~(1 << queue_id)
        known.group &= kept
        for each in {ANYBODY, connection_id} & known.by_connection.keys():
            known.by_connection[each] &= kept
            if not known.by_connection[each]:
                del known.by_connection[each]
        self._put(key, known)

    def connection_closed(self, connection_id: int) -> None:
        """Whoever comes over another connection is somebody else."""
        gone = [key for key, each in self._table.items() if connection_id in each.by_connection]
        for key in gone:
            known = self._take(key)
            assert known is not None
            del known.by_connection[connection_id]
            self._put(key, known)

    def recheck(self, topic: str) -> None:
        """A topic was made by an operator, or has other queues now."""
        for key in [key for key in self._table if key[0] == topic]:
            self._push_to_kernel(key)

    def queues(self) -> dict[Key, int]:
        """The queues in which groups are stale, as bits."""
        return {key: each.group for key, each in self._table.items() if each.group}

    def shown(self) -> dict[str, str]:
        """The same for files and slaves: ``topic@group`` to bits, in hexadecimal digits."""
        return {f"{topic}@{group}": f"{bits:x}" for (topic, group), bits in self.queues().items()}

    def replace(self, shown: Mapping[str, str]) -> None:
        """Take what :meth:`shown` gave elsewhere, or what a file has of it; what is no such text is
        left out."""
        for key in list(self._table):
            self._take(key)
            self._push_to_kernel(key)
        for name, digits in shown.items():
            topic, separator, group = name.partition("@")
            # A group may have the separator in its name, as a topic can't.
            if separator and group != NOBODY_YET and (bits := _bits_in(digits)):
                self._put((topic, group), _Queues(bits, {}))
        self._evict()

    def _take(self, key: Key) -> _Queues | None:
        known = self._table.pop(key, None)
        if known is not None:
            self._bytes -= _bytes_of(key, known)
        return known

    def _put(self, key: Key, queues: _Queues) -> None:
        if queues.any:
            self._table[key] = queues
            self._bytes += _bytes_of(key, queues)
        self._push_to_kernel(key)

    def _push_to_kernel(self, key: Key) -> None:
        """Have the kernel leave such pulls to the slow path, where there is a queue to be stale
        in."""
        known = self._table.get(key)
        # A topic that is not there may be made by the next send.
        queues = bits_of(range(self._queues_of(key[0]) or QUEUES_MAX))
        is_watched = known is not None and bool(known.any & queues)
        if is_watched and key not in self._watched:
            self._watched.add(key)
            self._push(key, True)
        elif not is_watched and key in self._watched:
            self._watched.remove(key)
            self._push(key, False)

    def _evict(self) -> int:
        count = 0
        while self._bytes > STALE_BYTES_MAX and len(self._table) > 1:
            oldest = next(iter(self._table))
            self._take(oldest)
            self._push_to_kernel(oldest)
            count += 1
        return count


class DeletedLately:
    """Queues that were deleted within the last ``LATELY_MS``, oldest first."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """None. ``now_ms``: of a clock that nobody sets."""
        self._now_ms = now_ms
        self._table: dict[str, tuple[int, int]] = {}
        """Topic to (bits, since when)."""
        self._bytes = 0

    def add(self, topic: str, bits: int) -> None:
        """Queues of a topic are deleted."""
        if not bits:
            return
        known = self._take(topic)
        self._table[topic] = known | bits, self._now_ms()
        self._bytes += _bytes_of((topic, NOBODY_YET), _Queues(known | bits, {}))
        while self._bytes > LATELY_BYTES_MAX and len(self._table) > 1:
            self._take(next(iter(self._table)))

    def queues(self, topic: str) -> int:
        """Those of a topic, as bits."""
        if not self._table:
            return 0
        self._forget_old()
        return self._table.get(topic, (0, 0))[0]

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is one of them: then an offset behind its end is of an earlier life."""
        bits = self.queues(topic)
        return bool(bits) and 0 <= queue_id < QUEUES_MAX and bool(bits >> queue_id & 1)

    def shown(self) -> dict[str, str]:
        """As ``StaleGroups.shown``, with no group."""
        self._forget_old()
        return {f"{topic}@{NOBODY_YET}": f"{bits:x}" for topic, (bits, _) in self._table.items()}

    def replace(self, shown: Mapping[str, str]) -> None:
        """Take what :meth:`shown` gave elsewhere, as of now; what is no such text is left out."""
        for topic in list(self._table):
            self._take(topic)
        for name, digits in shown.items():
            topic, separator, group = name.partition("@")
            if separator and group == NOBODY_YET and (bits := _bits_in(digits)):
                self.add(topic, bits)

    def _take(self, topic: str) -> int:
        bits, _ = self._table.pop(topic, (0, 0))
        if bits:
            self._bytes -= _bytes_of((topic, NOBODY_YET), _Queues(bits, {}))
        return bits

    def _forget_old(self) -> None:
        oldest = self._now_ms() - LATELY_MS
        while self._table:
            topic, (_, since) = next(iter(self._table.items()))
            if since >= oldest:
                break
            self._take(topic)


def _bits_in(digits: str) -> int:
    """What hexadecimal digits say; 0: they are none."""
    if len(digits) > QUEUES_MAX // 4:
        return 0
    try:
        return max(int(digits, 16), 0)
    except ValueError:
        return 0


def bits_of(queue_ids: Iterable[int]) -> int:
    """Queues as bits: bit i stands for queue i."""
    if isinstance(queue_ids, range):
        return (1 << min(len(queue_ids), QUEUES_MAX)) - 1
    bits = 0
    for queue_id in queue_ids:
        if 0 <= queue_id < QUEUES_MAX:
            bits |= 1 << queue_id
    return bits


def _bytes_of(key: Key, queues: _Queues) -> int:
    size = PAIR_BYTES + text_bytes(key[0]) + text_bytes(key[1]) + queues.group.bit_length() // 8
    for bits in queues.by_connection.values():
        size += CONNECTION_BYTES + bits.bit_length() // 8
    return size
