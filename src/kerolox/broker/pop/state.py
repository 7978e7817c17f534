"""All that the broker remembers of pops, ordered ones and others, as one state machine.

A pop is planned, the caller reads the store as the plan says, and tells what goes out. Commits of
offsets gather, and the caller takes them. One group may pop a queue in order now and without order
later: what is out of one kind blocks the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from kerolox.broker.pop.leases import AckOutcome, Changed, Held, InFlight, Instant, Lease, QueueKey
from kerolox.broker.pop.lending import Lender
from kerolox.broker.pop.orders import Delivery, OrderTable
from kerolox.broker.pop.table import PopLimits, PopTable

__all__ = ["PopPlan", "PopState"]


@dataclass(frozen=True, slots=True)
class PopPlan:
    """How a queue is read for a pop."""

    key: QueueKey
    is_order: bool
    start: int
    count: int
    """Most messages to take."""
    done: frozenset[int]
    """Messages from ``start`` on that are done, and not to be taken."""


class PopState:
    """Decides; neither reads a clock nor does I/O."""

    def __init__(
        self,
        limits: PopLimits | None = None,
        kernel: Lender | None = None,
        on_renewed: Callable[[Lease], None] | None = None,
    ) -> None:
        """Nothing is out. See :class:`~kerolox.broker.pop.table.PopTable`."""
        self.queues = PopTable(limits, kernel, on_renewed)
        self.orders = OrderTable()
        self._commits: dict[QueueKey, int] = {}

    def plan(
        self,
        key: QueueKey,
        *,
        is_order: bool,
        attempt_id: str | None,
        committed: int,
        bounds: tuple[int, int],
        now: Instant,
    ) -> PopPlan | None:
        """How to read a queue; None: nothing of it may go out now. ``attempt_id``: of an ordered
        pop.

        ``committed``: where the group is; one that has no offset begins somewhere, which is
        committed before. ``bounds``: the first message that the queue has, and the offset behind
        its last one, its end. A group that somebody set behind the end goes on at the end.
        """
        min_offset, end = bounds
        is_blocked = self.orders.is_blocked(key, attempt_id if is_order else None, now)
        if is_blocked or self.queues.is_closed(key):
            return None
        if not is_order:
            start, count = self.queues.start(key, committed, min_offset), self.queues.capacity(key)
        elif self.queues.has_out(key):
            return None
        else:
            # The kernel knows no order: it would give the same messages to others.
            self.queues.take_back(key)
            start, count = max(committed, min_offset), self.orders.capacity(key)
        if count < 1:
            return None
        if start > end:
            self.reset(key, now)
            self._commits[key] = start = end
        return PopPlan(key, is_order, start, count, self.orders.done_offsets(key, start))

    def deliver(
        self,
        plan: PopPlan,
        offsets: Sequence[int],
        next_offset: int,
        *,
        attempt_id: str | None = None,
        invisible_ms: int,
        now: Instant,
        owner: str = "",
    ) -> Delivery:
        """What a pop read goes out, of ascending offsets, in the same step as its plan. ValueError:
        they are not what the plan allows; nothing is changed.

        ``next_offset``: the first one behind all that was read; of a pop that took ``plan.count``
        messages, behind the last of them. ``attempt_id``: of an ordered pop. ``invisible_ms``: how
        long nobody else gets them. ``owner``: who has them.
        """
        key = plan.key
        if not plan.is_order:
            pop_time = self.queues.deliver(
                key,
                plan.start,
                offsets,
                next_offset,
                invisible_ms=invisible_ms,
                now=now,
                owner=owner,
            )
            self.orders.pass_over(key, next_offset, now)
            return Delivery(pop_time, {}, 0)
        if offsets:
            found = self.orders.deliver(
                key,
                plan.start,
                offsets,
                next_offset,
                attempt_id=attempt_id,
                invisible_ms=invisible_ms,
                now=now,
                owner=owner,
            )
            self._commits[key] = offsets[0]
            return found
        if next_offset > plan.start:
            # All that was read is left out by the filter, or done.
            self._commits[key] = next_offset
            self.orders.pass_over(key, next_offset, now)
        return Delivery(now.wall_ms, {}, 0)

    def ack(
        self, key: QueueKey, offset: int, pop_time: int, *, is_order: bool, committed: int
    ) -> AckOutcome:
        """A message is acknowledged, with a receipt, of that pop time, of an ordered pop or of
        another one. ``committed``: where the group is: an acknowledgement in order never moves it
        back.
        """
        if not is_order:
            return self.queues.ack(key, offset, pop_time)
        if offset < committed:
            return AckOutcome.REPEATED
        outcome, commit = self.orders.ack(key, offset, pop_time)
        if commit is not None and commit > committed:
            self._commits[key] = commit
        return outcome

    def ack_batch(
        self,
        key: QueueKey,
        start: int,
        bits: int,
        pop_time: int,
        *,
        is_order: bool,
        committed: int,
    ) -> tuple[int, bool]:
        """Messages of one pop are acknowledged together, each as by :meth:`ack`: bit i is offset
        ``start`` + i. How many are done thereby, and whether one is ``ILLEGAL``: RocketMQ answers
        SUCCESS whatever became of the others."""
        if not is_order:
            return self.queues.ack_run(key, start, bits, pop_time), False
        outcomes = Counter(
            self.ack(key, start + place, pop_time, is_order=True, committed=committed)
            for place in range(bits.bit_length())
            if bits >> place & 1
        )
        return outcomes[AckOutcome.DONE], outcomes[AckOutcome.ILLEGAL] > 0

    def change(
        self,
        key: QueueKey,
        offset: int,
        pop_time: int,
        invisible_ms: int,
        now: Instant,
        *,
        is_order: bool,
    ) -> Changed | None:
        """The invisible time of a message begins anew; None: the receipt is stale, or the message
        is done."""
        table = self.orders if is_order else self.queues
        return table.change(key, offset, pop_time, invisible_ms, now)

    def in_flight(self, key: QueueKey) -> InFlight | None:
        """What of a queue is out; None: nothing."""
        queue = self.queues.queue(key)
        if queue is None or not queue.count:
            return self.orders.in_flight(key)
        _, lowest = next(queue.offsets())
        return InFlight(queue.count, lowest.first_pop_time, queue.next_offset, lowest.owner)

    def held(self, key: QueueKey, now: Instant) -> Iterator[Held]:
        """The messages of a queue that are out, in order or not, lowest first; not those that come
        again already. The queue must not change meanwhile."""
        yield from self.queues.held(key, now, self.queues.limits.in_all)
        yield from self.orders.held(key, now)

    def release(self, key: QueueKey, offsets: Collection[int], now: Instant) -> int:
        """An operator lets messages come again at once, and receipts of before count no more; how
        many. Of an ordered pop one that is named releases all."""
        count = self.queues.release(key, offsets, now)
        if any(each.offset in offsets for each in self.orders.held(key, now)):
            count += self.orders.release(key, now)
        return count

    def held_queues(self) -> Iterator[QueueKey]:
        """The queues of which something is out."""
        yield from self.queues.held_queues()
        for key, _ in self.orders.ends():
            if self.orders.in_flight(key) is not None:
                yield key

    def drain_commits(self) -> list[tuple[QueueKey, int]]:
        """The offsets to commit since the last call."""
        found = self.queues.drain_commits()
        found += self._commits.items()
        self._commits.clear()
        return found

    def reset(self, key: QueueKey, now: Instant) -> None:
        """An operator sets the offset of a group, forth or back."""
        self.queues.reset(key, now)
        self.orders.clear(key)
        self._commits.pop(key, None)

    def forget(self, is_gone: Callable[[QueueKey], bool], now: Instant) -> int:
        """Topics, queues or groups are gone, with what was out of them; how many queues."""
        for key in [each for each in self._commits if is_gone(each)]:
            del self._commits[key]
        return self.queues.forget(is_gone, now) + self.orders.forget(is_gone)
