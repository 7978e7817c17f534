"""What the op queue says: which halves were ended, and how far the check of transactions came.

The positions in both queues are offsets of the group ``CID_RMQ_SYS_TRANS``, as RocketMQ keeps them:
every half before the first one is passed, every op message before the second one is of a passed
half. Op messages from there on are read once. Those before it are read when somebody asks about a
half that is passed; no op message is older than its half, which bounds how many are read.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

from kerolox.broker.services.ended_halves import EndedHalves
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.kernel.append import HALF_QUEUE
from kerolox.kernel.read import RecordReader
from kerolox.kernel.store import StoreKernel
from kerolox.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from kerolox.protocol.records import RecordView, parse_record

PASSED_RUNS_MAX = 10_000
"""Runs of ended halves that were passed since and that the heap of waiting ones may hold beyond as
many as wait."""

UNKNOWN_OPS_MAX = 10_000
"""Op messages on their way to the disk that the position waits for. Of more it passes the oldest:
after a crash such a half is asked about once more."""

OPS_PER_SLICE = 1_000
"""Older op messages read before other work of the loop runs."""

_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)


class OpQueue:
    """Ended halves of one broker, and the positions of the check."""

    def __init__(self, store: StoreKernel, offsets: OffsetTable) -> None:
        """Nothing is read before :meth:`load`."""
        self._store = store
        self._offsets = offsets
        self.forget()

    def forget(self) -> None:
        """Know nothing, so that all is read anew: another broker wrote to the queues meanwhile."""
        self._ended = EndedHalves()
        """All that are known to be ended, passed or not."""
        self._unwritten: set[int] = set()
        """Those whose op message could not be stored: the disk is full, or fails."""
        self._waiting_count = 0
        """Halves behind the position that are ended and noted."""
        self._runs: list[tuple[int, int, int]] = []
        """A heap of (first op message, first half, count): ended halves that follow each other, not
        all of them passed when they came. All other op messages that are known are passed."""
        self._runs_max = PASSED_RUNS_MAX
        self._op_end = 0
        """After the last op message that is known."""
        self._unknown_ops: dict[int, None] = {}
        """Those before it that are not known, in their order: mostly on their way to the disk."""
        self._known_from = 0
        """Every op message from here on is known."""
        self.half_position = 0
        """Every half before it is passed."""
        self._op_position = 0
        self._is_loaded = False

    @property
    def open_halves(self) -> int:
        """Halves between position and end that no op message is known of."""
        end = self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1]
        return max(0, end - self.half_position - self._waiting_count)

    def load(self) -> None:
        """Read positions and op messages, once."""
        if self._is_loaded:
            return
        self._is_loaded = True
        self.half_position = self._position(HALF_TOPIC)
        self._op_position = self._position(OP_HALF_TOPIC)
        self._op_end = self._known_from = self._op_position
        end = self._store.queue_bounds(OP_HALF_TOPIC, HALF_QUEUE)[1]
        for start in range(self._op_position, end, OPS_PER_SLICE):
            ops = self._store.half_ops(start, min(end, start + OPS_PER_SLICE))
            for offset, half_offset in enumerate(ops, start):
                if half_offset < 0:
                    self._know_op(offset)
                else:
                    self.know(half_offset, offset)

    def is_ended(self, half_offset: int) -> bool:
        """Whether a half was ended. Of a passed one :meth:`learn_since` comes first."""
        return half_offset in self._ended

    def is_noted(self, half_offset: int) -> bool:
        """Whether the op message of a half is stored."""
        return half_offset in self._ended and half_offset not in self._unwritten

    async def learn_since(self, physical_offset: int) -> None:
        """Read what op messages behind a place in the log say, as far as it is not known."""
        first = self._first_behind(physical_offset)
        while self._known_from > first:
            start = max(first, self._known_from - OPS_PER_SLICE)
            for op_offset, half_offset in enumerate(
                self._store.half_ops(start, self._known_from), start
            ):
                if half_offset >= self.half_position:
                    self.know(half_offset, op_offset)
                elif half_offset >= 0:
                    self._ended.add(half_offset)
            self._known_from = start
            await asyncio.sleep(0)

    def know(self, half_offset: int, op_offset: int) -> None:
        """A half is done: its op message is stored."""
        if self._ended.add(half_offset) or half_offset in self._unwritten:
            self._unwritten.discard(half_offset)
            self._know_run(half_offset, 1, op_offset)
        else:
            self._know_op(op_offset)

    def ended_from(self, offset: int, end: int) -> int:
        """How many halves from an offset on were ended, before ``end``."""
        return self._ended.count_from(offset, end, is_in=True)

    def open_from(self, offset: int, end: int) -> int:
        """How many halves from an offset on were not ended, before ``end``."""
        return self._ended.count_from(offset, end, is_in=False)

    def know_run(self, first: int, count: int, first_op: int) -> None:
        """Open halves that follow each other are done; their op messages follow each other, too."""
        if count:
            self._ended.add_run(first, count)
            self._know_run(first, count, first_op)

    def _know_run(self, first: int, count: int, first_op: int) -> None:
        if first_op == self._op_end:
            self._op_end += count
        else:
            for op_offset in range(first_op, first_op + count):
                self._know_op(op_offset)
        if first > self.half_position:
            self._waiting_count += count
            heapq.heappush(self._runs, (first_op, first, count))
            if len(self._runs) > self._runs_max:
                self._runs = [run for run in self._runs if run[1] + run[2] > self.half_position]
                heapq.heapify(self._runs)
                self._runs_max = 2 * len(self._runs) + PASSED_RUNS_MAX
        elif first == self.half_position:
            self.half_position += count
            self.pass_ended()

    def know_unwritten(self, half_offset: int) -> None:
        """A half is done, but its op message could not be stored; the check tries again."""
        self._ended.add(half_offset)
        self._unwritten.add(half_offset)

    def pass_ended(self) -> None:
        """Pass the halves from the position on that are done."""
        first = self.half_position
        end = first + self._waiting_count
        end = min([end, *(offset for offset in self._unwritten if offset >= first)])
        passed = self._ended.count_from(first, end, is_in=True)
        self.half_position += passed
        self._waiting_count -= passed

    def pass_half(self, offset: int) -> None:
        """Pass the half at the position, unless it was passed meanwhile, and those behind it that
        are done."""
        if offset == self.half_position:
            self._waiting_count -= self.is_noted(offset)
            self.half_position += 1
            self.pass_ended()

    def positions(self) -> tuple[int, int]:
        """Those in the queues of halves and of op messages, as far as all is passed."""
        runs = self._runs
        while runs and runs[0][1] + runs[0][2] <= self.half_position:
            heapq.heappop(runs)
        firsts = [next(iter(self._unknown_ops), self._op_end), *(run[0] for run in runs[:1])]
        self._op_position = max(self._op_position, min(firsts))
        return self.half_position, self._op_position

    def keep_positions(self, positions: tuple[int, int]) -> None:
        """Put both positions into the table of offsets, and forget halves that are gone."""
        for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), positions, strict=True):
            if self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE) != offset:
                self._offsets.commit(
                    TRANSACTION_GROUP, topic, HALF_QUEUE, offset, "the broker", is_own=True
                )
        self._ended.drop_below(self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[0])

    def _know_op(self, op_offset: int) -> None:
        if op_offset < self._op_end:
            self._unknown_ops.pop(op_offset, None)
            return
        for offset in range(max(self._op_end, op_offset - UNKNOWN_OPS_MAX), op_offset):
            self._unknown_ops[offset] = None
        self._op_end = op_offset + 1
        while len(self._unknown_ops) > UNKNOWN_OPS_MAX:
            del self._unknown_ops[next(iter(self._unknown_ops))]

    def _position(self, topic: str) -> int:
        low, high = self._store.queue_bounds(topic, HALF_QUEUE)
        kept = self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
        return min(max(kept, low), high)

    def _first_behind(self, physical_offset: int) -> int:
        """The first op message before ``_known_from`` that lies behind a place in the log;
        ``_known_from`` when none does."""
        low, high = self._store.queue_bounds(OP_HALF_TOPIC, HALF_QUEUE)[0], self._known_from
        while low < high:
            # From the end: mostly none lies behind it.
            middle = high - 1 if high == self._known_from else (low + high) // 2
            entry = self._store.queue_entry(OP_HALF_TOPIC, HALF_QUEUE, middle)
            if entry is None or entry[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low


def records_behind(store: RecordReader, start: int, file_size: int) -> Iterator[RecordView | None]:
    """The committed messages in the log from a record's offset on; None for each other record."""
    position = start
    while position < store.max_physical_offset:
        data = store.lookup(position)
        record = None if data is None else parse_record(data, 0, len(data))
        if record is None:
            # A blank ends the file.
            position = (position // file_size + 1) * file_size
            continue
        position += record.size
        yield record if record.sys_flag & TRANSACTION_MASK == _COMMIT else None
