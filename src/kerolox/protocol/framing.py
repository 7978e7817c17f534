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

_HTTP = frozenset((b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"PRI "))


def encode_frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """A whole frame."""
    size = len(header)
    return LENGTHS.pack(4 + size + len(body), serialize_type << 24 | size) + header + body


def split_frame(frame: bytes | memoryview) -> tuple[int, memoryview, memoryview]:
    """Serialize type, header and body of a frame without its length field.

    Raises:
        RemoteProtocolError: the header is longer than the frame.
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


class FrameDecoder:
    """Splits a byte stream into frames (each without its 4-byte length)."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._error: RemoteProtocolError | None = None
        self.is_foreign: bool = False
        """The stream ended since it is another protocol (TLS, HTTP)."""

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

    @property
    def error(self) -> RemoteProtocolError | None:
        """Why the stream ended; None while it goes on."""
        return self._error

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes, give the frames that are complete now.

        Raises:
            RemoteProtocolError: a length field is negative, too small or too large, and no whole
                frame came before it in this call (otherwise ``error`` is set, and the next call
                raises).
        """
        if self._error is not None:
            raise self._error
        buffer = self._buffer
        if not buffer:
            # Most chunks begin and end with a frame: they are cut without a copy in between.
            with memoryview(data) as view:
                frames, position = self._split(view)
                buffer += view[position:]
            return frames
        buffer += data
        with memoryview(buffer) as view:
            frames, position = self._split(view)
        if position:
            del buffer[:position]
        return frames

    def _split(self, view: memoryview) -> tuple[list[bytes], int]:
        """The whole frames of ``view``, and the position behind the last one."""
        frames: list[bytes] = []
        position, end = 0, len(view)
        while end - position >= LENGTHS.size:
            size, word = LENGTHS.unpack_from(view, position)
            header_size = word & HEADER_SIZE_MASK
            if not 4 <= size <= self._frame_bytes_max or not is_header_size(header_size, size):
                foreign = foreign_protocol(size)
                self.is_foreign = bool(foreign)
                self._error = RemoteProtocolError(
                    f"frame of {size} bytes with a header of {header_size}; the limit of a frame "
                    f"is {self._frame_bytes_max}, of a header {HEADER_BYTES_MAX}"
                    f"{foreign}"
                )
                if frames:
                    return frames, end
                raise self._error
            if end - position - 4 < size:
                break
            frames.append(bytes(view[position + 4 : position + 4 + size]))
            position += 4 + size
        return frames, position
