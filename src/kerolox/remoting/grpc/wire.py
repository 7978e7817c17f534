"""What gRPC puts into HTTP/2: headers, messages with their lengths, statuses (no I/O).

Names are those of ``doc/PROTOCOL-HTTP2.md`` of gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from kerolox.remoting.http2.frames import header_block

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length."""

TIMEOUT_SECONDS_MAX = 366 * 24 * 3600.0
"""A longer deadline is none; the official Python client names a year."""

STATUS_TEXT_CHARACTERS_MAX = 1_024

MESSAGES_OF_FEED_MAX = 64
"""Of one stream that come with one frame; the call ends then."""

_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNIT_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """How a call ended, as gRPC sees it; what RocketMQ says of it is in the messages."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallRefusedError(Exception):
    """A call ends with a status other than OK."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the headers of a call say."""

    path: str
    metadata: Mapping[str, str]
    """Of headers that came twice the last; those of binary values are left out."""
    timeout_seconds: float | None
    """Until its deadline; None: it has none."""


RESPONSE_HEADERS = b"\x88" + header_block(
    ((b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity"))
)
"""A made block: HTTP status 200, and what follows."""

OK_TRAILERS = header_block(((b"grpc-status", b"0"),))


def parse_head(headers: Iterable[tuple[bytes, bytes]]) -> CallHead:
    """Read a call's headers. CallRefusedError: it is no call of gRPC, or one that compresses."""
    found: dict[str, str] = {}
    for name, value in headers:
        if not name.endswith(b"-bin"):
            found[name.decode("latin-1")] = value.decode("utf-8", "replace")
    if found.get(":method") != "POST" or not found.get(":path", "").startswith("/"):
        raise CallRefusedError(GrpcStatus.UNIMPLEMENTED, "it is no call of gRPC: POST is expected")
    if not found.get("content-type", "").startswith("application/grpc"):
        raise CallRefusedError(GrpcStatus.UNIMPLEMENTED, "the content-type is not application/grpc")
    timeout = found.get("grpc-timeout")
    return CallHead(found[":path"], found, None if timeout is None else _seconds(timeout))


def _seconds(text: str) -> float | None:
    matched = _TIMEOUT.fullmatch(text)
    if matched is None:
        raise CallRefusedError(GrpcStatus.INVALID_ARGUMENT, f"grpc-timeout: {text[:32]!r}")
    seconds = int(matched[1]) * _UNIT_SECONDS[matched[2]]
    return seconds if seconds < TIMEOUT_SECONDS_MAX else None


class MessageReader:
    """Puts the messages of a stream together."""

    __slots__ = ("_buffer", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: of one message."""
        self._buffer = bytearray()
        self._bytes_max = bytes_max

    @property
    def kept_bytes(self) -> int:
        """Of a message that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. CallRefusedError: one is too long or compressed, or
        there are too many."""
        buffer = self._buffer
        buffer += data
        messages: list[bytes] = []
        at = 0
        while len(buffer) - at >= PREFIX_BYTES:
            size = int.from_bytes(buffer[at + 1 : at + PREFIX_BYTES], "big")
            if size > self._bytes_max:
                raise CallRefusedError(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"a message of {size} bytes; at most {self._bytes_max} are taken",
                )
            if buffer[at]:
                raise CallRefusedError(
                    GrpcStatus.UNIMPLEMENTED, "compressed messages of gRPC are not taken"
                )
            end = at + PREFIX_BYTES + size
            if len(buffer) < end:
                break
            if len(messages) >= MESSAGES_OF_FEED_MAX:
                raise CallRefusedError(
                    GrpcStatus.RESOURCE_EXHAUSTED, "too many messages of one call come at once"
                )
            messages.append(bytes(buffer[at + PREFIX_BYTES : end]))
            at = end
        del buffer[:at]
        return messages


def with_prefix(message: bytes) -> bytes:
    """A message as a stream has it."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def trailers(status: GrpcStatus, text: str = "") -> bytes:
    """A made block."""
    if status == GrpcStatus.OK:
        return OK_TRAILERS
    shown = quote(text[:STATUS_TEXT_CHARACTERS_MAX], safe=" !\"#$&'()*+,/:;<=>?@[]^_`{|}~")
    code = str(int(status)).encode()
    return header_block(((b"grpc-status", code), (b"grpc-message", shown.encode())))


def trailers_alone(status: GrpcStatus, text: str = "") -> bytes:
    """The same as the whole answer of a call (Trailers-Only)."""
    return RESPONSE_HEADERS + trailers(status, text)
