"""The bytes between a master and its slaves, on ``haListenPort`` of the master.

A slave sends nothing but reports: eight bytes, the physical offset that its log reaches. The first
one says where the master begins. The master sends frames: twelve bytes, physical offset and size of
the body, and then raw bytes of its log. A frame without a body is a heartbeat.

Two brokers of ours say more. A report below 0 is a message: ``-1 - n``, followed by ``n`` bytes.
The slave begins with the empty one, ``HELLO``: a Java master waits on after a report of -1. Ours
answers with a note, a frame at offset -1 whose body is JSON (:class:`Note`); only then the slave
says where to begin, and 0 means the begin of the log. Where no note comes the master is taken for
a Java one.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgspec

from kerolox.errors import KeroloxError

REPORT = Struct(">q")
HEAD = Struct(">qi")

HELLO = REPORT.pack(-1)
"""A slave of ours opens with it."""
NOTE_OFFSET = -1
"""Where a frame is said to begin that is a note."""
NOTE_BYTES_MAX = 4_096
"""Of a note, and of a message."""

FRAME_BYTES = 1024 * 1024
"""Between two brokers of ours a frame ends where the log has a multiple of these bytes, or has no
more: the slave writes each by one call, in whole pages, which is half of what many cost."""
READ_BYTES = FRAME_BYTES + 64 * 1024
"""Asked of a socket at once, at most."""


class ReplicationError(KeroloxError):
    """A connection between master and slave can't go on; the text says why, and what helps."""


class ReplicationSettings(NamedTuple):
    """The ``ha*`` settings of one end of a connection."""

    heartbeat_ms: int = 5_000
    """``haSendHeartbeatInterval``: longest silence of this end."""
    housekeeping_ms: int = 20_000
    """``haHousekeepingInterval``: longest silence of the other end."""
    batch_bytes: int = 32 * 1024
    """``haTransferBatchSize``: most bytes of the log in one frame to a Java slave."""


class Note(msgspec.Struct, omit_defaults=True):
    """A note between two brokers of ours: the master's answer to a report of -1."""

    begin: int = 0
    end: int = 0
    """Physical offsets: of its log."""
    file_size: int = msgspec.field(default=0, name="fileSize")
    """``mappedFileSizeCommitLog``."""
    nonce: str = ""
    """A number for the proof of an account (:mod:`kerolox.security.slave_proof`), which the slave
    sends as a message. Only then a note with the bounds follows."""
    refused: str = ""
    """Why it closes the connection."""

    def frame(self) -> bytes:
        """Its bytes."""
        body = msgspec.json.encode(self)
        return HEAD.pack(NOTE_OFFSET, len(body)) + body

    @classmethod
    def read(cls, body: bytes | memoryview) -> Note:
        """The note that a frame is."""
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ReplicationError(f"the master sent a note that is none: {error}") from None


class Reports:
    """Cuts what a slave sends into offsets and messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int | bytes]:
        """What came whole so far: offsets, and messages as bytes; ``HELLO`` is the empty one.
        ReplicationError: a number is neither.
        """
        data = self._rest + data
        found: list[int | bytes] = []
        at = 0
        while at + REPORT.size <= len(data):
            (number,) = REPORT.unpack_from(data, at)
            size = -1 - number if number < 0 else 0
            if size > NOTE_BYTES_MAX:
                raise ReplicationError(f"it reports the offset {number}: it is no slave")
            end = at + REPORT.size + size
            if end > len(data):
                break
            found.append(data[end - size : end] if number < 0 else number)
            at = end
        self._rest = data[at:]
        return found


class Piece(NamedTuple):
    """A part of the body of a frame, a whole heartbeat, or at ``NOTE_OFFSET`` a whole note."""

    offset: int
    data: memoryview


class Frames:
    """Cuts what a master sends into pieces, as they come: no body of a log is kept."""

    def __init__(self) -> None:
        self._head = self._note = b""
        self._offset = self._left = 0

    @property
    def next_bytes(self) -> int:
        """How many to read next, so that what is read ends with a frame of ``FRAME_BYTES``."""
        after_next = self._left + HEAD.size - len(self._head) + FRAME_BYTES
        return after_next if after_next <= READ_BYTES else min(self._left, READ_BYTES)

    @property
    def is_in_note(self) -> bool:
        """A note has begun."""
        return self._left > 0 and self._offset == NOTE_OFFSET

    @property
    def partial_frame(self) -> tuple[int, bytes]:
        """Bytes of the current frame that are still to come, and what came of the next head."""
        return self._left, self._head

    def go_on(self, offset: int, left: int) -> None:
        """Others read until there, and ``left`` bytes of the current frame are still to come."""
        self._offset, self._left, self._head = offset, left, b""

    def feed(self, data: bytes | memoryview) -> list[Piece]:
        """What came, each part with its physical offset; heartbeats are empty. ReplicationError: a
        frame has a size or an offset that can't be.
        """
        pieces: list[Piece] = []
        view = memoryview(data)
        at = 0
        while at < len(view):
            if not self._left:
                wanted = HEAD.size - len(self._head)
                self._head += bytes(view[at : at + wanted])
                at += wanted
                if len(self._head) < HEAD.size:
                    break
                self._offset, self._left = HEAD.unpack(self._head)
                self._head = b""
                is_note = self._offset == NOTE_OFFSET and 0 < self._left <= NOTE_BYTES_MAX
                if (self._offset < 0 or self._left < 0) and not is_note:
                    raise ReplicationError(
                        f"the master sent a frame of {self._left} bytes at {self._offset}: it is "
                        "no RocketMQ broker, or this is not its haListenPort"
                    )
                if not self._left:
                    pieces.append(Piece(self._offset, view[:0]))
                continue
            body = view[at : at + self._left]
            at += len(body)
            self._left -= len(body)
            if self._offset == NOTE_OFFSET:
                self._note += body
                if not self._left:
                    pieces.append(Piece(NOTE_OFFSET, memoryview(self._note)))
                    self._note = b""
                continue
            pieces.append(Piece(self._offset, body))
            self._offset += len(body)
        return pieces
