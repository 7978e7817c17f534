"""What a Java 5 broker has out, from its revive log (``PopCheckPoint``, ``AckMsg``).

It writes a checkpoint for each pop, with the offset of the group behind it, and a record for each
acknowledgement. So whoever goes on with its store reads all of these once: what was not
acknowledged is out there, and would be lost to the group otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from kerolox.broker.pop.leases import QueueKey
from kerolox.protocol.names import Int32, Int64, Name

__all__ = [
    "ACK_TAG",
    "BATCH_ACK_TAG",
    "CHECKPOINT_TAG",
    "JavaRevival",
    "JavaReviveLog",
]

CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"

CHECKPOINTS_MAX = 200_000
"""Checkpoints that are kept; each takes some 500 bytes. Of the others a queue knows the lowest
offset alone."""

_MESSAGES_MAX = 128
"""Messages of a checkpoint: ``n`` is a byte."""


class JavaRevival(NamedTuple):
    """A message that was out and not acknowledged."""

    key: QueueKey
    offset: int
    pop_time: int
    visible_at_ms: int
    """By the wall clock of the Java broker."""


class _Checkpoint(msgspec.Struct, frozen=True):
    c: Name
    it: Int64
    n: Annotated[int, msgspec.Meta(ge=0, lt=_MESSAGES_MAX)]
    pt: Int64
    q: Int32
    so: Int64
    t: Name
    bm: Int32 = 0
    bn: Name | None = None
    d: Annotated[list[Int32], msgspec.Meta(max_length=_MESSAGES_MAX)] | None = None

    def offsets(self) -> list[int]:
        """Those of its messages that its bits do not say to be done."""
        distances = self.d[: self.n] if self.d else range(self.n)
        return [
            self.so + distance
            for place, distance in enumerate(distances)
            if place >= 32 or not self.bm >> place & 1
        ]


class _Ack(msgspec.Struct, frozen=True):
    c: Name
    pt: Int64
    q: Int32
    so: Int64
    t: Name
    ao: Int64 = -1
    aol: list[Int64] = []


_decode_checkpoint = msgspec.json.Decoder(_Checkpoint).decode
_decode_ack = msgspec.json.Decoder(_Ack).decode

_PopKey = tuple[str, str, int, int, int]


class JavaReviveLog:
    """Takes the records of the log, and those that wait in timers: first all checkpoints, in any
    order, then the acknowledgements."""

    def __init__(self, checkpoints_max: int = CHECKPOINTS_MAX) -> None:
        """Nothing is read."""
        self._checkpoints_max = checkpoints_max
        self._checkpoints: dict[_PopKey, _Checkpoint] = {}
        self._acknowledged: dict[_PopKey, set[int]] = {}
        self.floors: dict[QueueKey, int] = {}
        """Queues with more checkpoints than are kept: from this offset on nothing is known of
        them."""
        self.unread = 0
        """Records that are none of the log: messages may be out that are not known here."""

    def __len__(self) -> int:
        """Checkpoints that are kept."""
        return len(self._checkpoints)

    @property
    def first_pop_time(self) -> int | None:
        """Of the oldest checkpoint that is kept; None: there is none."""
        return min((point.pt for point in self._checkpoints.values()), default=None)

    def read(self, tag: str | None, body: bytes | memoryview) -> bool:
        """Take a record. False: it is none of the log. An acknowledgement of a checkpoint that is
        not known is of no use, and takes no memory."""
        try:
            if tag == CHECKPOINT_TAG:
                self._take(_decode_checkpoint(body))
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = _decode_ack(body)
                key = ack.t, ack.c, ack.q, ack.so, ack.pt
                point = self._checkpoints.get(key)
                if point is not None:
                    acknowledged = {*ack.aol, ack.ao}.intersection(point.offsets())
                    self._acknowledged.setdefault(key, set()).update(acknowledged)
            else:
                self.unread += 1
                return False
        except msgspec.MsgspecError:
            self.unread += 1
            return False
        return True

    def _take(self, point: _Checkpoint) -> None:
        key = point.t, point.c, point.q, point.so, point.pt
        if key in self._checkpoints or len(self._checkpoints) < self._checkpoints_max:
            self._checkpoints[key] = point
        elif point.n and point.so >= 0:
            queue = QueueKey(point.c, point.t, point.q)
            self.floors[queue] = min(point.so, self.floors.get(queue, point.so))

    def revivals(self) -> Iterator[JavaRevival]:
        """What is out, in the order of the pops."""
        for key, point in sorted(self._checkpoints.items(), key=lambda each: each[1].pt):
            done = self._acknowledged.get(key, ())
            queue = QueueKey(point.c, point.t, point.q)
            for offset in point.offsets():
                if offset not in done and offset >= 0:
                    yield JavaRevival(queue, offset, point.pt, point.pt + point.it)
