"""END_HALF_MESSAGES: the halves of a range that a selection means, ended in iterations of the event
loop.

Whoever asks goes on where an answer says that it stopped, so a request is bounded by count and
time, a turn by count and bytes. The kernel reads the range as runs of halves of one attempt. It
ends those that nothing is unusual about; :meth:`Transactions.end_now` ends the others. Both come
after a look into what was ended, in the same step, so each half is ended once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kerolox.broker.base import Base
from kerolox.broker.services.transactions import Transactions, claimed_first
from kerolox.broker.services.writer import Put, RecordWriter, Unflushed
from kerolox.kernel.append import HALF_QUEUE
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import HalfRun
from kerolox.protocol.extensions.half_messages import EndedHalves, HalfSelector
from kerolox.protocol.names import HALF_TOPIC

REQUEST_HALVES_MAX = 65_536

REQUEST_SECONDS_MAX = 1.0
"""After this time a request answers with what it did."""

SLICE_HALVES = 512
"""Halves examined before other work of the loop runs."""

SLICE_BYTES = 1 << 20
"""Bytes of records that one slice reads; the last may go beyond it."""

SLOW_HALVES_PER_SLICE = 32
"""Halves of a slice that the kernel leaves to Python before other work runs."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One request on its way."""

    group: str
    selector: HalfSelector
    commit: bool
    next: int
    end: int
    ended: int = 0
    ended_before: int = 0
    slow: int = 0
    failed: Put | None = None


class BulkEnds:
    """Ends ranges of halves of one broker."""

    def __init__(self, base: Base, transactions: Transactions, writer: RecordWriter) -> None:
        """Nothing is read before :meth:`end`."""
        config = base.config
        self._has_bit_maps = config.enable_consume_queue_ext and config.enable_calc_filter_bit_map
        self._dispatches_more = config.enable_multi_dispatch
        self._store = base.store
        self._identity = base.identity
        self._transactions = transactions
        self._ops = transactions.ops
        self._writer = writer

    async def end(
        self, group: str, start: int, end: int, selector: HalfSelector, *, commit: bool
    ) -> tuple[EndedHalves, Put | None]:
        """End the halves of a group from offset ``start`` to before ``end`` that are chosen.

        How far it came. With it a put that did not succeed: that of the half at ``next_offset``, or
        the flush that did not come in time.
        """
        low, high = self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)
        work = _Work(
            group=group, selector=selector, commit=commit, next=max(start, low), end=min(end, high)
        )
        if work.next < work.end:
            entry = self._store.queue_entry(HALF_TOPIC, HALF_QUEUE, work.next)
            await self._transactions.ready_since(entry[0] if entry else 0)
            await self._run(work)
        if work.failed is None and work.ended + work.ended_before:
            end_offset = self._store.max_physical_offset
            all_of_it = Unflushed(Put(PutMessageStatus.PUT_OK), end_offset, waits=True)
            put = await self._writer.flushed(all_of_it)
            if put.status != PutMessageStatus.PUT_OK:
                work.failed = put
        done = EndedHalves(work.next, high, work.ended, work.ended_before, half_batches=True)
        return done, work.failed

    async def _run(self, work: _Work) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REQUEST_SECONDS_MAX
        request_end = min(work.end, work.next + REQUEST_HALVES_MAX)
        while work.next < request_end:
            slice_end = min(request_end, work.next + SLICE_HALVES)
            slice_end, runs = self._store.half_runs(work.group, work.next, slice_end, SLICE_BYTES)
            for run in runs:
                if work.selector.chooses(run.sink):
                    await self._end_run(work, run)
                if work.failed is not None:
                    return
            work.next = slice_end
            if work.next < request_end:
                if loop.time() >= deadline:
                    return
                await asyncio.sleep(0)

    async def _end_run(self, work: _Work, run: HalfRun) -> None:
        """End the halves of a run; without anything between the check and the end of each."""
        offset, end = run.first, run.first + run.count
        while offset < end and work.failed is None:
            count = self._ops.ended_from(offset, end) if run.is_plain else 0
            work.ended_before += count
            offset += count
            if offset < end:
                # Those that were passed may have been ended under another place.
                if run.is_plain and self._may_be_fast and offset >= self._ops.half_position:
                    offset += self._end_fast(work, offset, self._ops.open_from(offset, end))
                if offset < end and not (run.is_plain and self._ops.is_ended(offset)):
                    await self._end_slowly(work, offset)
                    offset += 1

    @property
    def _may_be_fast(self) -> bool:
        """Nothing but the half itself says how its message is stored."""
        return self._writer.is_writable and not (self._has_bit_maps or self._dispatches_more)

    def _end_fast(self, work: _Work, offset: int, count: int) -> int:
        """Have the kernel end open halves that follow each other; how many it did."""
        start_ms = self._transactions.now_ms()
        host = self._identity.store_host
        done = self._store.end_halves(offset, count, work.commit, start_ms, host)
        self._ops.know_run(offset, done.count, done.first_op)
        work.ended += done.count
        puts = (1 + work.commit) * done.count
        self._writer.put_durations.note(self._transactions.now_ms() - start_ms, puts)
        if done.unnoted:
            self._transactions.note_place(offset + done.count)
            work.ended += 1
        return done.count + done.unnoted

    async def _end_slowly(self, work: _Work, offset: int) -> None:
        half = self._transactions.half(offset)
        if half is None:
            return
        work.slow += 1
        if work.slow % SLOW_HALVES_PER_SLICE == 0:
            await asyncio.sleep(0)
        await self._transactions.ready_to_end(half)
        ended = self._transactions.end_now(half, commit=work.commit)
        if not ended.done.put.is_stored:
            work.failed = ended.done.put
            work.next = offset
        elif ended.was_open:
            work.ended += 1
        elif claimed_first(half) < 0:
            work.ended_before += 1
