"""TLS on the port for slaves (``haTlsMode``): the first byte says whether a connection speaks it.

The byte is examined and left where it is, so that the handshake is the loop's own. Certificates
are those of the main port, as they are when a connection begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from kerolox.broker.replication.wire import ReplicationError
from kerolox.remoting.tls.server_tls import TLS_FIRST_BYTE, ServerTls

ACCEPT_AGAIN_SECONDS = 0.5
"""After the system had no connection to give, as without descriptors."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_log = logging.getLogger(__name__)


class TlsDoor:
    """Opens the connections of a port."""

    def __init__(self, tls: ServerTls, *, is_enforcing: bool, first_seconds_max: float) -> None:
        """Nobody waits.

        Args:
            tls: of the main port.
            is_enforcing: who speaks no TLS is refused.
            first_seconds_max: until the first byte; a Java slave says nothing for some seconds.
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
        is closed.

        Raises:
            ReplicationError: it speaks no TLS, or none can be spoken.
            OSError: the handshake failed, or took too long; the connection broke.
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
