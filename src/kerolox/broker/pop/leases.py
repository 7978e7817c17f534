"""One group and one queue: which messages are out, under which lease, and what is committed.

An offset before ``next_offset`` is either out or done. So only what is out is kept, and the
committed offset is the lowest of it. Offsets go out in blocks, one for each pop, which share a
lease as long as nobody changes the invisible time of one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["AckOutcome", "Block", "Changed", "InFlight", "Instant", "Lease", "PopQueue", "QueueKey"]


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


class InFlight(NamedTuple):
    """What of a queue is out, as operators see it."""

    messages: int
    pop_time: int
    """Of the lowest message."""
    next_offset: int
    """The first one that never went out."""
    owner: str
    """Who has the lowest message; empty: not known."""


class Block:
    """The offsets of one pop; ``left`` of them are out."""

    __slots__ = ("left", "offsets")

    def __init__(self, offsets: tuple[int, ...]) -> None:
        self.offsets = offsets
        self.left = len(offsets)


class Lease:
    """Who has messages of a block, and until when nobody else gets them."""

    __slots__ = (
        "block",
        "first_pop_time",
        "invisible_ms",
        "is_reviving",
        "key",
        "left",
        "owner",
        "pop_time",
        "tries",
        "visible_at",
    )

    def __init__(
        self,
        key: QueueKey,
        block: Block,
        *,
        left: int,
        pop_time: int,
        first_pop_time: int,
        invisible_ms: int,
        visible_at: int,
        owner: str = "",
        tries: int = 0,
    ) -> None:
        self.key = key
        self.block = block
        self.left = left
        """Messages under it."""
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
        self.is_reviving = False
        """A copy of it is being stored: an acknowledgement comes too late."""


class PopQueue:
    """What is out of one queue."""

    __slots__ = ("_blocks", "_live_blocks", "committed", "next_offset", "out")

    def __init__(self, committed: int) -> None:
        """Nothing is out. ``committed``: where the group is, and where it goes on."""
        self.committed = committed
        """What the table of offsets was told last."""
        self.next_offset = committed
        """The first one that never went out."""
        self.out: dict[int, Lease] = {}
        self._blocks: deque[Block] = deque()
        self._live_blocks = 0

    @property
    def low(self) -> int:
        """The lowest offset that is not done."""
        blocks = self._blocks
        while blocks and not blocks[0].left:
            blocks.popleft()
        if not blocks:
            return self.next_offset
        return next(offset for offset in blocks[0].offsets if offset in self.out)

    def add(self, lease: Lease) -> None:
        """The offsets of a lease's block go out; they are behind all that went out before."""
        block = lease.block
        for offset in block.offsets:
            self.out[offset] = lease
        self._blocks.append(block)
        self._live_blocks += 1
        self.next_offset = max(self.next_offset, block.offsets[-1] + 1)

    def settle(self, offset: int) -> Lease:
        """An offset that is out is done; its lease."""
        lease = self.out.pop(offset)
        lease.left -= 1
        block = lease.block
        block.left -= 1
        if not block.left:
            self._live_blocks -= 1
            # One message that is out for long must not keep the blocks behind it.
            if len(self._blocks) > 2 * self._live_blocks + 16:
                self._blocks = deque(each for each in self._blocks if each.left)
        return lease

    def offsets_below(self, offset: int) -> list[int]:
        """What is out before an offset."""
        found: list[int] = []
        for block in self._blocks:
            if block.offsets[0] >= offset:
                break
            found += [each for each in block.offsets if each < offset and each in self.out]
        return found

    def blocks(self) -> Iterator[Block]:
        """Those of which something is out, ascending. All messages of a lease are in one block."""
        return (block for block in self._blocks if block.left)

    def offsets(self) -> Iterator[tuple[int, Lease]]:
        """All that is out, ascending."""
        for block in self.blocks():
            for offset in block.offsets:
                lease = self.out.get(offset)
                if lease is not None:
                    yield offset, lease
