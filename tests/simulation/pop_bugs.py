"""Deliberate bugs in pops, as :mod:`tests.simulation.bugs` has them for the rest.

Some are those of RocketMQ's own history, such as an offset that counts while messages are out.
"""

from __future__ import annotations

import functools
import heapq
from contextlib import asynccontextmanager
from typing import Any

from kerolox.broker.pop import copies, orders, snapshot
from kerolox.broker.pop.leases import AckOutcome, Instant, Lease, PopQueue
from kerolox.broker.pop.orders import OrderTable
from kerolox.broker.pop.table import PopTable, Revival
from kerolox.broker.services import pop_revival
from kerolox.broker.services.pop_reader import PopReader
from kerolox.broker.services.pop_revival import PopRevival
from kerolox.broker.services.writer import RecordWriter
from kerolox.broker.tables import pops
from tests.simulation.bugs import SeededBug, seeded
from tests.simulation.patches import Patches

POP_BUGS: dict[str, SeededBug] = {}
_bug = functools.partial(seeded, POP_BUGS)


@_bug(2)
def offset_counts_what_is_out(patches: Patches) -> None:
    """A group's offset goes on with the pop, as in RocketMQ, with nothing that remembers."""
    patches.set(PopQueue, "low", property(lambda self: self.next_offset))


@_bug(2)
def one_message_for_two(patches: Patches) -> None:
    """A pop begins at the committed offset, whatever is out."""

    def start(self: Any, key: Any, committed: int, min_offset: int = 0) -> int:
        self._queues.pop(key, None)
        return max(committed, min_offset)

    patches.set(PopTable, "start", start)


@_bug(2)
def copy_is_not_made(patches: Patches) -> None:
    """What nobody acknowledged is done when its time is over."""

    async def copied(self: Any, revival: Any) -> list[Any]:
        self._tables.pops.state.queues.revived(revival)
        return []

    patches.set(PopRevival, "_copied", copied)


@_bug(26)
def failed_copy_counts(patches: Patches) -> None:
    """A copy that could not be stored counts."""
    patches.set(PopTable, "failed", lambda self, revival, now: self.revived(revival))


@_bug(23)
def deletion_leaves_what_is_out(patches: Patches) -> None:
    """A topic is deleted, and what was out of it stays out."""

    async def forget(self: Any, is_gone: Any) -> None:
        return None

    patches.set(pops.PopTables, "forget", forget)
    patches.set(pops.PopTables, "forget_now", lambda self, is_gone: None)


@_bug(2)
def retries_are_not_read(patches: Patches) -> None:
    """A pop reads the topic alone."""
    patches.set(PopReader, "_retry_kinds", lambda self, group, topic: ())


# -- RocketMQ's own, as far as there is such a thing here -----------------------------------------
@_bug(28)
def copy_counts_before_it_is_safe(patches: Patches) -> None:
    """A message is done while its copy may still be lost (rmq#7914: buffer and revival race)."""

    async def safe(self: Any, end_offset: int) -> bool:
        return True

    patches.set(RecordWriter, "safe", safe)


@_bug(454)
def changed_message_comes_at_its_old_time(patches: Patches) -> None:
    """The end of a lease takes messages that have another one by now (rmq#7724)."""

    def expire(self: Any, now: Any, count: int) -> list[Revival]:
        found: list[Revival] = []
        while self._ends and self._ends[0][0] <= now.steady_ms and len(found) < count:
            ended = heapq.heappop(self._ends)[2]
            queue = self._queues.get(ended.key)
            leases = {each: queue.find(each) for each in ended.offsets} if queue else {}
            over = {
                offset: lease
                for offset, lease in leases.items()
                if lease is not None and not lease.is_reviving
            }
            for lease in over.values():
                lease.is_reviving = True
            found += [Revival(lease, offset) for offset, lease in over.items()]
        return found

    patches.set(PopTable, "expire", expire)


@_bug(12)
def acknowledgement_after_change_is_ignored(patches: Patches) -> None:
    """What was given more time can't be acknowledged (rmq#9583)."""
    real = Lease.is_of

    def is_of(self: Any, pop_time: int) -> bool:
        return real(self, pop_time) and self.pop_time == self.first_pop_time

    patches.set(Lease, "is_of", is_of)


@_bug(5)
def block_has_no_end_after_start(patches: Patches) -> None:
    """What was out in order keeps its queue blocked after a start (rmq#9956: stuck queues)."""
    real = orders._block_of

    def block_of(info: Any, now: Any) -> Any:
        block = real(info, now)
        if block is not None:
            block.visible_at = now.steady_ms + 3 * 24 * 3_600_000
        return block

    patches.set(orders, "_block_of", block_of)


@_bug(59)
def reset_leaves_what_is_out(patches: Patches) -> None:
    """Offsets are reset, and what is out is known as before (rmq#8479, rmq#5408)."""

    @asynccontextmanager
    async def resetting(self: Any, *_: Any) -> Any:
        yield

    patches.set(pops.PopTables, "resetting", resetting)


@_bug(9)
def no_retries_are_many(patches: Patches) -> None:
    """A group that wants no retries gets the usual number (rmq#8332)."""
    real = copies.copy_target

    def copy_target(key: Any, times: int, retries_max: int, **more: Any) -> Any:
        return real(key, times, retries_max or 16, **more)

    patches.set(pop_revival, "copy_target", copy_target)


# -- what a broker forgets ------------------------------------------------------------------------
@_bug(2)
def state_is_not_written(patches: Patches) -> None:
    """What is out is nowhere after a stop."""

    async def put(self: Any, snapshot: Any) -> None:
        return None

    patches.set(pops.PopTables, "_put", put)


@_bug(11)
def ended_lease_is_done_after_start(patches: Patches) -> None:
    """What should have come again while the broker was away does not."""
    real = snapshot._leases

    def leases(key: Any, out: Any, committed: int, passed_ms: int, now: Any) -> Any:
        for lease in real(key, out, committed, passed_ms, now):
            if lease.visible_at > now.steady_ms + 500:
                yield lease

    patches.set(snapshot, "_leases", leases)


# -- what members say, and time -------------------------------------------------------------------
@_bug(24)
def time_is_that_of_the_wall(patches: Patches) -> None:
    """Invisible times follow a clock that may be set."""

    def now(self: Any) -> Instant:
        return Instant(self._base.now_ms(), self._base.now_ms())

    patches.set(pops.PopTables, "now", now)


@_bug(14)
def given_back_is_done(patches: Patches) -> None:
    """A message that is given back at once is acknowledged."""
    real = PopTable.change

    def change(self: Any, key: Any, offset: int, pop_time: int, invisible_ms: int, now: Any) -> Any:
        changed = real(self, key, offset, pop_time, invisible_ms, now)
        if changed is not None and not invisible_ms:
            self.ack(key, offset, changed.pop_time)
        return changed

    patches.set(PopTable, "change", change)


@_bug(2)
def one_acknowledgement_ends_all(patches: Patches) -> None:
    """With one message all of its pop are done."""
    real = PopTable.ack

    def ack(self: Any, key: Any, offset: int, pop_time: int) -> AckOutcome:
        queue = self._queues.get(key)
        lease = queue.find(offset) if queue is not None else None
        outcome = real(self, key, offset, pop_time)
        if lease is not None and outcome is AckOutcome.DONE:
            for other in (lease.parent or lease).offsets:
                real(self, key, other, pop_time)
        return outcome

    patches.set(PopTable, "ack", ack)


@_bug(11)
def dead_letter_is_dropped(patches: Patches) -> None:
    """After its last retry a message is nowhere."""
    real = PopRevival._make

    async def make(self: Any, target: Any, group: str) -> None:
        await real(self, target, group)
        if target.is_dead_letter:
            patches_of_write.append(target.topic)

    real_put = RecordWriter.put_now
    patches_of_write: list[str] = []

    def put_now(self: Any, record: Any) -> Any:
        if record.topic in patches_of_write:
            record.topic = record.topic.replace("%DLQ%", "%RETRY%nobody")
        return real_put(self, record)

    patches.set(PopRevival, "_make", make)
    patches.set(RecordWriter, "put_now", put_now)


# -- order ----------------------------------------------------------------------------------------
@_bug(24)
def blocked_queue_is_open(patches: Patches) -> None:
    """An ordered pop gets the next messages while others are out."""
    patches.set(OrderTable, "is_blocked", lambda self, key, attempt_id, now: False)


@_bug(16)
def done_in_order_comes_again(patches: Patches) -> None:
    """Of an ordered pop all comes again, also what is done, as in RocketMQ."""
    patches.set(OrderTable, "done_offsets", lambda self, key, start: frozenset())
