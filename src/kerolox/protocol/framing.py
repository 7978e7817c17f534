"""Bytes in, whole frames out: the sans-IO frame decoder.

It keeps at most one unfinished frame. A length that no frame can have ends the stream: the frames
before it are still handed out, and every later call raises the same :class:`RemoteProtocolError`,
since nothing after a lost boundary can be trusted.
"""

from __future__ import annotations

import struct

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.codes import FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_SIZE_MASK

LENGTHS = struct.Struct(">iI")
"""What a frame begins with: length of the rest, then serialize type and header length."""
_HEADER_WORD = struct.Struct(">I")
_LENGTH = struct.Struct(">I")

KEPT_BUFFERS_MAX = 4
"""A buffer of more than so many receives, which a large frame has made, is given back when it is
empty."""

_HTTP = frozenset((b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"PRI "))


def encode_frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """A whole frame."""
    size = len(header)
    return LENGTHS.pack(4 + size + len(body), serialize_type << 24 | size) + header + body


def split_frame(frame: bytes | memoryview) -> tuple[int, memoryview, memoryview]:
    """Serialize type, header and body of a frame without its length field; RemoteProtocolError: the
    header is longer than the frame.
    """
    view = memoryview(frame)
    if len(view) < _HEADER_WORD.size:
        raise RemoteProtocolError(f"frame of {len(view)} bytes has no header length")
    (word,) = _HEADER_WORD.unpack_from(view)
    end = _HEADER_WORD.size + (word & HEADER_SIZE_MASK)
    if end > len(view):
        raise RemoteProtocolError(f"header of {end - 4} bytes in a {len(view)} byte frame")
    return word >> 24, view[_HEADER_WORD.size : end], view[end:]


def is_header_size(header_size: int, size: int) -> bool:
    """Whether a frame of ``size`` bytes, its length field aside, may have such a header. That is
    seen in its first eight bytes, before anything of it is kept."""
    return header_size <= min(size - 4, HEADER_BYTES_MAX)


def foreign_protocol(length: int) -> str:
    """What to do when the four bytes that should be a length (signed or not) begin another
    protocol; empty when they tell of none."""
    begin = _LENGTH.pack(length & 0xFFFFFFFF)
    if begin[:2] == b"\x16\x03" and begin[2] <= 4:
        return (
            ": this is TLS, which is not served here; let the client connect without it "
            "(setUseTLS(false), tls.enable=false)"
        )
    if begin in _HTTP:
        return ": this is HTTP; the port is for clients of RocketMQ only"
    return ""


class _Splitter:
    """Splits a byte stream into frames (each without its 4-byte length)."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self.error: RemoteProtocolError | None = None
        """Why the stream ended; None while it goes on."""
        self.is_foreign: bool = False
        """It ended since it is another protocol (TLS, HTTP)."""

    def _split(self, view: memoryview, position: int, frames: list[bytes]) -> int:
        """Take the whole frames of ``view`` from a position on; the one behind the last."""
        end = len(view)
        while end - position >= LENGTHS.size:
            size, word = LENGTHS.unpack_from(view, position)
            header_size = word & HEADER_SIZE_MASK
            if not 4 <= size <= self._frame_bytes_max or not is_header_size(header_size, size):
                foreign = foreign_protocol(size)
                self.is_foreign = bool(foreign)
                self.error = RemoteProtocolError(
                    f"frame of {size} bytes with a header of {header_size}; the limit of a frame "
                    f"is {self._frame_bytes_max}, of a header {HEADER_BYTES_MAX}"
                    f"{foreign}"
                )
                if frames:
                    return end
                raise self.error
            if end - position - 4 < size:
                break
            frames.append(bytes(view[position + 4 : position + 4 + size]))
            position += 4 + size
        return position


class FrameDecoder(_Splitter):
    """Takes bytes as they come."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._buffer)

    @property
    def lacking_bytes(self) -> int:
        """What the unfinished frame lacks, as far as that is known; 0: there is none."""
        buffer = self._buffer
        if not buffer:
            return 0
        if len(buffer) < LENGTHS.size:
            return LENGTHS.size - len(buffer)
        return 4 + int(LENGTHS.unpack_from(buffer)[0]) - len(buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes, give the frames that are complete now.

        RemoteProtocolError: a length field is negative, too small or too large, and no whole frame
        came before it in this call (otherwise ``error`` is set, and the next call raises).
        """
        if self.error is not None:
            raise self.error
        buffer = self._buffer
        frames: list[bytes] = []
        with memoryview(data) as view:
            # Most chunks begin and end with a frame: they are cut without a copy in between.
            position = 0
            while buffer and position < len(view):
                begin, position = position, position + self.lacking_bytes
                buffer += view[begin:position]
                with memoryview(buffer) as whole:
                    self._split(whole, 0, frames)
                if frames:
                    self._buffer = buffer = bytearray()
            if position < len(view):
                position = self._split(view, position, frames)
                buffer += view[position:]
        return frames


class FrameBuffer(_Splitter):
    """Has a buffer into which bytes are received: large frames are copied once."""

    def __init__(self, receive_bytes: int) -> None:
        """``receive_bytes``: most that are received at once."""
        super().__init__()
        self._receive_bytes = receive_bytes
        self._start = self._end = 0
        """What has arrived and is in no frame yet."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished frame."""
        return self._end - self._start

    def space(self) -> memoryview:
        """Where the next bytes go; release it before :meth:`filled`."""
        buffer, held = self._buffer, self._end - self._start
        if self._start:
            buffer[:held] = buffer[self._start : self._end]
            self._start, self._end = 0, held
        if len(buffer) - held < self._receive_bytes // 2:
            # Twice as much each time, so that a large frame is not moved often.
            buffer.extend(bytes(max(self._receive_bytes, held)))
        return memoryview(buffer)[held : held + self._receive_bytes]

    def filled(self, count: int) -> list[bytes]:
        """So many bytes were received: the frames that are complete now; errors as those of
        :meth:`FrameDecoder.feed`."""
        if self.error is not None:
            raise self.error
        self._end += count
        frames: list[bytes] = []
        with memoryview(self._buffer)[: self._end] as view:
            self._start = self._split(view, self._start, frames)
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BUFFERS_MAX * self._receive_bytes:
                self._buffer = bytearray()
        return frames
