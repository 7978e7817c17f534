"""One group and one queue: which messages are out, under which lease, and what is committed.

An offset before ``next_offset`` is either out or done. So only what is out is kept, and the
committed offset is the lowest of it. The offsets of a pop share a lease, with one bit for each that
is out. One whose invisible time is changed gets a lease of its own, within that of its pop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

__all__ = [
    "AckOutcome",
    "Changed",
    "Held",
    "InFlight",
    "Instant",
    "Lease",
    "PopQueue",
    "QueueKey",
]


class Instant(NamedTuple):
    """A time, as both clocks have it."""

    wall_ms: int
    """Since the epoch: what receipts say, and what files keep."""
    steady_ms: int
    """Of a clock that nobody sets: what an invisible time is measured by."""


class QueueKey(NamedTuple):
    """A queue of a group."""

    group: str
    topic: str
    """The queue's own: of retries, that of retries."""
    queue_id: int


class AckOutcome(Enum):
    """What became of an acknowledgement. RocketMQ answers the first three with SUCCESS."""

    DONE = auto()
    """The message is done."""
    REPEATED = auto()
    """It was done before."""
    STALE = auto()
    """The receipt is of an earlier delivery, or of none: without effect."""
    ILLEGAL = auto()
    """An ordered pop did not deliver it: MESSAGE_ILLEGAL."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A new invisible time: the members of the new receipt."""

    pop_time: int
    invisible_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """One message that is out, as operators see it."""

    offset: int
    owner: str
    pop_time: int
    """Of the delivery."""
    left_ms: int
    """Until it is visible again; negative: so long it is overdue."""
    is_order: bool = False
    tries: int = 0
    """Copies of it that failed; of an ordered one, how often it was delivered before."""


class InFlight(NamedTuple):
    """What of a queue is out, as operators see it."""

    messages: int
    pop_time: int
    """Of the lowest message."""
    next_offset: int
    """The first one that never went out."""
    owner: str
    """Who has the lowest message; empty: not known."""


class Lease:
    """Who has some messages of a pop, and until when nobody else gets them."""

    __slots__ = (
        "first_pop_time",
        "invisible_ms",
        "is_renewed",
        "is_reviving",
        "key",
        "offsets",
        "open",
        "owner",
        "parent",
        "pop_time",
        "tries",
        "visible_at",
        "within",
    )

    def __init__(
        self,
        key: QueueKey,
        offsets: Sequence[int],
        *,
        pop_time: int,
        first_pop_time: int,
        invisible_ms: int,
        visible_at: int,
        owner: str = "",
        tries: int = 0,
        parent: Lease | None = None,
    ) -> None:
        self.key = key
        self.offsets = offsets
        """Those that it began with, ascending; a range where they follow each other."""
        self.open = (1 << len(offsets)) - 1
        """Bit i: the i-th of them is out, and under this lease."""
        self.pop_time = pop_time
        """Of its receipt."""
        self.first_pop_time = first_pop_time
        """Of the delivery: receipts from it on are those of this delivery."""
        self.invisible_ms = invisible_ms
        self.visible_at = visible_at
        """By the steady clock."""
        self.owner = owner
        self.tries = tries
        """Copies of it that failed."""
        self.is_renewed = False
        """The kernel gave it out, and its owner was promised that the broker renews it."""
        self.is_reviving = False
        """A copy of it is being stored: an acknowledgement comes too late."""
        self.parent = parent
        """The lease of the pop, of which this one has a single offset; None: it is that itself."""
        self.within: dict[int, Lease] | None = None
        """Offsets of the pop that have a lease of their own."""

    @property
    def left(self) -> int:
        """Messages under it."""
        return self.open.bit_count()

    @property
    def is_over(self) -> bool:
        """Nothing of the pop is out."""
        return not self.open and not self.within

    @property
    def lowest(self) -> int:
        """The lowest offset of the pop that is out; something is."""
        bits = self.open
        found = min(self.within) if self.within else -1
        if bits:
            first = self.offsets[(bits & -bits).bit_length() - 1]
            return first if found < 0 or first < found else found
        return found

    def open_offsets(self) -> Sequence[int]:
        """What is out under it, ascending."""
        offsets, bits = self.offsets, self.open
        if bits == (1 << len(offsets)) - 1:
            return offsets
        return [each for place, each in enumerate(offsets) if bits >> place & 1]

    def is_of(self, pop_time: int) -> bool:
        """Whether a receipt is of this delivery, before or after its invisible time was changed."""
        return not self.is_reviving and self.first_pop_time <= pop_time <= self.pop_time

    def bit(self, offset: int) -> int:
        """The bit of an offset; 0: it is none of the lease's."""
        offsets = self.offsets
        return 1 << offsets.index(offset) if offset in offsets else 0

    def bits_from(self, start: int, bits: int) -> int:
        """Bits of offsets from ``start`` on, as bits of this lease."""
        offsets = self.offsets
        if type(offsets) is range:
            distance = start - offsets[0]
            placed = bits << distance if distance >= 0 else bits >> -distance
            return placed & ((1 << len(offsets)) - 1)
        return sum(
            1 << place
            for place, each in enumerate(offsets)
            if each >= start and bits >> (each - start) & 1
        )


class PopQueue:
    """What is out of one queue."""

    __slots__ = ("_first", "_live", "_pops", "_starts", "committed", "count", "next_offset")

    def __init__(self, committed: int) -> None:
        """Nothing is out. ``committed``: where the group is, and where it goes on."""
        self.committed = committed
        """What the table of offsets was told last."""
        self.next_offset = committed
        """The first one that never went out."""
        self.count = 0
        """Messages that are out."""
        self._pops: list[Lease] = []
        """One lease for each pop, ascending; those that are over go later."""
        self._starts: list[int] = []
        """The first offset of each."""
        self._first = 0
        """All leases before this one are over."""
        self._live = 0

    @property
    def low(self) -> int:
        """The lowest offset that is not done."""
        pops, first = self._pops, self._first
        while first < len(pops) and pops[first].is_over:
            first += 1
        self._first = first
        return pops[first].lowest if first < len(pops) else self.next_offset

    def add(self, lease: Lease) -> None:
        """The offsets of a lease go out; they are behind all that went out before."""
        offsets = lease.offsets
        self._pops.append(lease)
        self._starts.append(offsets[0])
        self._live += 1
        self.count += lease.left
        self.next_offset = max(self.next_offset, offsets[-1] + 1)

    def find(self, offset: int) -> Lease | None:
        """The lease of an offset; None: it is not out."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0:
            return None
        pop = self._pops[place]
        if pop.within and (own := pop.within.get(offset)) is not None:
            return own
        return pop if pop.open & pop.bit(offset) else None

    def settle(self, offset: int, lease: Lease) -> None:
        """An offset that is out, under that lease, is done."""
        self.count -= 1
        pop = lease
        if lease.parent is not None:
            pop = lease.parent
            lease.open = 0
            assert pop.within is not None
            del pop.within[offset]
        else:
            lease.open ^= lease.bit(offset)
        if pop.is_over:
            self._end_pop()

    def settle_run(self, start: int, bits: int, pop_time: int) -> tuple[int, int]:
        """Offsets are done as far as they are out under a receipt of that time: bit i is offset
        ``start`` + i. How many offsets were out, and how many leases are over thereby.
        """
        done = ended = 0
        starts, pops = self._starts, self._pops
        while bits:
            skipped = (bits & -bits).bit_length() - 1
            bits >>= skipped
            start += skipped
            place = bisect_right(starts, start) - 1
            end = pops[place].offsets[-1] + 1 if place >= 0 else start
            if start < end:
                taken, over = self._settle_bits(pops[place], start, bits, pop_time)
                done += taken
                ended += over
            elif place + 1 < len(starts):
                end = starts[place + 1]
            else:
                break
            bits >>= end - start
            start = end
        if done:
            self._drop_over()
        return done, ended

    def _settle_bits(self, pop: Lease, start: int, bits: int, pop_time: int) -> tuple[int, int]:
        meant = pop.bits_from(start, bits)
        done = ended = 0
        taken = meant & pop.open if pop.is_of(pop_time) else 0
        if taken:
            pop.open ^= taken
            done, ended = taken.bit_count(), not pop.open
        if pop.within:
            for offset, own in list(pop.within.items()):
                if meant & pop.bit(offset) and own.is_of(pop_time):
                    del pop.within[offset]
                    own.open = 0
                    done, ended = done + 1, ended + 1
        if done:
            self.count -= done
            self._live -= pop.is_over
        return done, ended

    def own(self, offset: int, lease: Lease, own: Lease) -> None:
        """An offset that is out, under that lease, gets one of its own."""
        pop = lease if lease.parent is None else lease.parent
        if pop.within is None:
            pop.within = {}
        lease.open = 0 if lease is not pop else lease.open ^ lease.bit(offset)
        pop.within[offset] = own

    def offsets_below(self, offset: int) -> list[tuple[int, Lease]]:
        """What is out before an offset."""
        found: list[tuple[int, Lease]] = []
        for pop in self.pops():
            if pop.offsets[0] >= offset:
                break
            found += [each for each in _of_pop(pop) if each[0] < offset]
        return found

    def pops(self) -> Iterator[Lease]:
        """The leases of pops of which something is out, ascending."""
        return (pop for pop in self._pops[self._first :] if not pop.is_over)

    def leases(self) -> Iterator[Lease]:
        """All under which something is out."""
        for pop in self.pops():
            if pop.open:
                yield pop
            if pop.within:
                yield from pop.within.values()

    def offsets(self) -> Iterator[tuple[int, Lease]]:
        """All that is out, ascending."""
        for pop in self.pops():
            yield from _of_pop(pop)

    def _end_pop(self) -> None:
        self._live -= 1
        self._drop_over()

    def _drop_over(self) -> None:
        """One message that is out for long must not keep the leases behind it."""
        if len(self._pops) > 2 * self._live + 16:
            self._pops = [each for each in self._pops if not each.is_over]
            self._starts = [each.offsets[0] for each in self._pops]
            self._first = 0


def _of_pop(pop: Lease) -> Iterator[tuple[int, Lease]]:
    """What of a pop is out, ascending."""
    if not pop.within:
        return ((each, pop) for each in pop.open_offsets())
    return iter(
        sorted([*((each, pop) for each in pop.open_offsets()), *pop.within.items()], key=_first)
    )


def _first(each: tuple[int, Lease]) -> int:
    return each[0]
