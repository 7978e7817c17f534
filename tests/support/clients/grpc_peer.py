"""A client by gRPC for brokers in the test's event loop: HTTP/2 is the package ``h2``'s."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import MessageReader, with_prefix
from tests.support.eventually import SECONDS_MAX

SERVICE = "/apache.rocketmq.v2.MessagingService/"
MESSAGE_BYTES_MAX = 1 << 26
FRAME_BYTES = 16_384


class Stream:
    """One call."""

    def __init__(self, peer: GrpcPeer, name: str, stream_id: int) -> None:
        self.stream_id = stream_id
        self.status: int | None = None
        """Of gRPC, at its end; None: it goes on, or was reset."""
        self.text = ""
        self.is_over = False
        self._peer = peer
        self._type = getattr(pb, f"{name}Response", None) or getattr(pb, f"{name}Command")
        self._reader = MessageReader(MESSAGE_BYTES_MAX)
        self._messages: list[Any] = []
        self._changed = asyncio.Event()

    def took(self, data: bytes) -> None:
        self._messages += map(self._type.FromString, self._reader.feed(data))
        self._changed.set()

    def headers(self, headers: dict[str, str]) -> None:
        if "grpc-status" in headers:
            self.status, self.text = int(headers["grpc-status"]), headers.get("grpc-message", "")

    def ended(self) -> None:
        self.is_over = True
        self._changed.set()

    async def message(self) -> Any:
        """The next message; None: there is none any more."""
        async with asyncio.timeout(SECONDS_MAX):
            while not self._messages and not self.is_over:
                self._changed.clear()
                await self._changed.wait()
        return self._messages.pop(0) if self._messages else None

    async def messages(self) -> list[Any]:
        """All that come until its end."""
        found = []
        while (each := await self.message()) is not None:
            found.append(each)
        return found

    def send(self, message: Any, *, end: bool = False) -> None:
        data = with_prefix(message.SerializeToString())
        self._peer.send_data(self.stream_id, data, end=end)

    def cancel(self) -> None:
        self._peer.http2.reset_stream(self.stream_id, 8)
        self._peer.flush()


class GrpcPeer(asyncio.Protocol):
    """One connection."""

    def __init__(self, client_id: str = "client") -> None:
        configuration = h2.config.H2Configuration(header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(configuration)
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}
        self.has_goaway = False
        self.gone = asyncio.get_running_loop().create_future()
        self._streams: dict[int, Stream] = {}
        self._waiting: list[tuple[int, bytes, bool]] = []
        self._transport: asyncio.Transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.http2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in self._streams.values():
            stream.ended()
        if not self.gone.done():
            self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            stream = self._streams.get(getattr(event, "stream_id", None) or 0)
            if isinstance(event, h2.events.ConnectionTerminated):
                self.has_goaway = True
            elif stream is None:
                continue
            elif isinstance(event, h2.events.DataReceived):
                size = event.flow_controlled_length
                self.http2.acknowledge_received_data(size, event.stream_id)
                stream.took(event.data)
            elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                stream.headers(dict(event.headers))
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                stream.ended()
        self.flush()

    def send_data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send as the server grants it."""
        self._waiting.append((stream_id, data, end))
        self.flush()

    def _send_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            stream_id, data, end = self._waiting.pop(0)
            while data or end:
                room = min(self.http2.local_flow_control_window(stream_id), FRAME_BYTES)
                if room <= 0 < len(data):
                    self._waiting.append((stream_id, data, end))
                    break
                piece, data = data[:room], data[room:]
                self.http2.send_data(stream_id, piece, end_stream=end and not data)
                end = end and bool(data)

    def flush(self) -> None:
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self._send_waiting()
        data = self.http2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._transport.abort()

    def open(self, name: str, metadata: Mapping[str, str] | None = None) -> Stream:
        """Begin a call; ``metadata`` of it beside, or in the place of, the connection's."""
        stream_id = self.http2.get_next_available_stream_id()
        stream = self._streams[stream_id] = Stream(self, name, stream_id)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": SERVICE + name,
            ":authority": "broker",
            "content-type": "application/grpc",
            "grpc-timeout": "30S",
            **self.metadata,
            **(metadata or {}),
        }
        self.http2.send_headers(stream_id, list(headers.items()))
        return stream

    def call(self, name: str, request: Any, **metadata: str) -> Stream:
        """Make a call of one request; names of metadata have _ for -."""
        stream = self.open(name, {key.replace("_", "-"): text for key, text in metadata.items()})
        stream.send(request, end=True)
        return stream

    async def ask(self, name: str, **members: Any) -> Any:
        """The answer to a call of one request with these members; its status must be OK of gRPC."""
        stream = self.call(name, getattr(pb, f"{name}Request")(**members))
        [answer] = await stream.messages()
        assert stream.status == 0, stream.text
        return answer

    async def settled(self, **members: Any) -> tuple[Stream, Any]:
        """Open a telemetry stream with these settings; the stream and the answer."""
        stream = self.open("Telemetry")
        stream.send(pb.TelemetryCommand(settings=pb.Settings(**members)))
        return stream, await stream.message()


@asynccontextmanager
async def grpc_peer(port: int, client_id: str = "client") -> AsyncIterator[GrpcPeer]:
    """A client of a port of this machine."""
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_connection(lambda: GrpcPeer(client_id), "127.0.0.1", port)
    try:
        yield peer
    finally:
        peer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_MAX):
                await peer.gone
