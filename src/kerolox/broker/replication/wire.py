"""The bytes between a master and its slaves, on ``haListenPort`` of the master.

A slave sends nothing but reports: eight bytes, the physical offset that its log reaches. The first
one says where the master begins. The master sends frames: twelve bytes, physical offset and size of
the body, and then raw bytes of its log. A frame without a body is a heartbeat.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kerolox.errors import KeroloxError

REPORT = Struct(">q")
HEAD = Struct(">qi")

READ_BYTES = 256 * 1024
"""Asked of a socket at once."""


class ReplicationError(KeroloxError):
    """A connection between master and slave can't go on; the text says why, and what helps."""


class ReplicationSettings(NamedTuple):
    """The ``ha*`` settings of one end of a connection."""

    heartbeat_ms: int = 5_000
    """``haSendHeartbeatInterval``: longest silence of this end."""
    housekeeping_ms: int = 20_000
    """``haHousekeepingInterval``: longest silence of the other end."""
    batch_bytes: int = 32 * 1024
    """``haTransferBatchSize``: most bytes of the log in one frame."""


class Reports:
    """Cuts what a slave sends into offsets."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The whole reports so far.

        Raises:
            ReplicationError: one is below 0.
        """
        data = self._rest + data
        end = len(data) - len(data) % REPORT.size
        self._rest = data[end:]
        offsets = [offset for (offset,) in REPORT.iter_unpack(data[:end])]
        if offsets and min(offsets) < 0:
            raise ReplicationError(f"it reports the offset {min(offsets)}: it is no slave")
        return offsets


class Piece(NamedTuple):
    """A part of the body of a frame, or a whole heartbeat."""

    offset: int
    data: memoryview


class Frames:
    """Cuts what a master sends into pieces, as they come: no body is kept."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = self._left = 0

    def feed(self, data: bytes) -> list[Piece]:
        """What came, each part with its physical offset; heartbeats are empty.

        Raises:
            ReplicationError: a frame has a size or an offset below 0.
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
                if self._offset < 0 or self._left < 0:
                    raise ReplicationError(
                        f"the master sent a frame of {self._left} bytes at {self._offset}: it is "
                        "no RocketMQ broker, or this is not its haListenPort"
                    )
                if not self._left:
                    pieces.append(Piece(self._offset, view[:0]))
                continue
            body = view[at : at + self._left]
            pieces.append(Piece(self._offset, body))
            at += len(body)
            self._offset += len(body)
            self._left -= len(body)
        return pieces
