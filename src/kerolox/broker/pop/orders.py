"""Ordered pops: a queue is blocked for its group until all of the last pop is done or visible again
(``ConsumerOrderInfoManager``).

Nothing is copied: what is not acknowledged in its time is read from the queue again, from the first
such message on. So the committed offset is that message, and the file has what is done behind it.
RocketMQ delivers that again; here it stays done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from kerolox.broker.pop.leases import AckOutcome, Changed, Held, InFlight, Instant, QueueKey
from kerolox.protocol.names import NAME_BYTES_MAX, Int32, Int64
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, POP_MESSAGES_MAX

__all__ = [
    "BLOCKS_MAX",
    "BLOCK_MESSAGES_MAX",
    "KEPT_MS",
    "Delivery",
    "OrderFile",
    "OrderInfo",
    "OrderTable",
]

BLOCK_MESSAGES_MAX = 64
"""Messages of a block: as many as ``cm`` has bits."""

BLOCKS_MAX = 100_000
"""Blocks in all, each of a group and a queue."""

KEPT_MS = 24 * 3_600_000
"""How long a block is kept that nobody touches (``CLEAN_SPAN_FROM_LAST``)."""

_SEPARATOR = "@"
_BITS = (1 << 64) - 1
_SINCE_EVER_MS = 0
"""In the file: when a message is visible again that the last pop left out."""


class OrderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A block, as the file has it; members stand in the order in which fastjson writes them."""

    attempt_id: Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)] | None = msgspec.field(
        default=None, name="a"
    )
    done: Int64 = msgspec.field(default=0, name="cm")
    """Bit i: message i is done (``commitOffsetBit``)."""
    invisible_time: Int64 | None = msgspec.field(default=None, name="i")
    last_consumed: Int64 = msgspec.field(default=0, name="l")
    offsets: Annotated[list[Int64], msgspec.Meta(max_length=BLOCK_MESSAGES_MAX)] | None = (
        msgspec.field(default=None, name="o")
    )
    """The first offset, then the distances of the others from it (``offsetList``)."""
    times_consumed: dict[Int64, Int32] | None = msgspec.field(default=None, name="oc")
    """How often a message was delivered before, by its offset (``offsetConsumedCount``)."""
    visible_at: dict[Int64, Int64] | None = msgspec.field(default=None, name="ot")
    """When a message is visible again whose time was changed (``offsetNextVisibleTime``)."""
    pop_time: Int64 = msgspec.field(default=0, name="popTime")


class OrderFile(msgspec.Struct, frozen=True, kw_only=True):
    """``config/consumerOrderInfo.json``: blocks by ``topic@group`` and queue id."""

    table: dict[str, dict[int, OrderInfo]] = {}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What an answer says of an ordered pop."""

    pop_time: int
    times_by_offset: Mapping[int, int]
    """How often a message was delivered before; those that never were are missing."""
    times_consumed: int
    """The least of all."""


@dataclass(slots=True)
class _Block:
    attempt_id: str | None
    pop_time: int
    invisible_ms: int
    visible_at: int
    """By the steady clock, unless ``changed`` has the message."""
    offsets: tuple[int, ...]
    """Of the pop, and those up to the next message that is open that were done already."""
    done: int = 0
    """Bit i: message i is done."""
    later: frozenset[int] = frozenset()
    """Done, but behind an open message that the pop left out, as it got fewer than the last one."""
    times: dict[int, int] = field(default_factory=dict)
    changed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By offset: when it is visible again, by the wall clock and by the steady one."""
    touched_ms: int = 0
    owner: str = ""
    """Of this run alone: the file has none."""

    def is_done(self, place: int) -> bool:
        return bool(self.done >> place & 1)

    def open_offsets(self) -> list[int]:
        return [each for place, each in enumerate(self.offsets) if not self.is_done(place)]

    def end_of(self, offset: int) -> int:
        changed = self.changed.get(offset)
        return changed[1] if changed is not None else self.visible_at


class OrderTable:
    """The blocks of all groups; neither reads a clock nor does I/O."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        """No queue is blocked."""
        self._blocks_max = blocks_max
        self._blocks: dict[QueueKey, _Block] = {}
        self._floor = 0
        """Pop times from it on are of no receipt that is stale."""
        self.is_touched = False
        """The file lacks a change."""

    def __len__(self) -> int:
        return len(self._blocks)

    # -- pops -----------------------------------------------------------------------------------
    def is_blocked(self, key: QueueKey, attempt_id: str | None, now: Instant) -> bool:
        """Whether a pop gets nothing of a queue: a message of the last pop is neither done nor
        visible again, and it is not the same attempt, whose answer was lost."""
        block = self._blocks.get(key)
        if block is None or (attempt_id and block.attempt_id == attempt_id):
            return False
        free_at = self.free_at(key)
        return free_at is not None and now.steady_ms < free_at

    def free_at(self, key: QueueKey) -> int | None:
        """When the last message of a block is visible again, by the steady clock; None: all are
        done, or there is no block. Who waits is to be woken then."""
        block = self._blocks.get(key)
        if block is None:
            return None
        return max(map(block.end_of, block.open_offsets()), default=None)

    def next_pop_time(self, key: QueueKey, now: Instant) -> int:
        """What the receipts of a pop would say now: higher than those of the block before."""
        block = self._blocks.get(key)
        return max(self._floor, now.wall_ms, block.pop_time + 1 if block is not None else 0)

    def ends(self) -> Iterator[tuple[QueueKey, int]]:
        """The blocked queues, and the offset behind the last message of each block."""
        for key, block in self._blocks.items():
            yield key, max(block.offsets[-1], *block.later, -1) + 1

    def in_flight(self, key: QueueKey) -> InFlight | None:
        """What of a block is not done; None: nothing."""
        block = self._blocks.get(key)
        left = block.open_offsets() if block is not None else []
        if block is None or not left:
            return None
        return InFlight(len(left), block.pop_time, block.offsets[-1] + 1, block.owner)

    def capacity(self, key: QueueKey) -> int:
        """How many messages a pop may get: those that are not done, and more as long as the block
        has bits for all, and for one that the pop leaves out."""
        block = self._blocks.get(key)
        if block is None:
            return POP_MESSAGES_MAX if len(self._blocks) < self._blocks_max else 0
        done = block.done.bit_count() + len(block.later)
        return min(POP_MESSAGES_MAX, max(BLOCK_MESSAGES_MAX - 1 - done, 1))

    def done_offsets(self, key: QueueKey, start: int) -> frozenset[int]:
        """The messages from an offset on that are done: a pop that reads them passes over them."""
        block = self._blocks.get(key)
        if block is None:
            return frozenset()
        done = {each for place, each in enumerate(block.offsets) if block.is_done(place)}
        return frozenset(each for each in done | block.later if each >= start)

    def deliver(
        self,
        key: QueueKey,
        start: int,
        offsets: Sequence[int],
        next_offset: int = 0,
        *,
        attempt_id: str | None,
        invisible_ms: int,
        now: Instant,
        owner: str = "",
    ) -> Delivery:
        """Messages of a queue that is not blocked go out in order; they are a new block.
        ValueError: the offsets are none that may go out now; nothing is changed.

        ``start``: where it was read: the committed offset. ``offsets``: of the messages, ascending,
        at least one, at most :meth:`capacity`, without :meth:`done_offsets`. ``next_offset``: the
        first one behind all that was read, where that is not the one behind the last message.
        ``invisible_ms``: how long the queue is blocked at the most.
        """
        if not offsets or offsets[0] < start or list(offsets) != sorted(set(offsets)):
            raise ValueError(f"offsets {offsets[:4]} of {key} do not ascend from {start} on")
        if len(offsets) > self.capacity(key):
            raise ValueError(f"{len(offsets)} messages of {key} are more than may go out")
        before = self._blocks.get(key)
        done = self.done_offsets(key, start)
        if not done.isdisjoint(offsets):
            raise ValueError(f"of offsets {offsets[:4]} of {key} some are done")
        times: dict[int, int] = {}
        if before is not None and attempt_id and before.attempt_id == attempt_id:
            times = {each: before.times[each] for each in offsets if each in before.times}
        elif before is not None:
            known = set(before.offsets)
            times = {each: before.times.get(each, 0) + 1 for each in offsets if each in known}
        pop_time = self.next_pop_time(key, now)
        end = max(next_offset, offsets[-1] + 1)
        while end in done:
            end += 1
        later = frozenset(each for each in done if each >= end)
        all_offsets = tuple(sorted((done - later).union(offsets)))
        self._blocks[key] = _Block(
            attempt_id=attempt_id,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            visible_at=now.steady_ms + invisible_ms,
            offsets=all_offsets,
            done=sum(1 << place for place, each in enumerate(all_offsets) if each in done),
            later=later,
            times=times,
            touched_ms=now.wall_ms,
            owner=owner,
        )
        self.is_touched = True
        least = min(times.values()) if len(times) == len(offsets) else 0
        return Delivery(pop_time, times, least)

    def pass_over(self, key: QueueKey, offset: int, now: Instant) -> None:
        """All before an offset went out without order, or is left out by the filter: nothing is
        blocked, and receipts of before are stale. What is done from there on stays done."""
        done = tuple(sorted(self.done_offsets(key, offset)))
        self.clear(key)
        if done:
            self._blocks[key] = _Block(
                attempt_id=None,
                pop_time=max(self._floor, now.wall_ms),
                invisible_ms=0,
                visible_at=now.steady_ms,
                offsets=done,
                done=(1 << len(done)) - 1,
                touched_ms=now.wall_ms,
            )

    @property
    def is_empty(self) -> bool:
        """No queue was popped in order."""
        return not self._blocks

    # -- what clients say -----------------------------------------------------------------------
    def ack(self, key: QueueKey, offset: int, pop_time: int) -> tuple[AckOutcome, int | None]:
        """A message is acknowledged: what became of it, and the offset to commit: the first that is
        not done; None: none.
        """
        block = self._blocks.get(key)
        if block is None or block.pop_time != pop_time:
            return AckOutcome.STALE, None
        if offset not in block.offsets:
            return AckOutcome.ILLEGAL, None
        bit = 1 << block.offsets.index(offset)
        if block.done & bit:
            return AckOutcome.REPEATED, None
        block.done |= bit
        self.is_touched = True
        left = block.open_offsets()
        return AckOutcome.DONE, left[0] if left else block.offsets[-1] + 1

    def change(
        self, key: QueueKey, offset: int, pop_time: int, invisible_ms: int, now: Instant
    ) -> Changed | None:
        """The invisible time of a message begins anew; its receipt keeps its pop time, and has the
        invisible time from then on. None: the receipt is stale, or the message is done."""
        block = self._blocks.get(key)
        if block is None or block.pop_time != pop_time or offset not in block.open_offsets():
            return None
        visible_wall = now.wall_ms + invisible_ms
        block.changed[offset] = visible_wall, now.steady_ms + invisible_ms
        block.touched_ms = now.wall_ms
        self.is_touched = True
        return Changed(pop_time, max(0, visible_wall - pop_time))

    # -- what operators do ----------------------------------------------------------------------
    def held(self, key: QueueKey, now: Instant) -> list[Held]:
        """The messages of a block that are not done, while it blocks its queue."""
        block = self._blocks.get(key)
        if block is None or not self.is_blocked(key, None, now):
            return []
        return [
            Held(
                each,
                block.owner,
                block.pop_time,
                block.end_of(each) - now.steady_ms,
                is_order=True,
                tries=block.times.get(each, 0),
            )
            for each in block.open_offsets()
        ]

    def release(self, key: QueueKey, now: Instant) -> int:
        """All of a block that is not done is visible again, and its receipts are stale; how many
        messages. What is done stays done."""
        block = self._blocks.get(key)
        left = block.open_offsets() if block is not None else []
        if block is None or not left:
            return 0
        block.changed |= dict.fromkeys(left, (now.wall_ms, now.steady_ms))
        block.pop_time = max(block.pop_time + 1, now.wall_ms)
        block.attempt_id = None
        self.is_touched = True
        return len(left)

    def clear(self, key: QueueKey) -> None:
        """The offset of a group is reset: nothing is blocked, and receipts of before are stale."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._floor = max(self._floor, block.pop_time + 1)
            self.is_touched = True

    def forget(self, is_gone: Callable[[QueueKey], bool], now: Instant | None = None) -> int:
        """Topics, queues or groups are gone, with their blocks; how many. ``now``: blocks that
        nobody touched for ``KEPT_MS`` go, too."""
        gone = [
            key
            for key, block in self._blocks.items()
            if is_gone(key) or (now is not None and now.wall_ms - block.touched_ms > KEPT_MS)
        ]
        for key in gone:
            self.clear(key)
        return len(gone)

    # -- the file -------------------------------------------------------------------------------
    def snapshot(self, is_left_out: Callable[[QueueKey], bool] | None = None) -> dict[str, object]:
        """The file, as ``fastjson.dumps_pretty`` writes it byte for byte as RocketMQ does; maps are
        sorted, where RocketMQ has the order of a hash table."""
        table: dict[str, dict[int, OrderInfo]] = {}
        for key, block in sorted(self._blocks.items()):
            if is_left_out is not None and is_left_out(key):
                continue
            queues = table.setdefault(f"{key.topic}{_SEPARATOR}{key.group}", {})
            queues[key.queue_id] = _info_of(block)
        return {"table": table}

    def load(self, file: OrderFile, now: Instant) -> int:
        """Take over a file, ours or RocketMQ's; how many blocks of it are left out as damaged.

        A message of it is invisible for as long as the file says, but not for longer than from now
        on its invisible time.
        """
        left_out = 0
        for text, queues in file.table.items():
            topic, separator, group = text.partition(_SEPARATOR)
            for queue_id, info in queues.items():
                block = _block_of(info, now) if separator and queue_id >= 0 else None
                if block is None or len(self._blocks) >= self._blocks_max:
                    left_out += 1
                    continue
                self._blocks[QueueKey(group, topic, queue_id)] = block
        return left_out


def _info_of(block: _Block) -> OrderInfo:
    """A block, as the file has it.

    Before what is ``later`` stands the first message that the pop left out, visible since ever. So
    RocketMQ does not pass over it: to it the offset behind a block's last message is the next.
    """
    done, visible_at = block.done, {each: wall for each, (wall, _) in block.changed.items()}
    first, *others = block.offsets
    if block.later:
        left_out = block.offsets[-1] + 1
        visible_at[left_out] = _SINCE_EVER_MS
        place = len(block.offsets) + 1
        behind = sorted(block.later)[: BLOCK_MESSAGES_MAX - place]
        done |= ((1 << len(behind)) - 1) << place
        others += [left_out, *behind]
    return OrderInfo(
        attempt_id=block.attempt_id,
        done=done if done < 1 << 63 else done - _BITS - 1,
        invisible_time=block.invisible_ms,
        last_consumed=block.touched_ms,
        offsets=[first, *(each - first for each in others)],
        times_consumed=dict(sorted(block.times.items())) or None,
        visible_at=dict(sorted(visible_at.items())) or None,
        pop_time=block.pop_time,
    )


def _block_of(info: OrderInfo, now: Instant) -> _Block | None:
    """A block of the file; None: it is empty or damaged."""
    if not info.offsets or info.offsets[0] < 0:
        return None
    first, *others = info.offsets
    offsets = (first, *(first + each for each in others))
    if list(offsets) != sorted(set(offsets)) or offsets[-1] >= 1 << 63:
        return None
    done = info.done & ((1 << len(offsets)) - 1)
    visible_at = info.visible_at or {}
    ends = (i for i, x in enumerate(offsets) if i and visible_at.get(x) == _SINCE_EVER_MS)
    end = next(ends, len(offsets))
    later = frozenset(x for i, x in enumerate(offsets) if i > end and done >> i & 1)
    offsets, done = offsets[:end], done & ((1 << end) - 1)
    invisible = min(max(info.invisible_time or 0, 0), INVISIBLE_MS_MAX)
    left = min(max(info.pop_time + invisible - now.wall_ms, 0), invisible)
    # A clock that was set back since must not prolong a time.
    since = max(now.wall_ms, info.last_consumed)
    changed = {
        offset: (wall, now.steady_ms + min(max(wall - since, 0), INVISIBLE_MS_MAX))
        for offset, wall in visible_at.items()
        if offset in offsets
    }
    times = info.times_consumed or {}
    return _Block(
        attempt_id=info.attempt_id,
        pop_time=info.pop_time,
        invisible_ms=invisible,
        visible_at=now.steady_ms + left,
        offsets=offsets,
        done=done,
        later=later,
        times={each: n for each, n in times.items() if each in offsets and n > 0},
        changed=changed,
        touched_ms=info.last_consumed,
    )
