"""Leases: messages that were popped, as long as nobody else gets them. No I/O, no clock.

A lease is what one pop got of one queue: the parts of its receipts, when it ends, and the messages
that are out, which are neither acknowledged nor given back. It makes the parts of its messages that
nobody has read yet; so most receipts never become text. A message whose invisible time was
changed has a lease of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kerolox.codec.pulling import message_codec
from kerolox.message import PropertyKey, give_parts, parts_of
from kerolox.protocol.codes import BATCH_ITEMS_MAX
from kerolox.protocol.pop import PopReceipt, PopTextError
from kerolox.protocol.pop_names import TopicKind
from kerolox.protocol.records import head_part, head_size

if TYPE_CHECKING:
    from kerolox.message import MessageExt


class PopTimes(NamedTuple):
    """What is the same in all receipts of an answer."""

    pop_time: int
    """Milliseconds since the epoch, by the broker's clock."""
    invisible_ms: int
    revive_queue_id: int
    ends_at: float
    """When others may get the messages, by the event loop's clock."""


class Lease:
    """Messages of one pop and one queue."""

    __slots__ = (
        "_counts",
        "_receipt_start",
        "bounds",
        "broker_name",
        "kind",
        "out",
        "queue_id",
        "start_offset",
        "times",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        kind: TopicKind,
        broker_name: str,
        queue_id: int,
        start_offset: int,
        times: PopTimes,
        counts: Mapping[int, int] | None = None,
    ) -> None:
        """
        Args:
            topic: as brokers know it; not that of retries.
            kind: which of the group's topics the queue is of.
            broker_name: who knows what is out.
            queue_id: of the queue.
            start_offset: the first one that the pop read.
            times: of the pop.
            counts: how often messages of an ordered pop were delivered before, by offset.
        """
        self.topic = topic
        self.kind = kind
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.start_offset = start_offset
        self.times = times
        self._counts = counts
        self._receipt_start = ""
        """Of the text of each receipt, before the offset; empty: none was made yet."""
        self.out: dict[int, MessageExt] = {}
        """The messages that are out, by offset."""
        self.bounds: tuple[str, str] | None = None
        """A pop says nothing of its queues' ends."""

    # -- as ``RecordParts`` ---------------------------------------------------------------------
    def properties(self, kept: bytes) -> dict[str, str]:
        """The properties of a message, with its receipt."""
        properties = message_codec().decode_properties(kept, head_size(kept))
        offset = head_part(kept, "queue_offset")
        assert isinstance(offset, int)
        if not self._receipt_start:
            self._receipt_start = self.receipt(0).text.removesuffix("0")
        properties[PropertyKey.POP_RECEIPT] = f"{self._receipt_start}{offset}"
        return properties

    def part(self, kept: bytes, name: str) -> object:
        """Any other part of a message."""
        value = head_part(kept, name)
        if name == "reconsume_times" and self._counts is not None and isinstance(value, int):
            offset = head_part(kept, "queue_offset")
            assert isinstance(offset, int)
            return max(value, self._counts.get(offset, 0))
        return value

    # -- receipts -------------------------------------------------------------------------------
    def receipt(self, offset: int) -> PopReceipt:
        """The receipt of a message."""
        times = self.times
        return PopReceipt(
            start_offset=self.start_offset,
            pop_time=times.pop_time,
            invisible_time=times.invisible_ms,
            revive_queue_id=times.revive_queue_id,
            kind=self.kind,
            broker_name=self.broker_name,
            queue_id=self.queue_id,
            queue_offset=offset,
        )

    def real_topic(self, group: str) -> str:
        """The queue's own topic."""
        return self.kind.topic(self.topic, group)

    def can_batch(self, offsets: list[int]) -> bool:
        """Whether a batch of acknowledgements can name messages: they are near the start."""
        start = self.start_offset
        return start <= min(offsets) and max(offsets) < start + BATCH_ITEMS_MAX

    @property
    def renew_at(self) -> float:
        """When to renew it, by the event loop's clock: while a third of its time is left."""
        return self.times.ends_at - self.times.invisible_ms / 3000

    def anew(self, times: PopTimes, offset: int) -> Lease:
        """The lease of a message whose invisible time begins anew; nothing is out of it yet. A
        broker of RocketMQ has a checkpoint for it then that starts at the message."""
        return Lease(
            self.topic,
            self.kind,
            self.broker_name,
            self.queue_id,
            offset,
            times,
            self._counts,
        )


def lease_of(message: MessageExt, topic: str) -> tuple[Lease, int]:
    """The lease of a message, and its offset there.

    Args:
        message: one that was popped, here or by another member.
        topic: as brokers know it.

    Raises:
        PopTextError: its receipt is malformed.
        KeyError: it has none: it was not popped.
    """
    parts = parts_of(message)
    if type(parts) is Lease:
        return parts, message.queue_offset
    receipt = PopReceipt.parse(message.properties[PropertyKey.POP_RECEIPT])
    times = PopTimes(receipt.pop_time, receipt.invisible_time, receipt.revive_queue_id, 0.0)
    place = receipt.kind, receipt.broker_name, receipt.queue_id, receipt.start_offset
    if receipt.queue_offset < 0:
        raise PopTextError("the receipt says no offset")
    lease = Lease(topic, *place, times)
    if receipt.queue_offset == message.queue_offset:
        give_parts([message], lease)
    return lease, receipt.queue_offset


class Held:
    """What a consumer has received, and neither acknowledged nor given back; with bounds."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        """``bytes_max``: of bodies."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._leases: dict[Lease, int] = {}
        """Those that something is out of, the oldest first, with the bytes of its bodies."""
        self.count = 0
        self.body_bytes = 0

    def add(self, leases: Iterable[Lease], now: float) -> None:
        """Messages were received. Those at the front whose time is over count no more."""
        for lease in leases:
            if lease.out:
                size = sum([len(message.body) for message in lease.out.values()])
                self._leases[lease] = size
                self.count += len(lease.out)
                self.body_bytes += size
        while self._leases and (first := next(iter(self._leases))).times.ends_at <= now:
            self._forget(first)

    def remove(self, lease: Lease, offset: int) -> MessageExt | None:
        """A message is done, or given back; None: it counts no more."""
        message = lease.out.pop(offset, None)
        if message is None or lease not in self._leases:
            return None
        self.count -= 1
        size = min(len(message.body), self._leases[lease])
        self._leases[lease] -= size
        self.body_bytes -= size
        if not lease.out:
            self._forget(lease)
        return message

    def remove_all(self, lease: Lease, offsets: list[int]) -> None:
        """Messages are done."""
        out = lease.out
        if len(offsets) == len(out) and lease in self._leases and out.keys() == set(offsets):
            self._forget(lease)
        else:
            for offset in offsets:
                self.remove(lease, offset)

    def renewed(
        self, message: MessageExt, lease: Lease, offset: int, new: Lease, now: float
    ) -> None:
        """A message's time began anew: it is out of the new lease, if it still was out of the old
        one."""
        if lease.out.get(offset) is not message:
            return
        was_held = self.remove(lease, offset) is not None
        lease.out.pop(offset, None)
        new.out[offset] = message
        if was_held:
            self.add([new], now)

    def capacity(self, now: float) -> int:
        """How many more messages may be received now; 0: none."""
        left = self._left()
        if not left:
            for lease in [each for each in self._leases if each.times.ends_at <= now]:
                self._forget(lease)
            left = self._left()
        return left

    def _left(self) -> int:
        return max(self._count_max - self.count, 0) if self.body_bytes < self._bytes_max else 0

    def in_time(self, now: float) -> list[MessageExt]:
        """The messages whose time is not over."""
        leases = (lease for lease in self._leases if lease.times.ends_at > now)
        return [message for lease in leases for message in lease.out.values()]

    @property
    def next_end(self) -> float | None:
        """When the next lease ends; None: nothing is out."""
        return min((lease.times.ends_at for lease in self._leases), default=None)

    def _forget(self, lease: Lease) -> None:
        """Nothing is out of a lease any more."""
        self.count -= len(lease.out)
        # Whatever was done to bodies meanwhile, nothing is left of them.
        self.body_bytes -= self._leases.pop(lease)
        lease.out.clear()
