"""What a Java 5 broker has out, from its revive log (``PopCheckPoint``, ``AckMsg``).

It writes a checkpoint for each pop, with the offset of the group behind it, and a record for each
acknowledgement. So whoever goes on with its store reads all of these once, and copies what was not
acknowledged to the topics of retries: it is revived rather than lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from kerolox.broker.pop.leases import QueueKey
from kerolox.protocol.names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX, Int32, Int64, Name

__all__ = [
    "ACK_TAG",
    "BATCH_ACK_TAG",
    "CHECKPOINT_TAG",
    "REVIVE_GROUP",
    "JavaRevival",
    "JavaReviveLog",
    "revive_topic",
]

REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""Its offsets say which records of the log are dealt with."""

CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"

CHECKPOINTS_MAX = 2_000_000
"""Checkpoints that are read; each takes some 500 bytes."""

_MESSAGES_MAX = 128
"""Messages of a checkpoint: ``n`` is a byte."""


def revive_topic(cluster: str) -> str:
    """The topic of the log (``buildClusterReviveTopic``)."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


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
    """Takes the records of the log, in any order, and those that wait in timers."""

    def __init__(self) -> None:
        """Nothing is read."""
        self._checkpoints: dict[_PopKey, _Checkpoint] = {}
        self._acknowledged: dict[_PopKey, set[int]] = {}
        self.unread = 0
        """Records that are none of the log, or beyond ``CHECKPOINTS_MAX``. Unless it is 0, messages
        may be out that are not known here."""

    def read(self, tag: str | None, body: bytes | memoryview) -> None:
        """Take a record."""
        try:
            if tag == CHECKPOINT_TAG:
                point = _decode_checkpoint(body)
                if len(self._checkpoints) < CHECKPOINTS_MAX:
                    self._checkpoints[point.t, point.c, point.q, point.so, point.pt] = point
                else:
                    self.unread += 1
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = _decode_ack(body)
                key = ack.t, ack.c, ack.q, ack.so, ack.pt
                self._acknowledged.setdefault(key, set()).update(ack.aol, (ack.ao,))
            else:
                self.unread += 1
        except msgspec.MsgspecError:
            self.unread += 1

    def revivals(self) -> Iterator[JavaRevival]:
        """What is to be copied, in the order of the pops."""
        for key, point in sorted(self._checkpoints.items(), key=lambda each: each[1].pt):
            done = self._acknowledged.get(key, ())
            queue = QueueKey(point.c, point.t, point.q)
            for offset in point.offsets():
                if offset not in done and offset >= 0:
                    yield JavaRevival(queue, offset, point.pt, point.pt + point.it)
