"""What is out of all queues of all groups; acknowledgements, changes, time that passes.

A queue is here only while something of it is out, or its offset is to be committed. One heap has
the end of each lease. Leases that end early stay in it, until they are more than those that count.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kerolox.broker.pop.leases import (
    AckOutcome,
    Changed,
    Held,
    Instant,
    Lease,
    PopQueue,
    QueueKey,
)
from kerolox.broker.pop.lending import SPACE_MAX, SPACE_MIN, Lender, Lending, Terms
from kerolox.protocol.pop_names import POP_MESSAGES_MAX

__all__ = [
    "COPY_PAUSES_S",
    "Held",
    "PopLimits",
    "PopTable",
    "Revival",
]

COPY_PAUSES_S = (
    10,
    20,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""How long after a copy failed it is tried again; the last one repeats
(``ckRewriteIntervalsInSeconds``)."""

STALE_ENDS_MAX = 1_024
"""Ends in the heap that count no more, beside as many as count."""


@dataclass(frozen=True, slots=True)
class PopLimits:
    """How many messages may be out: what is beyond is not delivered until some are done."""

    of_queue: int = 10_000
    """Of a group and a queue (``popInflightMessageThreshold``)."""
    of_group: int = 200_000
    in_all: int = 500_000


class Revival:
    """A message whose invisible time is over: its record is to be copied."""

    __slots__ = ("first_pop_time", "key", "lease", "offset")

    def __init__(self, lease: Lease, offset: int) -> None:
        self.key = lease.key
        self.offset = offset
        self.first_pop_time = lease.first_pop_time
        """For the property ``1ST_POP_TIME`` of the copy, unless the record has it."""
        self.lease = lease


class PopTable:
    """Decides what is out; neither reads a clock nor does I/O."""

    def __init__(
        self,
        limits: PopLimits | None = None,
        kernel: Lender | None = None,
        on_renewed: Callable[[Lease], None] | None = None,
    ) -> None:
        """Nothing is out. ``kernel``: what queues are lent to; None: to nobody. ``on_renewed``:
        called with what the kernel gave out and the broker is to renew, when it comes back."""
        self._on_renewed = on_renewed
        self.limits = limits or PopLimits()
        self._lending = Lending(kernel)
        self._queues: dict[QueueKey, PopQueue] = {}
        self._by_group: Counter[str] = Counter()
        self._out = 0
        self._ends: list[tuple[int, int, Lease]] = []
        """A heap: when leases end; the second number is their order."""
        self._stale_ends = 0
        self._pushed = 0
        self._pop_time = 0
        self._dirty: set[QueueKey] = set()
        """Whose offset is to be committed."""
        self._closed: list[Callable[[QueueKey], bool]] = []

    # -- reading --------------------------------------------------------------------------------
    @property
    def pop_time(self) -> int:
        """The newest of a receipt."""
        return self._pop_time

    @property
    def out(self) -> int:
        """Messages that are out."""
        lending = self._lending
        return self._out - sum(lending.reserved.values()) + lending.out

    @property
    def version(self) -> tuple[int, int, int, int]:
        """Another one after each change that a file of what is out would show."""
        return self._pushed, self._out, self._pop_time, self._lending.changes

    @property
    def next_end(self) -> int | None:
        """When the next lease ends, by the steady clock, or earlier; None: there is none."""
        own, lent = self._ends[0][0] if self._ends else None, self._lending.next_end
        return lent if own is None else own if lent is None else min(own, lent)

    def held_queues(self) -> Iterator[QueueKey]:
        """The queues of which something is out."""
        yield from (key for key, queue in self._queues.items() if queue.count)
        yield from (key for key, _ in self._lending.held())

    def queue(self, key: QueueKey) -> PopQueue | None:
        """What is out of a queue; not to be changed. One that is lent is not taken back."""
        lent = self._lending.copied(key, is_back=False)
        return self._queues.get(key) if lent is None else lent[0]

    def has_out(self, key: QueueKey) -> bool:
        """Whether something of a queue is out."""
        queue = self.queue(key)
        return queue is not None and queue.count > 0

    def held(self, key: QueueKey, now: Instant, count: int) -> list[Held]:
        """The messages of a queue that are out and can be released, lowest first, at most
        ``count``."""
        queue = self.queue(key)
        found: list[Held] = []
        for offset, lease in queue.offsets() if queue is not None else ():
            if len(found) >= count:
                break
            if lease.is_reviving:
                continue
            left = lease.visible_at - now.steady_ms
            found.append(Held(offset, lease.owner, lease.first_pop_time, left, tries=lease.tries))
        return found

    # -- pops -----------------------------------------------------------------------------------
    @contextmanager
    def closed(self, is_meant: Callable[[QueueKey], bool]) -> Iterator[None]:
        """Nobody gets anything of some queues, and none of them is lent. What is out stays out."""
        for key in [each for each in self._lending.reserved if is_meant(each)]:
            self._own(key)
        self._closed.append(is_meant)
        try:
            yield
        finally:
            self._closed.remove(is_meant)

    def is_closed(self, key: QueueKey) -> bool:
        """Whether nobody gets anything of a queue now."""
        return any(is_meant(key) for is_meant in self._closed)

    def start(self, key: QueueKey, committed: int, min_offset: int = 0) -> int:
        """Where a pop reads a queue. ``min_offset``: the first message that it still has.

        ``committed``: what the table of offsets has. When it is above what was committed here, a
        member that pulls got all before it, and none of it comes again. When it is below, a member
        that pulls was late: what this table knows is committed again.
        """
        queue = self._own(key)
        if queue is None:
            return max(committed, min_offset)
        if committed != queue.committed:
            if committed > queue.committed:
                self._settle_below(key, queue, committed)
            queue.committed = committed
            self._dirty.add(key)
        if min_offset > queue.low:
            self._settle_below(key, queue, min_offset)
        return queue.next_offset

    def capacity(self, key: QueueKey) -> int:
        """How many more messages of a queue may go out, at most those of one pop."""
        if self._closed and self.is_closed(key):
            return 0
        queue = self._own(key)
        of_queue = min(
            POP_MESSAGES_MAX, self.limits.of_queue - (queue.count if queue is not None else 0)
        )
        found = min(
            of_queue,
            self.limits.of_group - self._by_group[key.group],
            self.limits.in_all - self._out,
        )
        if found < of_queue and self._lending.reserved:
            # What is only reserved is not out.
            self.take_back_all()
            return self.capacity(key)
        return max(0, found)

    def deliver(
        self,
        key: QueueKey,
        start: int,
        offsets: Sequence[int],
        next_offset: int,
        *,
        invisible_ms: int,
        now: Instant,
        owner: str = "",
    ) -> int:
        """Messages of a queue that :meth:`start` allowed go out; their pop time. ValueError: the
        offsets are none that may go out now; nothing is changed.

        ``offsets``: ascending, at most :meth:`capacity`. None: the pop found only messages that its
        filter leaves out, which are done thereby. ``next_offset``: the first one behind all that
        was read. ``invisible_ms``: how long nobody else gets them. ``owner``: who has them, as
        operators see it.
        """
        queue = self._own(key)
        expected = queue.next_offset if queue is not None else start
        if start != expected or next_offset < start:
            raise ValueError(f"{key} was read from {start} to {next_offset}, is at {expected}")
        if len(offsets) > self.capacity(key):
            raise ValueError(f"{len(offsets)} messages of {key} are more than may go out")
        if offsets:
            kept = _ascending(offsets)
            if not kept or kept[0] < start or kept[-1] >= next_offset:
                raise ValueError(f"offsets {offsets[:4]} of {key} were not read from {start} on")
        if queue is None:
            queue = self._queues[key] = PopQueue(start)
        self._pop_time = max(self._pop_time, now.wall_ms)
        if offsets:
            self._add(
                queue,
                Lease(
                    key,
                    kept,
                    pop_time=self._pop_time,
                    first_pop_time=self._pop_time,
                    invisible_ms=invisible_ms,
                    visible_at=now.steady_ms + invisible_ms,
                    owner=owner,
                ),
            )
        queue.next_offset = next_offset
        self._dirty.add(key)
        return self._pop_time

    def _add(self, queue: PopQueue, lease: Lease) -> None:
        queue.add(lease)
        self._count_on(lease.key, lease.left)
        self._push(lease)

    # -- what clients say -----------------------------------------------------------------------
    def ack(self, key: QueueKey, offset: int, pop_time: int) -> AckOutcome:
        """A message is acknowledged. A receipt counts as long as no other delivery began, also
        after its time, and after its invisible time was changed."""
        queue = self._own(key)
        if queue is None:
            return AckOutcome.STALE
        lease = queue.find(offset)
        if lease is None:
            return AckOutcome.REPEATED if offset < queue.next_offset else AckOutcome.STALE
        if not lease.is_of(pop_time):
            return AckOutcome.STALE
        self._settle(key, queue, offset, lease)
        return AckOutcome.DONE

    def ack_run(self, key: QueueKey, start: int, bits: int, pop_time: int) -> int:
        """Messages of a pop are acknowledged together, each as by :meth:`ack`: bit i is offset
        ``start`` + i. How many are done thereby.
        """
        queue = self._own(key)
        if queue is None:
            return 0
        done, ended = queue.settle_run(start, bits, pop_time)
        if done:
            self._count_off(key, done)
            self._dirty.add(key)
            self._forget_ends(ended)
        return done

    def change(
        self, key: QueueKey, offset: int, pop_time: int, invisible_ms: int, now: Instant
    ) -> Changed | None:
        """The invisible time of a message begins anew; 0: it comes again at once. The new receipt's
        members; None: the receipt is stale, or the message is done.
        """
        queue = self._own(key)
        lease = queue.find(offset) if queue is not None else None
        if queue is None or lease is None or not lease.is_of(pop_time):
            return None
        self._pop_time = max(self._pop_time, now.wall_ms)
        self._replace(
            queue,
            offset,
            lease,
            pop_time=self._pop_time,
            invisible_ms=invisible_ms,
            visible_at=now.steady_ms + invisible_ms,
            tries=0,
        )
        return Changed(self._pop_time, invisible_ms)

    def release(self, key: QueueKey, offsets: Iterable[int], now: Instant) -> int:
        """An operator takes messages from who has them: they come again at once, and receipts of
        before count no more. How many of them were out."""
        queue = self._own(key)
        if queue is None:
            return 0
        count, pop_time = 0, self._new_generation(now)
        for offset in offsets:
            lease = queue.find(offset)
            if lease is None or lease.is_reviving:
                continue
            replaced = self._replace(
                queue,
                offset,
                lease,
                pop_time=pop_time,
                invisible_ms=0,
                visible_at=now.steady_ms,
                tries=lease.tries,
            )
            replaced.first_pop_time = pop_time
            count += 1
        return count

    def _replace(
        self,
        queue: PopQueue,
        offset: int,
        lease: Lease,
        *,
        pop_time: int,
        invisible_ms: int,
        visible_at: int,
        tries: int,
    ) -> Lease:
        """Give one offset of a lease one of its own."""
        own = Lease(
            lease.key,
            (offset,),
            pop_time=pop_time,
            first_pop_time=lease.first_pop_time,
            invisible_ms=invisible_ms,
            visible_at=visible_at,
            owner=lease.owner,
            tries=tries,
            parent=lease if lease.parent is None else lease.parent,
        )
        queue.own(offset, lease, own)
        if not lease.open and not lease.is_reviving:
            self._forget_ends(1)
        self._push(own)
        return own

    # -- time passes ----------------------------------------------------------------------------
    def expire(self, now: Instant, count: int) -> list[Revival]:
        """The messages whose invisible time is over, those of the oldest lease first, about
        ``count`` of them. Each is to be copied, and then :meth:`revived` or :meth:`failed`; until
        then it is out, and acknowledgements come too late."""
        for key in self._lending.ended(now.steady_ms):
            self._own(key)
        found: list[Revival] = []
        ends = self._ends
        while ends and ends[0][0] <= now.steady_ms and len(found) < count:
            lease = heapq.heappop(ends)[2]
            if not lease.open:
                self._stale_ends -= 1
                continue
            lease.is_reviving = True
            found += [Revival(lease, offset) for offset in lease.open_offsets()]
        return found

    def revived(self, revival: Revival) -> None:
        """Its copy is stored, or there is nothing to copy: it is done here."""
        queue = self._own(revival.key)
        if queue is not None and queue.find(revival.offset) is revival.lease:
            self._settle(revival.key, queue, revival.offset, revival.lease)

    def failed(self, revival: Revival, now: Instant) -> None:
        """Its copy is not stored: it is tried again, later each time."""
        queue = self._own(revival.key)
        if queue is None or queue.find(revival.offset) is not revival.lease:
            return
        lease = revival.lease
        pause = COPY_PAUSES_S[min(lease.tries, len(COPY_PAUSES_S) - 1)]
        self._replace(
            queue,
            revival.offset,
            lease,
            pop_time=lease.pop_time,
            invisible_ms=lease.invisible_ms,
            visible_at=now.steady_ms + 1000 * pause,
            tries=lease.tries + 1,
        )

    # -- offsets --------------------------------------------------------------------------------
    def drain_commits(self) -> list[tuple[QueueKey, int]]:
        """The offsets to commit since the last call; each is the lowest that is not done. They
        never go back, but after a reset."""
        found: list[tuple[QueueKey, int]] = []
        for key in self._dirty:
            queue = self._queues.get(key)
            if queue is None:
                continue
            low = queue.low
            if low != queue.committed:
                queue.committed = low
                found.append((key, low))
            if not queue.count:
                del self._queues[key]
        self._dirty.clear()
        return found

    def reset(self, key: QueueKey, now: Instant) -> None:
        """An operator sets the offset of a group: what is out is forgotten, its receipts are stale,
        and the next pop reads from the new offset."""
        queue = self._own(key)
        if queue is None:
            return
        del self._queues[key]
        self._new_generation(now)
        self._dirty.discard(key)
        if queue.count:
            self._count_off(key, queue.count)
        for lease in queue.leases():
            lease.open = 0
            self._forget_ends(not lease.is_reviving)

    def forget(self, is_gone: Callable[[QueueKey], bool], now: Instant) -> int:
        """Topics, queues or groups are gone, with what was out of them; how many queues."""
        self.take_back_all()
        gone = [key for key in self._queues if is_gone(key)]
        for key in gone:
            self.reset(key, now)
        return len(gone)

    def restore(
        self, key: QueueKey, next_offset: int, leases: Sequence[Lease], committed: int
    ) -> None:
        """After a start: what a snapshot has of a queue, in ascending order."""
        queue = self._queues[key] = PopQueue(committed)
        for lease in leases:
            self._pop_time = max(self._pop_time, lease.pop_time)
            self._add(queue, lease)
        queue.next_offset = max(queue.next_offset, next_offset)
        self._dirty.add(key)

    def begin(self, pop_time: int, now: Instant) -> None:
        """After a start: receipts of before, up to the newest that the snapshot knows, are older
        than all from now on.
        """
        self._pop_time = max(self._pop_time, pop_time)
        self._new_generation(now)

    # -- lending --------------------------------------------------------------------------------
    @property
    def lends(self) -> bool:
        """Whether queues are ever lent."""
        return self._lending.is_on

    def lend(self, key: QueueKey, next_offset: int, terms: Terms) -> bool:
        """Give a queue to the kernel, which answers its common pops until the next call here that
        is about it; False: it stays here. ``next_offset``: of one that is not known here."""
        if key in self._lending or key in self._dirty or self.is_closed(key):
            return False
        queue = self._queues.get(key) or PopQueue(next_offset)
        space = min(
            max(SPACE_MIN, min(4 * queue.count, SPACE_MAX)),
            self.limits.of_queue - queue.count,
            # Half of what may be out is never reserved.
            self.limits.of_group // 2 - self._by_group[key.group],
            self.limits.in_all // 2 - self._out,
        )
        if space < SPACE_MIN or not self._lending.lend(key, queue, space, self._pop_time, terms):
            return False
        self._queues.pop(key, None)
        for lease in queue.pops():
            lease.open = 0
            self._forget_ends(1)
        self._count_on(key, space)
        return True

    def take_back(self, key: QueueKey) -> None:
        """A queue is not lent any more."""
        if key in self._lending:
            self._own(key)

    def take_back_idle(self) -> None:
        """Queues of which nothing is out are not lent any more: what they reserve is for others."""
        busy = {key for key, _ in self._lending.held()}
        for key in self._lending.reserved.keys() - busy:
            self._own(key)

    def take_back_group(self, group: str) -> None:
        """No queue of a group is lent any more."""
        for key in [each for each in self._lending.reserved if each.group == group]:
            self._own(key)

    @property
    def renewed(self) -> int:
        """Messages of queues that are lent that the broker is to renew."""
        return self._lending.renewed

    def take_back_renewed(self, owner: str | None, until_ms: int) -> None:
        """Queues are not lent any more that have messages that the broker is to renew, of an owner,
        or with None of any, and that end by then. ``until_ms``: by the steady clock."""
        for key in self._lending.of_renewed(owner, until_ms):
            self._own(key)

    def take_back_all(self) -> None:
        """Nothing is lent any more."""
        for key in list(self._lending.reserved):
            self._own(key)

    def _own(self, key: QueueKey) -> PopQueue | None:
        """A queue, which is here and not lent; None: nothing of it is out."""
        if key in self._lending:
            self._count_off(key, self._lending.reserved[key])
            found = self._lending.copied(key, is_back=True)
            if found is not None and found[0].count:
                self._queues[key] = found[0]
                for lease in found[0].pops():
                    self._count_on(key, lease.left)
                    self._push(lease)
                    if lease.is_renewed:
                        lease.is_renewed = False
                        if self._on_renewed is not None:
                            self._on_renewed(lease)
            if found is not None:
                self._pop_time = max(self._pop_time, found[1])
        return self._queues.get(key)

    # -- within ---------------------------------------------------------------------------------
    def _new_generation(self, now: Instant) -> int:
        self._pop_time = max(self._pop_time, now.wall_ms) + 1
        return self._pop_time

    def _settle_below(self, key: QueueKey, queue: PopQueue, offset: int) -> None:
        for each, lease in queue.offsets_below(offset):
            self._settle(key, queue, each, lease)
        queue.next_offset = max(queue.next_offset, offset)
        self._dirty.add(key)

    def _settle(self, key: QueueKey, queue: PopQueue, offset: int, lease: Lease) -> None:
        queue.settle(offset, lease)
        self._count_off(key, 1)
        self._dirty.add(key)
        if not lease.open and not lease.is_reviving:
            self._forget_ends(1)

    def _count_on(self, key: QueueKey, count: int) -> None:
        self._out += count
        self._by_group[key.group] += count

    def _count_off(self, key: QueueKey, count: int) -> None:
        self._out -= count
        left = self._by_group[key.group] - count
        if left:
            self._by_group[key.group] = left
        else:
            del self._by_group[key.group]

    def _push(self, lease: Lease) -> None:
        self._pushed += 1
        heapq.heappush(self._ends, (lease.visible_at, self._pushed, lease))

    def _forget_ends(self, count: int) -> None:
        """Leases ended early: their ends stay in the heap, unless there are too many such."""
        self._stale_ends += count
        if self._stale_ends > STALE_ENDS_MAX + len(self._ends) // 2:
            self._ends = [each for each in self._ends if each[2].open]
            heapq.heapify(self._ends)
            self._stale_ends = 0


def _ascending(offsets: Sequence[int]) -> Sequence[int]:
    """Offsets as a lease keeps them, a range where they follow each other; empty: they do not
    ascend."""
    if type(offsets) is not range:
        previous = -1
        for offset in offsets:
            if offset <= previous:
                return ()
            previous = offset
        first, last = offsets[0], offsets[-1]
        if last - first >= len(offsets):
            return tuple(offsets)
        offsets = range(first, last + 1)
    return offsets
