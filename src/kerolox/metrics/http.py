"""A small HTTP server for metrics: GET and HEAD of a few fixed paths.

Whoever connects is a stranger: connections, their time and the size of a request are bounded, and a
request with a body is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import h11

from kerolox.errors import ConfigError
from kerolox.remoting.listening import close_listeners, listening_sockets
from kerolox.tasks import end_tasks

CONNECTIONS_MAX = 64
"""At a time; a further one is closed."""
REQUEST_BYTES_MAX = 16 * 1024
"""Of a request's line and headers."""
REQUEST_SECONDS_MAX = 15.0
"""From one answer, or the connection's begin, to the end of the next request."""
WRITE_SECONDS_MAX = 30.0
"""How long a client may take to read an answer."""
WRITE_BYTES = 64 * 1024
"""So much of an answer is written, and read by the client for the most part, before more is."""
LINGER_SECONDS, LINGER_READS_MAX = 2.0, 1024
"""How long, and how many reads, a client has for the last answer of its connection."""
READ_BYTES = 8 * 1024
BACKLOG = 64

_log = logging.getLogger(__name__)


class HttpRequest(NamedTuple):
    """What a handler gets."""

    path: str
    query: str
    accept: str
    """The header of that name; empty: none."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a handler gives."""

    body: bytes | Sequence[bytes]
    """In parts where it is large: they are never put together."""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200

    @property
    def parts(self) -> Sequence[bytes]:
        """The body."""
        return (self.body,) if isinstance(self.body, bytes) else self.body


HttpHandler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class HttpServer:
    """Serves a table of paths.

    Attributes:
        port: where it listens; 0 while it does not.
    """

    def __init__(self, handlers: Mapping[str, HttpHandler]) -> None:
        """Nothing is opened. ``handlers``: path → what answers it."""
        self._handlers = dict(handlers)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, host: str, port: int, setting: str) -> None:
        """Listen. ``setting``: names the port in an error; 0 is a free one.

        Raises:
            ConfigError: the port can't be opened.
        """
        try:
            sockets = await listening_sockets(host, port, BACKLOG)
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error}") from error
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            server = await asyncio.start_server(self._accept, sock=each, limit=REQUEST_BYTES_MAX)
            self._servers.append(server)

    async def close(self) -> None:
        """Close the port and all connections. Idempotent."""
        servers, self._servers = self._servers, []
        self.port = 0
        await close_listeners(servers)
        await end_tasks(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._servers or len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            # Gone, too slow, no HTTP, or the server stops: nothing can be said to it any more.
            pass
        except Exception:
            _log.exception("a request for metrics failed")
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    request = await _next_request(http, reader)
            except h11.RemoteProtocolError as error:
                if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status = error.error_status_hint or HTTPStatus.BAD_REQUEST
                    text = f"{error}\n".encode()
                    await _send(http, writer, HttpAnswer(text, status=int(status)), is_last=True)
                    await _linger(reader, writer)
                return
            if request is None:
                return
            answer = await self._answer(request)
            await _send(http, writer, answer, has_body=request.method != b"HEAD")
            if http.our_state is h11.MUST_CLOSE:
                await _linger(reader, writer)
                return
            http.start_next_cycle()

    async def _answer(self, request: h11.Request) -> HttpAnswer:
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        handler = self._handlers.get(path)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            return HttpAnswer(f"nothing is at this path; there are: {known}\n".encode(), status=404)
        if request.method not in (b"GET", b"HEAD"):
            return HttpAnswer(b"only GET and HEAD\n", status=405)
        accept = next((v.decode("latin-1") for n, v in request.headers if n == b"accept"), "")
        return await handler(HttpRequest(path, query, accept))


async def _next_request(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The next whole request; None: the client is done.

    Raises:
        h11.RemoteProtocolError: it is none, or has a body.
    """
    request: h11.Request | None = None
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.Data):
            raise h11.RemoteProtocolError(
                "no request here has a body", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        else:
            return None


async def _send(
    http: h11.Connection,
    writer: asyncio.StreamWriter,
    answer: HttpAnswer,
    *,
    has_body: bool = True,
    is_last: bool = False,
) -> None:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(sum(map(len, answer.parts)))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    if is_last:
        headers.append(("Connection", "close"))
    response = h11.Response(status_code=answer.status, headers=headers)
    data = (h11.Data(part) for part in answer.parts if has_body)
    kept: list[bytes] = []
    async with asyncio.timeout(WRITE_SECONDS_MAX):
        for event in (response, *data, h11.EndOfMessage()):
            kept.append(http.send(event) or b"")
            if sum(map(len, kept)) >= WRITE_BYTES:
                writer.write(b"".join(kept))
                kept.clear()
                await writer.drain()
        writer.write(b"".join(kept))
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client read its answer: what it still sends is thrown away for a moment, since a
    socket that is closed with unread bytes in it takes the answer back."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_SECONDS):
        for _ in range(LINGER_READS_MAX):
            if not await reader.read(READ_BYTES):
                return
