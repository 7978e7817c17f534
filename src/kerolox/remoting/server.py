"""The server's side of remoting: listening, and one :class:`ServerConnection` per client.

With a ``feeder`` each connection has a kernel beside it, whose fast path answers most requests of a
chunk; the handler sees the rest. Without one (name server) every frame goes to the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol

from kerolox.addresses import join_address, network_of
from kerolox.codec.counters import Opaques
from kerolox.errors import ConnectionLostError, RemoteProtocolError
from kerolox.kernel.feed import ALLOWANCE_MAX, FED_FOREIGN, FED_MORE, FED_READY, FED_WAITS
from kerolox.message import pack_host
from kerolox.protocol.codes import REMOTING
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.coalescing import RequestCoalescer
from kerolox.remoting.connection import (
    GONE_SECONDS_MAX,
    PAUSED_BY_ANSWERS,
    PAUSED_BY_SLICE,
    PAUSED_BY_WRITES,
    FrameConnection,
    Handling,
    IdleWatch,
    Shared,
    read_buffer_of,
)
from kerolox.remoting.core.requests import Requests
from kerolox.remoting.limits.admission import CONNECTIONS_MAX, Admission
from kerolox.remoting.limits.memory_limiter import MEMORY_BYTES_MAX, MemoryLimiter
from kerolox.remoting.limits.requests import Feeder, LimitedFeeder, RequestLimits
from kerolox.remoting.listening import close_listeners, listening_sockets
from kerolox.remoting.tls.server_tls import ServerTls
from kerolox.settings_class import settings_dataclass
from kerolox.tasks import end_tasks

BACKLOG = 1024
"""Connections that the operating system may keep until they are accepted."""

ACCEPTS_PER_ITERATION = 4
"""Connections of a port that an iteration of the event loop takes up, some 0.1 ms each."""

IDLE_SECONDS_MAX = 120.0
"""A connection without traffic for so long is closed (serverChannelMaxIdleTimeSeconds)."""

IN_FLIGHT_MAX = 256
"""Requests of one connection whose handlers may be waiting at the same time. What they wait for,
a flush for instance, may let all of them go on in one iteration of the event loop."""

BIG_CHUNK_BYTES = 64 * 1024
"""After a chunk of so many bytes a connection waits for its turn before it is read again."""

BIG_CHUNKS_PER_ITERATION = 4
"""So many of those that wait are read in one iteration of the event loop: a MiB at most. Where the
system has to make room for it first, a MiB takes some milliseconds."""

HANDLERS_SECONDS_MAX = 0.3
"""How long ``stop`` lets handlers finish before it cancels them."""

STOP_SECONDS_MAX = 1.5
"""How long ``stop`` lets connections send what they still have."""

STOP_POLL_SECONDS = 0.005
"""How often it checks whether that has arrived."""

if TYPE_CHECKING:
    from typing_extensions import Buffer

_connection_ids = itertools.count(1)
"""One row for all servers of the process: who keeps something by a connection's id, a broker with
two ports for instance, must not take one connection for another."""

_log = logging.getLogger(__name__)


def next_connection_id() -> int:
    """One that no connection of this process has, or had."""
    return next(_connection_ids)


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


class ShortWay(Protocol):
    """Tries a request that waits before its handler does, at less cost."""

    found_nothing: bool
    """The last try has seen that there is nothing, for certain."""

    def try_again(self) -> bool | None:
        """True: it is answered. False: there is nothing, for certain. None: the handler knows."""


class ServerConnection(FrameConnection):
    """The connection of one client. Made by the server; used by handlers."""

    protocol_type: ClassVar[str] = REMOTING
    short_way: ShortWay | None = None
    """Of the request that is made for it; None: there is none."""
    client_version: str = ""
    """As the client names it; one of remoting has a number in its frames instead."""
    audited: Mapping[str, str] = MappingProxyType({})
    """What audit lines tell of it besides address and certificate."""

    def __init__(self, server: RemotingServer, shared: Shared, connection_id: int) -> None:
        super().__init__(shared)
        self.requests = Requests(self._arm, self._next_iteration)
        self.connection_id = connection_id
        self.is_counted = False
        self.memory_before = 0
        self.checks_without_progress = 0
        self._server = server
        self._handler = server.handler
        self._coalescer = server.coalescer
        self._opaques = Opaques()
        self._network = ""
        # Until the connection is taken, and where it is not: its end must find one.
        self._kernel: Feeder | LimitedFeeder = _FrameFeeder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: the socket is open; its kernel is made."""
        super().connection_made(transport)
        kernel = self._server.opened(self, transport.get_extra_info("socket").fileno())
        if kernel is not None:
            self._kernel = kernel
        self._network = network_of(self.peer[0])
        if self._server.limits.is_on:
            self.limit_requests()
        if kernel is None:
            self.abort()
        elif self._server.tls is not None:
            self._server.tls.detect(self, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed; its kernel drops what it holds."""
        self._kernel.close()
        super().connection_lost(exc)
        self._server.lost(self)

    # Fast path: runs once per chunk read, over ten thousand times a second.
    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        self.active = True
        if not self.is_counted:
            self._server.memory_limiter.add(self)
        coalescer = self._coalescer
        coalescer.chunks += 1
        coalescer.bytes += nbytes
        if coalescer.is_resting and not coalescer.is_armed:
            coalescer.arm()
        answers, slow, flags, error = self._kernel.feed(self._read_buffer, nbytes)
        if answers:
            self._transport.write(answers)
        if slow or flags or error:
            self._after_feed(slow, flags, error)
        # Fresh memory costs milliseconds for each MiB, so large chunks take turns.
        if nbytes >= BIG_CHUNK_BYTES and not self.closed:
            self._pause(PAUSED_BY_SLICE)
            self._server.queue_read(self, nbytes)

    def limit_requests(self) -> None:
        """Called when other limits of requests are in force: have them be so here."""
        limits = self._server.limits
        kernel = self._kernel
        if isinstance(kernel, LimitedFeeder):
            kernel = kernel.kernel
        if limits.is_on:
            self._kernel = LimitedFeeder(kernel, limits, self._network)
            self._handler = self._handle_limited
        else:
            kernel.allowance = ALLOWANCE_MAX
            self._kernel = kernel
            self._handler = self._server.handler

    async def _handle_limited(
        self, command: RemotingCommand, _itself: ServerConnection
    ) -> RemotingCommand | None:
        server = self._server
        busy = server.limits.refuse_address(command, self._network, self.remote_address)
        return busy or await server.handler(command, self)

    def answered(self, data: bytes) -> None:
        """Called by the server: answers of the kernel became ready."""
        self.send(data)

    def leave(self) -> None:
        """Called before the server stops: where the protocol has a word for it, say so."""

    def memory_bytes(self) -> int:
        """What the connection makes the server keep: see :class:`MemoryLimiter`."""
        unsent = 0 if self.closed else self._transport.get_write_buffer_size()
        return unsent + self._kernel.unfinished_bytes + self._in_flight_bytes

    def send(self, data: bytes) -> None:
        """Write whole frames. Never waits; a peer that takes nothing is cut off."""
        if not self.is_counted and not self.closed:
            self._server.memory_limiter.add(self)
        super().send(data)

    def resume_reading(self) -> None:
        """Called by the server: what comes is read again."""
        self._resume(PAUSED_BY_SLICE)

    def resume_writing(self) -> None:
        """Called by the loop: the peer took enough; frames that the kernel kept go on."""
        super().resume_writing()
        if self._paused & PAUSED_BY_ANSWERS and not self.closed:
            self.loop.call_soon(self._feed_more)

    async def request(self, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        """Ask the client, and wait for its response. Sets the command's opaque.
        ConnectionLostError: the connection is closed, or closes meanwhile.
        """
        what = f"request {command.code} to {self.remote_address}"
        if self.closed:
            raise ConnectionLostError(f"connection to {self.remote_address} closed before {what}")
        command.opaque = self._opaques.allocate()
        data = command.encode()
        future = self.wait_for(command.opaque, self.loop.time() + timeout_seconds, what)
        try:
            self.send(data)
            return await future
        finally:
            self.requests.calls.drop(command.opaque)

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request that gets no response. Sets its opaque and its one-way flag."""
        command.opaque = self._opaques.allocate()
        command.flag |= 2
        self.send(command.encode())

    def _take_frame(self, frame: bytes, answers: list[bytes]) -> None:
        if not self._server.limits.is_on:
            answer = self._server.fast_path.answer(frame, self)
            if answer is not None:
                answers.append(answer)
                return
        super()._take_frame(frame, answers)

    def _after_feed(self, slow: list[bytes] | None, flags: int, error: str | None) -> None:
        if slow:
            self._take_frames(slow)
        if flags & FED_READY:
            self._server.fast_path.on_ready()
        if flags & FED_WAITS:
            self._server.fast_path.on_waits()
        if error is not None:
            self._refuse(error, is_foreign=bool(flags & FED_FOREIGN))
        elif flags & FED_MORE and not self.closed:
            # Reading waits until the frames that the kernel kept are done: what it keeps is bounded
            # by one chunk. The loop gets an iteration in between, so that others are served too.
            self._pause(PAUSED_BY_ANSWERS)
            if not self._paused & PAUSED_BY_WRITES:
                self.loop.call_soon(self._feed_more)

    def _feed_more(self) -> None:
        if self.closed or self._paused & PAUSED_BY_WRITES:
            return
        answers, slow, flags, error = self._kernel.feed(b"", 0)
        if answers:
            self.send(answers)
        if not flags & FED_MORE:
            self._resume(PAUSED_BY_ANSWERS)
        if slow or flags or error:
            self._after_feed(slow, flags, error)


Handler = Callable[["RemotingCommand", ServerConnection], Handling]
"""Answers one request; None: nothing is answered. See :mod:`kerolox.remoting.connection` for what
may not be used before its first wait. A ``BrokerError`` it raises is the answer of that code."""


class ConnectionSettings(Protocol):
    """The settings of either role that bound its connections."""

    @property
    def server_channel_max_idle_time_seconds(self) -> float:
        """``idle_seconds_max``."""

    @property
    def server_socket_backlog(self) -> int:
        """``backlog``."""

    @property
    def max_connections(self) -> int:
        """``connections_max``."""

    @property
    def max_connections_per_address(self) -> int:
        """``connections_per_address_max``."""


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections a server has, how long, and what they may make it keep."""

    idle_seconds_max: float = IDLE_SECONDS_MAX
    """A connection without traffic for so long is closed."""
    backlog: int = BACKLOG
    """Connections that the operating system keeps until they are accepted."""
    in_flight_max: int = IN_FLIGHT_MAX
    """Requests of one connection whose handlers may wait at the same time."""
    connections_max: int = CONNECTIONS_MAX
    """Open connections; see :mod:`kerolox.remoting.limits.admission`."""
    connections_per_address_max: int = 0
    """Those of one address; 0: as many as are still free."""
    memory_bytes_max: int = MEMORY_BYTES_MAX
    """See :class:`~kerolox.remoting.limits.memory_limiter.MemoryLimiter`."""

    @classmethod
    def of(cls, settings: ConnectionSettings) -> ConnectionLimits:
        """Those that settings say."""
        return cls(
            idle_seconds_max=float(settings.server_channel_max_idle_time_seconds),
            backlog=settings.server_socket_backlog,
            connections_max=settings.max_connections,
            connections_per_address_max=settings.max_connections_per_address,
        )


@dataclass(frozen=True, slots=True)
class FastPath:
    """The kernel beside each connection, which answers what it can by itself."""

    feeder: Callable[[int, bytes], Feeder] = lambda *_: _FrameFeeder()
    """Makes the kernel of a connection from its id and its packed peer address. Without one all
    frames take the slow path."""
    on_ready: Callable[[], None] = _nothing
    """Called after a feed that made answers for other connections."""
    on_waits: Callable[[], None] = _nothing
    """Called after one whose senders wait for a slave."""
    answer: Callable[[bytes, ServerConnection], bytes | None] = lambda *_: None
    """Answers a frame that the kernel did not, at once; None: the handler answers it."""


class RemotingServer:
    """Listens on a port, of one or several addresses, and serves requests until it is stopped."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        fast_path: FastPath | None = None,
        on_close: Callable[[ServerConnection], None] = _nothing,
        connection_limits: ConnectionLimits | None = None,
        coalescer: RequestCoalescer | None = None,
        tls: ServerTls | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        """Nothing is opened before ``start``.

        Args:
            handler: answers what the kernel does not.
            host: addresses to listen on, see :mod:`kerolox.remoting.listening`.
            port: 0: any free one, see ``port`` after the start.
            fast_path: the kernel; None: the handler answers all.
            on_close: called with each connection after it closed.
            connection_limits: None: the defaults.
            coalescer: told what comes in.
            tls: how connections are encrypted; None: not at all.
            limits: how many requests are taken; None: any number.

        Several servers of a loop may share the last three. Their owner starts and stops them.
        """
        self._connection_limits = bounds = connection_limits or ConnectionLimits()
        self.tls, self.port = tls, port
        self.addresses: tuple[str, ...] = ()
        """``host:port`` of each address it listens on (after the start)."""
        self.handler, self._host, self._on_close = handler, host, on_close
        self.fast_path = fast_path or FastPath()
        self.memory_limiter = MemoryLimiter(bounds.memory_bytes_max)
        self.coalescer = coalescer or RequestCoalescer()
        self.limits = limits = limits or RequestLimits()
        limits.on_switch(self._limit_requests)
        self._admission = Admission(
            bounds.connections_max, bounds.connections_per_address_max, counts=limits.counts
        )
        self._shared: Shared = None  # type: ignore[assignment]  # until started
        self._waiting: deque[ServerConnection] = deque()
        self._connections: dict[int, ServerConnection] = {}
        self._servers: list[asyncio.Server] = []
        self._idle_watch: IdleWatch | None = None

    @property
    def connections(self) -> list[ServerConnection]:
        """The open connections."""
        return list(self._connections.values())

    def connection(self, connection_id: int) -> ServerConnection | None:
        """The open connection of that id."""
        return self._connections.get(connection_id)

    async def start(self) -> None:
        """Listen; ConfigError names the address that can't be listened on, and what to do."""
        loop, bounds = asyncio.get_running_loop(), self._connection_limits
        self._shared = Shared(loop, bounds.in_flight_max, read_buffer_of(loop))
        sockets = await listening_sockets(self._host, self.port, bounds.backlog)
        names = [each.getsockname() for each in sockets]
        self.port = names[0][1]
        self.addresses = tuple(join_address(name[0], name[1]) for name in names)
        while sockets:
            try:
                made = await loop.create_server(
                    self._make_connection, sock=sockets[0], backlog=ACCEPTS_PER_ITERATION
                )
                # To asyncio it is also how many are accepted at once.
                sockets[0].listen(bounds.backlog)
            except BaseException:
                for server in self._servers:
                    server.close()
                for each in sockets:
                    each.close()
                self._servers.clear()
                raise
            self._servers.append(made)
            sockets.pop(0)
        self._idle_watch = IdleWatch(
            loop, lambda: list(self._connections.values()), bounds.idle_seconds_max
        )
        self.memory_limiter.start(loop)

    def deliver(self, connection_id: int, data: bytes) -> None:
        """Write answers that became ready later; dropped when the connection is gone."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.answered(data)

    def opened(self, connection: ServerConnection, descriptor: int) -> Feeder | None:
        """A connection is open: its kernel; None when it is not served."""
        host, port = connection.peer
        if not host:
            return None  # Reset before it was taken up: nobody is at its other end.
        if not self._admission.admit(host, descriptor):
            return None
        # From here on ``lost`` releases it, whatever else goes wrong.
        self._connections[connection.connection_id] = connection
        _log.debug("%s: connection opened", connection.remote_address)
        try:
            return self.fast_path.feeder(connection.connection_id, pack_host(host, port))
        except Exception:
            _log.exception("closing %s: it can't be served", connection.remote_address)
            return None

    def lost(self, connection: ServerConnection) -> None:
        """A connection is closed."""
        self.memory_limiter.discard(connection)
        if self._connections.pop(connection.connection_id, None) is None:
            return  # It was not taken.
        self._admission.release(connection.peer[0])
        _log.debug("%s: connection closed", connection.remote_address)
        self._on_close(connection)

    def _limit_requests(self) -> None:
        for connection in self._connections.values():
            connection.limit_requests()

    def queue_read(self, connection: ServerConnection, nbytes: int) -> None:
        """Let a connection that brought a big chunk be read again after those that wait already."""
        self.memory_limiter.count(nbytes)
        if not self._waiting:
            self._shared.loop.call_soon(self._read_queued)
        self._waiting.append(connection)

    async def stop(self) -> None:
        """Stop listening and end all connections, in about two seconds at most. Requests whose
        handlers do not finish are answered with SERVICE_NOT_AVAILABLE; see
        :func:`kerolox.remoting.connection.have_reset` for those that are not read any more."""
        if not self._servers:
            return
        servers, self._servers = self._servers, []
        for connection in self.connections:
            connection.leave()
        await close_listeners(servers)
        if self._idle_watch is not None:
            self._idle_watch.stop()
        self.memory_limiter.stop()
        tasks = self._shared.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=HANDLERS_SECONDS_MAX)
        await end_tasks(*tasks, seconds_max=HANDLERS_SECONDS_MAX)
        await self._end_connections()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(each.wait_closed() for each in servers)), GONE_SECONDS_MAX
            )

    async def _end_connections(self) -> None:
        connections = self.connections
        if not connections:
            return
        gone = [connection.gone for connection in connections]
        now = self._shared.loop.time
        end = now() + STOP_SECONDS_MAX
        while connections := [each for each in connections if not each.reset_when_sent()]:
            if now() >= end:
                break
            await asyncio.sleep(STOP_POLL_SECONDS)
        for connection in connections:
            connection.abort()
        _, late = await asyncio.wait(gone, timeout=max(GONE_SECONDS_MAX, end - now()))
        if late:
            for connection in self.connections:
                connection.abort()
            await asyncio.wait(late, timeout=GONE_SECONDS_MAX)

    def _read_queued(self) -> None:
        for _ in range(min(BIG_CHUNKS_PER_ITERATION, len(self._waiting))):
            self._waiting.popleft().resume_reading()
        if self._waiting:
            self._shared.loop.call_soon(self._read_queued)

    def _make_connection(self) -> ServerConnection:
        return ServerConnection(self, self._shared, next_connection_id())


class _FrameFeeder:
    """Stands where a kernel would: every frame takes the slow path."""

    allowance = ALLOWANCE_MAX

    def __init__(self) -> None:
        self._decoder = FrameDecoder()

    def feed(self, data: Buffer, size: int) -> tuple[bytes, list[bytes] | None, int, str | None]:
        decoder = self._decoder
        frames: list[bytes] = []
        with contextlib.suppress(RemoteProtocolError), memoryview(data)[:size] as view:
            frames = decoder.feed(view)
        error = None if decoder.error is None else str(decoder.error)
        return b"", frames or None, FED_FOREIGN if decoder.is_foreign else 0, error

    @property
    def unfinished_bytes(self) -> int:
        return self._decoder.buffered_bytes

    def close(self) -> None:
        pass
