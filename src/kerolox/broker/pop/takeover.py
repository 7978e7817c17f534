"""What a Java 5 broker has out, as this broker's own file would say it.

Its committed offset is behind all that it popped. Here it is the lowest that is not done. So the
offset goes back to that one, and the file says of the rest what is out, until when, and what is
done. Receipts of the Java broker then count here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from kerolox.broker.pop.java_log import JavaRevival
from kerolox.broker.pop.leases import Instant, QueueKey
from kerolox.broker.pop.snapshot import (
    LeaseSnapshot,
    PopSnapshot,
    QueueSnapshot,
    StoredQueue,
    is_sound,
    ranges_of,
)
from kerolox.broker.pop.table import PopLimits
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, POP_MESSAGES_MAX

__all__ = ["JavaPlace", "Takeover", "take_over"]


class JavaPlace(NamedTuple):
    """What the store and the table of offsets have of a queue of a group."""

    committed: int
    """-1: none."""
    min_offset: int
    max_offset: int


@dataclass(slots=True)
class Takeover:
    """What is to be done with what a Java broker has out."""

    snapshot: PopSnapshot
    """In place of the file's."""
    commits: dict[QueueKey, int] = field(default_factory=dict)
    """Offsets that go back before the snapshot counts."""
    out: int = 0
    """Messages that are out, as the Java broker says."""
    again: int = 0
    """Messages that come again, done or not, since too many are out to know them one by one."""
    gone: int = 0
    """Messages whose topic, group, queue or record is gone."""


def take_over(
    snapshot: PopSnapshot | None,
    revivals: Iterable[JavaRevival],
    floors: Mapping[QueueKey, int],
    now: Instant,
    *,
    place_of: Callable[[QueueKey], JavaPlace | None],
    stored_of: Callable[[QueueKey, int], StoredQueue | None],
    limits: PopLimits | None = None,
) -> Takeover:
    """Join what this broker's file has with what a Java broker did since.

    Args:
        snapshot: the file; None: there is none.
        revivals: what is out at the Java broker; of two of one message the later pop counts.
        floors: from here on nothing is known of a queue.
        now: the time of both clocks.
        place_of: what there is of a queue; None: its topic, its group or the queue is gone.
        stored_of: the same, as the file's check wants it.
        limits: how much may be out. What is beyond comes again in the order of its queue.
    """
    limits = limits or PopLimits()
    taking = _Taking(snapshot or PopSnapshot(), now, limits, stored_of)
    floors = dict(floors)
    by_queue: dict[QueueKey, dict[int, JavaRevival]] = {key: {} for key in floors}
    count = 0
    for each in revivals:
        queue = by_queue.setdefault(each.key, {})
        if each.offset not in queue:
            if count >= limits.in_all:
                # There is no place for it: memory stays bounded, whatever the log says.
                floors[each.key] = min(each.offset, floors.get(each.key, each.offset))
                continue
            count += 1
        queue[each.offset] = each
    for key, found in sorted(by_queue.items()):
        place = place_of(key)
        if place is None:
            taking.done.gone += len(found)
        else:
            taking.take(key, found, place, floors.get(key))
    return taking.result()


class _Taking:
    """One takeover, queue by queue."""

    def __init__(
        self,
        before: PopSnapshot,
        now: Instant,
        limits: PopLimits,
        stored_of: Callable[[QueueKey, int], StoredQueue | None],
    ) -> None:
        passed = max(0, now.wall_ms - before.written_at)
        self._now = now
        self._limits = limits
        self._stored_of = stored_of
        self._queues = {each.key: _aged(each, passed) for each in before.queues}
        self._left = limits.in_all - sum(_count(each) for each in self._queues.values())
        self._of_group: Counter[str] = Counter()
        self.done = Takeover(before)

    def take(
        self, key: QueueKey, found: dict[int, JavaRevival], place: JavaPlace, floor: int | None
    ) -> None:
        """What is out of one queue."""
        done = self.done
        inside = sorted(each for each in found if place.min_offset <= each < place.max_offset)
        done.gone += len(found) - len(inside)
        next_offset = _next_offset(place, inside, self._space(key), floor)
        inside = [each for each in inside if each < next_offset]
        self._left -= len(inside)
        self._of_group[key.group] += len(inside)
        done.out += len(inside)
        done.again += max(place.committed - next_offset, 0)
        low = inside[0] if inside else next_offset
        if low < place.committed or place.committed < 0:
            done.commits[key] = low
        leases = list(_leases([found[each] for each in inside], self._now))
        own = self._queues.pop(key, None)
        if own is not None and next_offset == place.committed and own.next_offset > next_offset:
            stored = self._stored_of(key, own.next_offset - 1)
            if stored is not None and is_sound(own, stored):
                # The Java broker did not come as far as this one did before.
                leases += _from(own, next_offset)
                next_offset = own.next_offset
        stored = self._stored_of(key, next_offset - 1)
        if leases and stored is not None:
            self._queues[key] = QueueSnapshot(
                committed=min(each.ranges[0] for each in leases),
                group=key.group,
                leases=leases,
                mark=stored.mark,
                next_offset=next_offset,
                queue_id=key.queue_id,
                topic=key.topic,
            )

    def _space(self, key: QueueKey) -> int:
        of_group = self._limits.of_group - self._of_group[key.group]
        return max(0, min(self._limits.of_queue, of_group, self._left))

    def result(self) -> Takeover:
        """All of it."""
        self.done.snapshot = PopSnapshot(
            pop_time=self.done.snapshot.pop_time,
            queues=list(self._queues.values()),
            written_at=self._now.wall_ms,
        )
        return self.done


def _next_offset(place: JavaPlace, inside: list[int], space: int, floor: int | None) -> int:
    """Where the group goes on, behind all that is known to be out or done."""
    behind = inside[-1] + 1 if inside else place.min_offset
    next_offset = min(place.committed if place.committed >= 0 else behind, place.max_offset)
    if len(inside) > space:
        next_offset = min(next_offset, inside[space])
    if floor is not None:
        next_offset = min(next_offset, max(floor, place.min_offset))
    return next_offset


def _leases(revivals: list[JavaRevival], now: Instant) -> Iterator[LeaseSnapshot]:
    """Leases of messages of one queue, ascending."""
    run: list[JavaRevival] = []
    for each in [*revivals, None]:
        is_other = each is None or (run and each[2:] != run[0][2:])
        if run and (is_other or len(run) == POP_MESSAGES_MAX):
            yield _lease([one.offset for one in run], run[0], now)
            run = []
        if each is not None:
            run.append(each)


def _lease(offsets: list[int], first: JavaRevival, now: Instant) -> LeaseSnapshot:
    pop_time = min(max(first.pop_time, 0), now.wall_ms)
    invisible = min(max(first.visible_at_ms - first.pop_time, 0), INVISIBLE_MS_MAX)
    left = min(max(first.visible_at_ms - now.wall_ms, 0), invisible)
    return LeaseSnapshot(list(ranges_of(offsets)), pop_time, pop_time, invisible, left)


def _aged(queue: QueueSnapshot, passed: int) -> QueueSnapshot:
    leases = [
        msgspec.structs.replace(each, left=max(0, each.left - passed)) for each in queue.leases
    ]
    return msgspec.structs.replace(queue, leases=leases)


def _from(queue: QueueSnapshot, offset: int) -> Iterator[LeaseSnapshot]:
    """The leases of a queue, without what is before an offset."""
    for lease in queue.leases:
        ranges: list[int] = []
        for first, count in zip(lease.ranges[::2], lease.ranges[1::2], strict=True):
            begin, end = max(first, offset), first + count
            if begin < end:
                ranges += [begin, end - begin]
        if ranges:
            yield msgspec.structs.replace(lease, ranges=ranges)


def _count(queue: QueueSnapshot) -> int:
    return sum(sum(lease.ranges[1::2]) for lease in queue.leases)
