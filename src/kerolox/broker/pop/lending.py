"""Queues that the kernel has for a while, since it answers the commonest pops faster.

A queue is lent whole, and taken back whole before anything else is done with it. What the kernel
may give out meanwhile is reserved: it counts as out, so that no limit is passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kerolox.broker.pop.leases import Lease, PopQueue, QueueKey

__all__ = ["LEASES_MAX", "SPACE_MAX", "SPACE_MIN", "Lender", "Lending", "Terms"]

SPACE_MIN, SPACE_MAX = 256, 4_096
"""How many more messages of a queue may be out while it is lent: four times those that are, within
these bounds."""

LEASES_MAX = 256
"""A queue of more pops is not lent: the way there and back would cost more than it saves."""

_LentLease = tuple[int, int, int, int, int, int, int, str, bool]


class Lender(Protocol):
    """The kernel, as far as it takes queues of pops (``kerolox.kernel.pops``)."""

    def lend_pops(
        self,
        group: str,
        topic: str,
        queue_id: int,
        committed: int,
        next_offset: int,
        space: int,
        pop_time: int,
        steady_ms: int,
        retries: tuple[int, int],
        retry_percent: int,
        broker_name: str,
        leases: Sequence[_LentLease],
    ) -> bool:
        """Take over a queue; False: it stays with the caller."""

    def lent_pops(
        self, group: str, topic: str, queue_id: int, is_back: bool
    ) -> tuple[int, int, int, Sequence[_LentLease]] | None:
        """A queue that is lent; ``is_back``: it is lent no longer."""

    def lent_counts(self) -> Sequence[tuple[str, str, int, int]]:
        """The queues that are lent, and how many messages of each are out."""

    def lent_changes(self) -> tuple[int, int, int]:
        """How many changes there were, when the first lease ends, and how many messages the broker
        renews."""

    def lent_ended(self, now_ms: int) -> Sequence[tuple[str, str, int]]:
        """The queues of which a lease has ended."""

    def lent_renewed(self, owner: str | None, until_ms: int) -> Sequence[tuple[str, str, int]]:
        """The queues with messages that the broker renews, of an owner, and that end by then."""


class Terms(NamedTuple):
    """With what a queue is lent beside what is out of it."""

    steady_ms: int
    retries: tuple[int, int]
    """Where the group goes on in both topics of its retries."""
    retry_percent: int
    broker_name: str = ""
    """In receipts of gRPC; empty: the kernel answers no receives by gRPC."""


class Lending:
    """What is lent."""

    def __init__(self, kernel: Lender | None) -> None:
        """Nothing is lent; None: nothing ever will be."""
        self._kernel = kernel
        self.reserved: dict[QueueKey, int] = {}
        """Messages of each queue that is lent that count as out."""

    @property
    def is_on(self) -> bool:
        """Whether there is a kernel to lend to."""
        return self._kernel is not None

    def __contains__(self, key: QueueKey) -> bool:
        return key in self.reserved

    def lend(self, key: QueueKey, queue: PopQueue, space: int, pop_time: int, terms: Terms) -> bool:
        """Give a queue to the kernel, with space for so many more messages; False: it can't have
        it. Its leases count here no longer."""
        pops = list(queue.pops())
        if self._kernel is None or len(pops) > LEASES_MAX or not all(map(_is_plain, pops)):
            return False
        leases = [
            (
                each.offsets[0],
                len(each.offsets),
                each.open,
                each.pop_time,
                each.first_pop_time,
                each.invisible_ms,
                each.visible_at,
                each.owner,
                each.is_renewed,
            )
            for each in pops
        ]
        is_lent = self._kernel.lend_pops(
            *key,
            queue.committed,
            queue.next_offset,
            space,
            pop_time,
            terms.steady_ms,
            terms.retries,
            terms.retry_percent,
            terms.broker_name,
            leases,
        )
        if is_lent:
            self.reserved[key] = queue.count + space
        return is_lent

    def copied(self, key: QueueKey, *, is_back: bool) -> tuple[PopQueue, int] | None:
        """A queue as it is, and the newest pop time; ``is_back``: it is lent no longer."""
        if self._kernel is None or key not in self.reserved:
            return None
        if is_back:
            del self.reserved[key]
        found = self._kernel.lent_pops(*key, is_back)
        if found is None:
            return None
        committed, next_offset, pop_time, leases = found
        queue = PopQueue(committed)
        for start, count, bits, newest, first, invisible_ms, visible_at, owner, renewed in leases:
            lease = Lease(
                key,
                range(start, start + count),
                pop_time=newest,
                first_pop_time=first,
                invisible_ms=invisible_ms,
                visible_at=visible_at,
                owner=owner,
            )
            lease.open, lease.is_renewed = bits, renewed
            queue.add(lease)
        queue.next_offset = next_offset
        return queue, pop_time

    @property
    def out(self) -> int:
        """Messages that are out of queues that are lent."""
        return sum(count for _, count in self.held())

    def held(self) -> Iterator[tuple[QueueKey, int]]:
        """The queues that are lent of which something is out, and how much."""
        if self._kernel is not None and self.reserved:
            for group, topic, queue_id, count in self._kernel.lent_counts():
                if count:
                    yield QueueKey(group, topic, queue_id), count

    @property
    def changes(self) -> int:
        """Another number after each change."""
        return 0 if self._kernel is None else self._kernel.lent_changes()[0]

    @property
    def next_end(self) -> int | None:
        """When the first lease ends, or earlier; None: there is none."""
        if self._kernel is None or not self.reserved:
            return None
        return self._kernel.lent_changes()[1]

    @property
    def renewed(self) -> int:
        """Messages of queues that are lent that the broker renews."""
        return 0 if self._kernel is None else self._kernel.lent_changes()[2]

    def of_renewed(self, owner: str | None, until_ms: int) -> list[QueueKey]:
        """The queues that are lent with such messages, of an owner, that end by then."""
        if self._kernel is None or not self.reserved:
            return []
        return [QueueKey(*each) for each in self._kernel.lent_renewed(owner, until_ms)]

    def ended(self, now_ms: int) -> list[QueueKey]:
        """The queues of which a lease has ended."""
        if self._kernel is None or not self.reserved:
            return []
        return [QueueKey(*each) for each in self._kernel.lent_ended(now_ms)]


def _is_plain(lease: Lease) -> bool:
    """Whether the kernel knows such a lease."""
    return (
        type(lease.offsets) is range
        and not lease.within
        and not lease.is_reviving
        and not lease.tries
    )
