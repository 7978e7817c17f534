"""What is out, as a file keeps it beside the offsets, and what it is worth after a start.

The file says of each queue what is out, in ranges by lease; the rest before its next offset is
done. It is written with the offsets, every few seconds and at the stop. After a crash it is older
than the log: what it does not know is delivered again, and nothing is lost.

A queue counts only if its committed offset is not below that of the file. So the order is: take the
queues here, one after the other; take and write the offsets; write what was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from kerolox.broker.pop.leases import Instant, Lease, QueueKey
from kerolox.broker.pop.table import PopTable
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.names import Name, TopicName
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, POP_MESSAGES_MAX
from kerolox.text import printable

__all__ = [
    "LeaseSnapshot",
    "PopSnapshot",
    "QueueSnapshot",
    "StoredQueue",
    "is_sound",
    "ranges_of",
    "restore",
    "take",
    "take_queue",
    "written_by_uptime",
]

NO_MARK = -1

_Long = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Queue = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class LeaseSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """One lease, and what is under it."""

    ranges: list[_Long]
    """First offset and count of each run, one after the other."""
    pop_time: _Long
    first_pop_time: _Long
    invisible: Annotated[int, msgspec.Meta(ge=0, le=INVISIBLE_MS_MAX)]
    left: Annotated[int, msgspec.Meta(ge=0, le=INVISIBLE_MS_MAX)]
    """Milliseconds, when the file was written, until its messages are visible again."""
    owner: Name = ""


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is out of a queue of a group."""

    committed: _Long
    group: Name
    leases: list[LeaseSnapshot]
    mark: Annotated[int, msgspec.Meta(ge=NO_MARK, le=(1 << 63) - 1)] = NO_MARK
    """Where the log has the last message before ``next_offset``: a queue that was deleted and made
    again has another one there."""
    next_offset: _Long
    queue_id: _Queue
    topic: TopicName

    @property
    def key(self) -> QueueKey:
        """Of which group and queue it is."""
        return QueueKey(self.group, self.topic, self.queue_id)


class PopSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file."""

    pop_time: _Long = 0
    """The newest of a receipt."""
    queues: list[QueueSnapshot] = []
    written_at: _Long = 0
    """By the wall clock, before the first queue was taken."""
    boot: Name = ""
    """Which boot of the machine wrote it; empty: it can't say."""
    uptime: _Long = 0
    """Milliseconds from that boot on, then."""

    def encode(self) -> bytes:
        """The file's text."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, text: bytes) -> PopSnapshot:
        """Read a file; BodyError: it is none."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise BodyError(f"the text is no PopSnapshot: {printable(str(error))}") from None


class StoredQueue(msgspec.Struct, frozen=True):
    """What the store and the table of offsets have of a queue, at a start."""

    committed: int
    """-1: none."""
    max_offset: int
    mark: int
    """Where the log has the message before the snapshot's ``next_offset``; -1: nowhere."""


def written_by_uptime(snapshot: PopSnapshot, now: Instant, boot: str, uptime: int) -> PopSnapshot:
    """The same, written as long ago as the machine's uptime says, where it is the same boot: the
    wall clock may have been set since, and leases do not go by that."""
    if not boot or snapshot.boot != boot:
        return snapshot
    passed = max(0, uptime - snapshot.uptime)
    return msgspec.structs.replace(snapshot, written_at=max(0, now.wall_ms - passed))


def take(table: PopTable, now: Instant, mark_of: Callable[[QueueKey, int], int]) -> PopSnapshot:
    """What is out now. ``mark_of``: where the log has a message of a queue, by its offset; -1:
    nowhere.
    """
    queues = [
        found
        for key in table.held_queues()
        if (found := take_queue(table, key, now, mark_of)) is not None
    ]
    return PopSnapshot(pop_time=table.pop_time, queues=queues, written_at=now.wall_ms)


def take_queue(
    table: PopTable, key: QueueKey, now: Instant, mark_of: Callable[[QueueKey, int], int]
) -> QueueSnapshot | None:
    """What is out of one queue; None: nothing. A caller may take the queues one after the other,
    with other work in between, and say the time of the first one in the file."""
    queue = table.queue(key)
    if queue is None or not queue.count:
        return None
    return QueueSnapshot(
        committed=queue.low,
        group=key.group,
        leases=[_lease_snapshot(each, each.open_offsets(), now) for each in queue.leases()],
        mark=mark_of(key, queue.next_offset - 1),
        next_offset=queue.next_offset,
        queue_id=key.queue_id,
        topic=key.topic,
    )


def _lease_snapshot(lease: Lease, offsets: Sequence[int], now: Instant) -> LeaseSnapshot:
    count = len(offsets)
    is_run = offsets[-1] - offsets[0] == count - 1
    return LeaseSnapshot(
        [offsets[0], count] if is_run else list(ranges_of(offsets)),
        lease.pop_time,
        lease.first_pop_time,
        lease.invisible_ms,
        min(max(lease.visible_at - now.steady_ms, 0), INVISIBLE_MS_MAX),
        lease.owner,
    )


def restore(
    table: PopTable,
    snapshot: PopSnapshot | None,
    now: Instant,
    stored_of: Callable[[QueueKey, int], StoredQueue | None],
) -> int:
    """Take over a snapshot, None: there is no file, into a table in which nothing is out: after a
    start, or when a slave becomes the master. How many queues were left out.

    A queue counts only if nothing speaks against it; else its group goes on at its committed
    offset, and gets again what is behind it. So an offset that was set back, a queue that was made
    again and a log that lost its end lose no message.

    ``stored_of``: what there is of a queue, with the mark of the message before an offset; None:
    the topic, the queue or the group is gone.
    """
    left_out = 0
    found = snapshot or PopSnapshot()
    passed = max(0, now.wall_ms - found.written_at)
    seen: set[QueueKey] = set()
    for each in found.queues:
        key = each.key
        stored = stored_of(key, each.next_offset - 1)
        out = _out_of(each)
        if (
            stored is None
            or out is None
            or key in seen
            or not _is_held(each, stored)
            or table.out + len(out) > table.limits.in_all
        ):
            left_out += 1
            continue
        seen.add(key)
        leases = list(_leases(key, out, stored.committed, passed, now))
        table.restore(key, each.next_offset, leases, stored.committed)
    table.begin(found.pop_time, now)
    return left_out


def is_sound(queue: QueueSnapshot, stored: StoredQueue) -> bool:
    """Whether nothing speaks against a queue of a file. ``stored``: of the message before the next
    offset of the file."""
    return _out_of(queue) is not None and _is_held(queue, stored)


def _is_held(queue: QueueSnapshot, stored: StoredQueue) -> bool:
    return (
        stored.committed >= queue.committed
        and stored.max_offset >= queue.next_offset
        and stored.mark == queue.mark
    )


def ranges_of(offsets: Iterable[int]) -> Iterator[int]:
    """First offset and count of each run of ascending offsets, one after the other."""
    first = count = 0
    for offset in offsets:
        if count and offset == first + count:
            count += 1
            continue
        if count:
            yield from (first, count)
        first, count = offset, 1
    if count:
        yield from (first, count)


def _out_of(queue: QueueSnapshot) -> list[tuple[int, LeaseSnapshot]] | None:
    """The offsets of a queue with their leases, ascending; None: they contradict each other."""
    out: list[tuple[int, LeaseSnapshot]] = []
    for lease in queue.leases:
        starts, counts = lease.ranges[::2], lease.ranges[1::2]
        if len(starts) != len(counts) or lease.first_pop_time > lease.pop_time:
            return None
        if len(starts) > POP_MESSAGES_MAX or any(c > POP_MESSAGES_MAX for c in counts):
            return None
        for first, count in zip(starts, counts, strict=True):
            out += [(offset, lease) for offset in range(first, first + count)]
    out.sort(key=lambda each: each[0])
    if any(one == other for (one, _), (other, _) in pairwise(out)):
        return None
    if out and not queue.committed <= out[0][0] <= out[-1][0] < queue.next_offset:
        return None
    return out


def _leases(
    key: QueueKey,
    out: list[tuple[int, LeaseSnapshot]],
    committed: int,
    passed_ms: int,
    now: Instant,
) -> Iterator[Lease]:
    """Leases of runs, ascending. One that was split by another is one for each part now."""
    run: list[int] = []
    of_run: LeaseSnapshot | None = None
    for offset, lease in [*out, (-1, None)]:
        if run and (lease is not of_run or len(run) == POP_MESSAGES_MAX) and of_run is not None:
            yield Lease(
                key,
                range(run[0], run[-1] + 1) if run[-1] - run[0] < len(run) else tuple(run),
                pop_time=of_run.pop_time,
                first_pop_time=of_run.first_pop_time,
                invisible_ms=of_run.invisible,
                visible_at=now.steady_ms + max(0, of_run.left - passed_ms),
                owner=of_run.owner,
            )
            run = []
        of_run = lease
        if lease is not None and offset >= committed:
            run.append(offset)
