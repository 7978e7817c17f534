"""Frames of HTTP/2: their names, and how a server writes its own (RFC 9113, RFC 7541)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client begins with."""

HEAD_BYTES = 9
FRAME_BYTES_MAX = 16_384
"""Payload of a frame that a peer may send unless it was told otherwise; so much we take."""

WINDOW_MAX = (1 << 31) - 1
DEFAULT_WINDOW = 65_535


class FrameType(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """Settings of either end."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 1, 1, 4, 8, 32
"""Flags."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame."""
    return b"".join(
        (
            len(payload).to_bytes(3, "big"),
            bytes((kind, flags)),
            stream_id.to_bytes(4, "big"),
            payload,
        )
    )


def settings_frame(values: Iterable[tuple[Setting, int]]) -> bytes:
    """A frame of settings."""
    payload = b"".join(struct.pack(">HI", *each) for each in values)
    return frame(FrameType.SETTINGS, 0, 0, payload)


def window_update(stream_id: int, size: int) -> bytes:
    """The peer may send so many bytes more; stream 0: on the whole connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def reset(stream_id: int, code: int) -> bytes:
    """A stream ends at once."""
    return frame(FrameType.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    """The connection takes no streams behind ``last_stream_id``."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
    return frame(FrameType.GOAWAY, 0, 0, payload)


_PREFIX = (1 << 7) - 1
"""A length of so much or more does not fit the first byte of a text."""


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as literals that neither end remembers. So all streams share made blocks, whatever
    tables the peer has."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def _text(data: bytes) -> bytes:
    size = len(data)
    if size < _PREFIX:
        return bytes((size,)) + data
    size -= _PREFIX
    out = bytearray((_PREFIX,))
    while size > _PREFIX:
        out.append(size & _PREFIX | _PREFIX + 1)
        size >>= 7
    out.append(size)
    return bytes(out) + data
