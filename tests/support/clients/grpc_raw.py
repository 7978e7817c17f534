"""A blocking client by gRPC whose frames are made by hand: it can break any rule."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from hpack import Decoder

from kerolox.remoting.grpc.wire import MessageReader, with_prefix
from kerolox.remoting.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    PREFACE,
    WINDOW_MAX,
    FrameType,
    Setting,
    frame,
    header_block,
    settings_frame,
    window_update,
)
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SERVICE", "Outcome", "RawCalls", "call_block"]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
MESSAGE_BYTES_MAX = 1 << 26
GREETING = PREFACE + settings_frame([(Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX)])
METADATA = {"x-mq-client-id": "abuser", "x-mq-language": "PYTHON"}


def call_block(name: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """The headers of a call."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": SERVICE + name,
        ":authority": "broker",
        "content-type": "application/grpc",
        "te": "trailers",
        **METADATA,
        **(metadata or {}),
    }
    return header_block((name.encode(), value.encode()) for name, value in headers.items())


@dataclass
class Outcome:
    """How a call ended."""

    status: int | None = None
    """Of gRPC; None: it was reset, or its connection ended."""
    text: str = ""
    messages: list[bytes] = field(default_factory=list)
    is_over: bool = False
    reader: MessageReader = field(default_factory=lambda: MessageReader(MESSAGE_BYTES_MAX))


class RawCalls:
    """One connection; all that comes is read when somebody waits for it."""

    def __init__(self, port: int, *, greeting: bytes = GREETING, host: str = "127.0.0.1") -> None:
        """``greeting``: preface and settings."""
        self.socket = socket.create_connection((host, port), timeout=SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.outcomes: dict[int, Outcome] = {}
        self.is_gone = False
        self.goaway: tuple[int, str] | None = None
        """Code and text of the last one."""
        self._decoder = Decoder(max_header_list_size=1 << 20)
        self._buffer = bytearray()
        self._next_id = 1
        self._pongs = 0
        self.write(greeting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes; a server that has closed the connection takes none."""
        try:
            self.socket.sendall(data)
        except OSError:
            self._drain()

    def open(
        self, name: str, metadata: Mapping[str, str] | None = None, *, end: bool = False
    ) -> int:
        """Begin a call."""
        return self.open_block(call_block(name, metadata), end=end)

    def open_block(self, block: bytes, *, end: bool = False) -> int:
        """Begin a call of any headers."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self.outcomes[stream_id] = Outcome()
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.write(frame(FrameType.HEADERS, flags, stream_id, block))
        return stream_id

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send bytes of a call. The windows are large enough for those who send a MiB at a time,
        and read meanwhile."""
        pieces = [data[at : at + FRAME_BYTES_MAX] for at in range(0, len(data), FRAME_BYTES_MAX)]
        for number, piece in enumerate(pieces or [b""]):
            is_last = number >= len(pieces) - 1
            self.write(frame(FrameType.DATA, END_STREAM * (end and is_last), stream_id, piece))

    def call(self, name: str, request: bytes, metadata: Mapping[str, str] | None = None) -> int:
        """Make a call of one message."""
        stream_id = self.open(name, metadata)
        self.data(stream_id, with_prefix(request), end=True)
        return stream_id

    def ask(self, name: str, request: bytes, metadata: Mapping[str, str] | None = None) -> Outcome:
        """Make a call, and wait for its end."""
        stream_id = self.call(name, request, metadata)
        return self.ended(stream_id)

    def ended(self, stream_id: int) -> Outcome:
        """A call that is over; TimeoutError: it is not."""
        outcome = self.outcomes[stream_id]
        while not (outcome.is_over or self.is_gone):
            self._read()
        return outcome

    def all_ended(self, stream_ids: Iterable[int]) -> list[Outcome]:
        """The same of many."""
        return [self.ended(each) for each in stream_ids]

    def settle(self) -> None:
        """Wait until the server has seen all that was sent."""
        pongs = self._pongs
        self.write(frame(FrameType.PING, 0, 0, bytes(8)))
        while self._pongs == pongs and not self.is_gone:
            self._read()

    def wait_gone(self) -> tuple[int, str] | None:
        """Wait for the end of the connection; the code and text of its GOAWAY."""
        while not self.is_gone:
            self._read()
        return self.goaway

    # -- what comes ---------------------------------------------------------------------------
    def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            while not self.is_gone:
                self._read()

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            self.is_gone = True
            return
        self._buffer += data
        while len(self._buffer) >= HEAD_BYTES:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < HEAD_BYTES + size:
                return
            kind, flags = self._buffer[3], self._buffer[4]
            stream_id = int.from_bytes(self._buffer[5:9], "big") & WINDOW_MAX
            payload = bytes(self._buffer[HEAD_BYTES : HEAD_BYTES + size])
            del self._buffer[: HEAD_BYTES + size]
            self._take(kind, flags, stream_id, payload)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        outcome = self.outcomes.get(stream_id)
        if kind == FrameType.GOAWAY:
            _, code = struct.unpack(">II", payload[:8])
            self.goaway = code, payload[8:].decode()
        elif kind == FrameType.PING and flags & ACK:
            self._pongs += 1
        elif kind == FrameType.HEADERS:
            decoded = self._decoder.decode(payload, raw=True)
            headers = {str(name, "utf-8"): str(value, "utf-8") for name, value in decoded}
            if outcome is not None and "grpc-status" in headers:
                outcome.status = int(headers["grpc-status"])
                outcome.text = headers.get("grpc-message", "")
        elif kind == FrameType.DATA:
            if payload:
                with contextlib.suppress(OSError):
                    self.socket.sendall(window_update(0, len(payload)))
            if outcome is not None:
                outcome.messages += outcome.reader.feed(payload)
        if outcome is not None and (
            kind == FrameType.RST_STREAM
            or (kind in (FrameType.HEADERS, FrameType.DATA) and flags & END_STREAM)
        ):
            outcome.is_over = True
