"""The port of a master, where its slaves connect (``haListenPort``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.addresses import join_address
from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.sockets import (
    LoggedTexts,
    check_seconds,
    read_some,
    replication_settings,
    steady_ms,
)
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.replication.wire import Note, ReplicationError
from kerolox.errors import ConfigError
from kerolox.kernel.store import ReplicatedLog
from kerolox.remoting.listening import close_listeners, listening_sockets
from kerolox.remoting.tls.server_tls import TLS_FIRST_BYTE, ServerTls
from kerolox.role_settings import DISABLED, ENFORCING
from kerolox.tasks import end_tasks
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.broker.replication.master import ProofCheck, SlaveEnd

ACCEPT_AGAIN_SECONDS = 0.5
"""After the system had no connection to give, as without descriptors."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TlsDoor:
    """Opens the connections of a port, where the first byte says whether one speaks TLS.

    The byte is examined and left where it is, so that the handshake is the loop's own. Certificates
    are those of the main port, as they are when a connection begins.
    """

    def __init__(self, tls: ServerTls, *, is_enforcing: bool, first_seconds_max: float) -> None:
        """Nobody waits. ``is_enforcing``: who speaks no TLS is refused. ``first_seconds_max``:
        until the first byte; a Java slave says nothing for some seconds.
        """
        self._tls = tls
        self._is_enforcing = is_enforcing
        self._first_seconds_max = first_seconds_max

    async def accept(
        self, listener: socket.socket, welcome: Callable[[socket.socket], object]
    ) -> None:
        """Give each connection of a listening socket to ``welcome``, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _address = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue  # Its peer was gone before it was taken up.
            except OSError as error:
                _log.warning("the port for slaves has no connection to give: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            welcome(connection)

    async def streams(self, connection: socket.socket, limit: int) -> Streams:
        """What a connection is read and written through, after its handshake. Where that fails it
        is closed. ReplicationError: it speaks no TLS, or none can be spoken. OSError: the handshake
        failed, or took too long; the connection broke.
        """
        try:
            is_secure = await self._speaks_tls(connection)
            context = await self._tls.context() if is_secure else None
        except BaseException:
            connection.close()
            raise
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limit)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = self._tls.handshake_seconds_max if is_secure else None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=context, ssl_handshake_timeout=seconds
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _speaks_tls(self, connection: socket.socket) -> bool:
        try:
            async with asyncio.timeout(self._first_seconds_max):
                first = await _first_byte(connection)
        except TimeoutError:
            raise ReplicationError(
                f"it sent nothing for {self._first_seconds_max:g} s (haHousekeepingInterval)"
            ) from None
        if not first:
            raise ReplicationError("it closed the connection")
        is_secure = first[0] == TLS_FIRST_BYTE
        if not is_secure and self._is_enforcing:
            raise ReplicationError(
                "it speaks no TLS, and haTlsMode=enforcing; set that at the slave as well, or "
                "permissive here for a Java slave"
            )
        return is_secure


async def _first_byte(connection: socket.socket) -> bytes:
    """The first byte that comes, which stays unread; empty: the other end closed."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return connection.recv(1, socket.MSG_PEEK)
        await _readable(connection)


async def _readable(connection: socket.socket) -> None:
    """Wait until something can be read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        # Before the descriptor may become another one's.
        loop.remove_reader(connection)


SLAVES_MAX = 64
"""Connections at a time."""
WRITE_BYTES = 256 * 1024
"""Of frames, written to a slave at once."""
REPORT_BYTES = 4_096
"""Of reports, read from a slave at once."""
POLL_SECONDS = 0.05
"""How often a log that nobody waits for is examined for more."""
BACKLOG = 16
NONCE_BYTES = 16
READ_LIMIT = 64 * 1024
"""Of bytes that came and are not read yet; with as many more the socket is read no more."""

_log = logging.getLogger(__name__)


class SlaveServer:
    """Sends the log to every slave that connects.

    Attributes:
        waits: how far the log is on a slave, and who waits for that.
        port: where it listens; 0 while it does not.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: ReplicatedLog,
        waits: SlaveWaits,
        check_proof: ProofCheck | None = None,
        tls: ServerTls | None = None,
        make_link: Callable[[int], SlaveEnd] | None = None,
    ) -> None:
        """Nothing is opened before :meth:`open`. ``make_link``: what speaks to a slave that
        connected at a time; None: as without a controller.
        """
        self._make_link = make_link or self._plain_link
        self._door: TlsDoor | None = None
        if tls is not None and config.ha_tls_mode != DISABLED:
            self._door = TlsDoor(
                tls,
                is_enforcing=config.ha_tls_mode == ENFORCING,
                first_seconds_max=config.ha_housekeeping_interval / 1000,
            )
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._check_proof = check_proof if config.ha_acl_enable else None
        self._config = config
        self._store = store
        self._settings = replication_settings(config)
        self._allowed = config.ha_allowed
        self._refused = LoggedTexts()
        self.waits = waits
        self.port = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Listen; 0: a free port."""
        try:
            sockets = await listening_sockets(self._config.listen_host, port, BACKLOG)
        except ConfigError as error:
            raise ConfigError(f"haListenPort, where slaves connect: {error}") from error
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            if self._door is not None:
                each.setblocking(False)
                self._listeners.append(each)
                accepting = self._door.accept(each, self._welcome)
                self._accepting.append(asyncio.ensure_future(accepting))
                continue
            made = await asyncio.start_server(self._accept, sock=each, start_serving=False)
            self._servers.append(made)
            await made.start_serving()

    async def close(self) -> None:
        """Close the port and all connections. Idempotent."""
        servers, self._servers = self._servers, []
        self.port = 0
        await close_listeners(servers)
        await end_tasks(*self._tasks, *self._accepting)
        for listener in self._listeners:
            listener.close()
        self._listeners, self._accepting = [], []

    def _welcome(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted, when it was seen whether it speaks TLS."""
        task = asyncio.get_running_loop().create_task(self._admit(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket) -> None:
        assert self._door is not None
        try:
            host, port = connection.getpeername()[:2]
        except OSError:
            connection.close()
            return
        peer = join_address(host, port)
        if refusal := self._refusal(host, others=len(self._tasks) - 1):
            self._log_refusal(peer, refusal)
            connection.close()
            return
        try:
            reader, writer = await self._door.streams(connection, READ_LIMIT)
        except (ReplicationError, OSError) as error:
            self._log_refusal(peer, str(error) or "its TLS handshake took too long")
            return
        try:
            await self._serve(reader, writer, peer)
        finally:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        name = writer.get_extra_info("peername")
        if not self._servers or not name:
            # Accepted as the last act of a server that closes, or reset before it was taken up.
            writer.transport.abort()
            return
        host, port = name[:2]
        peer = join_address(host, port)
        if refusal := self._refusal(host, others=len(self._tasks)):
            self._log_refusal(peer, refusal)
            writer.transport.abort()
            return
        self._tasks.add(task)
        # A stop cancels it; the stream's own callback would take that for a failure.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._serve(reader, writer, peer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

    def _log_refusal(self, peer: str, refusal: str) -> None:
        if self._is_new(peer, refusal):
            _log.error("slave %s is refused: %s", peer, refusal)

    def _is_new(self, peer: str, text: str) -> bool:
        """Whether it was not said of that host lately; whoever connects again and again fills no
        log."""
        host = peer.rpartition(":")[0]
        return self._refused.is_new(text, asyncio.get_running_loop().time(), host)

    def _refusal(self, host: str, *, others: int) -> str:
        """Why a connection from there is not served; empty: it is."""
        if self._allowed and not any(host in addresses for addresses in self._allowed):
            return f"{printable(host)} is not among haAllowedSlaves"
        if others >= SLAVES_MAX:
            return f"{SLAVES_MAX} are connected"
        return ""

    def _plain_link(self, now_ms: int) -> SlaveEnd:
        # Loaded when the first slave comes: most masters have none.
        import secrets

        from kerolox.broker.replication.master import SlaveLink

        file_size = self._config.mapped_file_size_commit_log
        nonce = secrets.token_hex(NONCE_BYTES)
        return SlaveLink(self._settings, file_size, now_ms, self._check_proof, nonce)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        link = self._make_link(steady_ms())
        link.peer = peer
        self.waits.add(link)
        both = (
            asyncio.ensure_future(self._read(link, reader, writer, peer)),
            asyncio.ensure_future(self._send(link, writer)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waits.remove(link)
            for task in both:
                task.cancel()
        for end in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(end, ReplicationError):
                if self._is_new(peer, str(end)):
                    _log.warning("slave %s: %s; its connection is closed", peer, end)
                if link.is_ours:
                    writer.write(Note(refused=str(end)).frame())
            elif isinstance(end, OSError):
                _log.info("slave %s: the connection broke: %s", peer, end)
            elif isinstance(end, Exception):
                _log.error("slave %s: its connection is closed", peer, exc_info=end)

    async def _read(
        self,
        link: SlaveEnd,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
    ) -> None:
        from kerolox.broker.replication.master import LogRange

        store = self._store
        while True:
            data = await read_some(reader, REPORT_BYTES, check_seconds(self._settings))
            if data is None:
                link.check(steady_ms())
                continue
            if not data:
                raise ReplicationError("it closed the connection")
            is_new = link.position < 0
            log = LogRange(store.min_physical_offset, store.max_physical_offset)
            if note := link.received(data, log, steady_ms()):
                writer.write(note)
            if is_new and link.position >= 0:
                _log.info("slave %s: its log is sent from %d on", peer, link.position)
                self.waits.grown.set()
            self.waits.note(link)

    async def _send(self, link: SlaveEnd, writer: asyncio.StreamWriter) -> None:
        grown = self.waits.grown
        while True:
            grown.clear()
            frames = self._frames(link, self._store.max_physical_offset)
            if frames:
                writer.write(frames)
                await writer.drain()
                # Other work of the loop runs between two writes.
                await asyncio.sleep(0)
                continue
            if heartbeat := link.heartbeat(steady_ms()):
                writer.write(heartbeat)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await grown.wait()

    def _frames(self, link: SlaveEnd, end: int) -> bytes:
        """The next frames for a slave; b"": it has all."""
        parts: list[bytes] = []
        size = 0
        while size < WRITE_BYTES and (part := link.transfer(end)) is not None:
            body = self._store.read_log(*part)
            if not body:
                raise ReplicationError(
                    f"it is too slow: what comes next, at {part[0]}, is deleted by now"
                )
            parts += link.sent(len(body), steady_ms()), body
            size += len(body)
        return b"".join(parts)
