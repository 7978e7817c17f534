"""The port of a master, where its slaves connect (``haListenPort``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.master import LogRange, SlaveLink
from kerolox.broker.replication.sockets import (
    check_seconds,
    read_some,
    replication_settings,
    steady_ms,
)
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.replication.wire import ReplicationError
from kerolox.errors import ConfigError
from kerolox.kernel import ReplicatedLog
from kerolox.remoting.listening import listening_sockets

SLAVES_MAX = 64
"""Connections at a time."""
WRITE_BYTES = 256 * 1024
"""Of frames, written to a slave at once."""
REPORT_BYTES = 4_096
"""Of reports, read from a slave at once."""
LOOK_SECONDS = 0.05
"""How often a log that nobody waits for is looked at for more."""
BACKLOG = 16

_log = logging.getLogger(__name__)


class SlaveServer:
    """Sends the log to every slave that connects.

    Attributes:
        waits: how far the log is on a slave, and who waits for that.
        port: where it listens; 0 while it does not.
    """

    def __init__(self, config: BrokerConfig, store: ReplicatedLog, waits: SlaveWaits) -> None:
        """Nothing is opened before :meth:`open`."""
        self._config = config
        self._store = store
        self._settings = replication_settings(config)
        self.waits = waits
        self.port = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Listen; 0: a free port.

        Raises:
            ConfigError: the port can't be opened.
        """
        try:
            sockets = await listening_sockets(self._config.listen_host, port, BACKLOG)
        except ConfigError as error:
            raise ConfigError(f"haListenPort, where slaves connect: {error}") from error
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            made = await asyncio.start_server(self._accept, sock=each, start_serving=False)
            self._servers.append(made)
            await made.start_serving()

    async def close(self) -> None:
        """Close the port and all connections. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers = []
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = "{}:{}".format(*(writer.get_extra_info("peername") or ("?", "?"))[:2])
        if not self._servers:
            # It was accepted as the last act of a server that closes.
            writer.transport.abort()
            return
        if len(self._tasks) >= SLAVES_MAX:
            _log.error("slave %s is refused: %d are connected", peer, SLAVES_MAX)
            writer.close()
            return
        self._tasks.add(task)
        # A stop cancels it; the stream's own callback would take that for a failure.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._serve(reader, writer, peer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        file_size = self._config.mapped_file_size_commit_log
        link = SlaveLink(self._settings, file_size, steady_ms())
        self.waits.replicated.add(link)
        both = (
            asyncio.ensure_future(self._read(link, reader, peer)),
            asyncio.ensure_future(self._send(link, writer)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waits.replicated.remove(link)
            for task in both:
                task.cancel()
        for end in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(end, ReplicationError):
                _log.warning("slave %s: %s; its connection is closed", peer, end)
            elif isinstance(end, OSError):
                _log.info("slave %s: the connection broke: %s", peer, end)
            elif isinstance(end, Exception):
                _log.error("slave %s: its connection is closed", peer, exc_info=end)

    async def _read(self, link: SlaveLink, reader: asyncio.StreamReader, peer: str) -> None:
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
            link.received(data, log, steady_ms())
            if is_new and link.position >= 0:
                _log.info("slave %s: its log is sent from %d on", peer, link.position)
                self.waits.grown.set()
            if self.waits.replicated.note(link):
                self.waits.wake()

    async def _send(self, link: SlaveLink, writer: asyncio.StreamWriter) -> None:
        grown = self.waits.grown
        while True:
            grown.clear()
            frames = self._frames(link, self._store.max_physical_offset)
            if frames:
                writer.write(frames)
                await writer.drain()
                # Other work of the loop gets its turn between two writes.
                await asyncio.sleep(0)
                continue
            if heartbeat := link.heartbeat(steady_ms()):
                writer.write(heartbeat)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await grown.wait()

    def _frames(self, link: SlaveLink, end: int) -> bytes:
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
