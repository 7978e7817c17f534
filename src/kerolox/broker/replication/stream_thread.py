"""A connection to a master that a kernel reads, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor

from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.sockets import steady_ms
from kerolox.broker.replication.wire import FRAME_BYTES, READ_BYTES, ReplicationError
from kerolox.kernel import STREAM_CLOSED, STREAM_OTHER, MasterStream, ReplicatedLog


class StreamThread:
    """Reads where a link and its transport stopped, until they have to go on.

    The link stays the one that decides: it hands over where both logs are equal, and takes over
    whatever is not the next part of the log.
    """

    def __init__(
        self,
        link: MasterLink,
        transport: asyncio.Transport,
        stream: MasterStream,
        connection: socket.socket,
    ) -> None:
        """See :meth:`begin`."""
        self._link = link
        self._transport = transport
        self._stream = stream
        self._connection = connection
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kerolox-slave")
        self._is_at_rest = asyncio.Event()
        self._is_at_rest.set()

    @classmethod
    def begin(
        cls, link: MasterLink, transport: asyncio.Transport, store: ReplicatedLog
    ) -> StreamThread | None:
        """Take a connection over from its transport; None: the link has to go on reading, since it
        is not at rest yet, the bytes are encrypted, or the kernel reads no connections."""
        plain = transport.get_extra_info("socket")
        is_encrypted = transport.get_extra_info("ssl_object") is not None
        if plain is None or is_encrypted or transport.get_write_buffer_size():
            return None
        standing = link.hand_over()
        if standing is None or transport.is_closing():
            return None
        connection = socket.socket(fileno=os.dup(plain.fileno()))
        try:
            stream = store.read_master(connection.fileno(), standing, FRAME_BYTES, READ_BYTES)
        except BaseException:
            connection.close()
            raise
        if stream is None:
            connection.close()
            return None
        transport.pause_reading()
        return cls(link, transport, stream, connection)

    async def read(self, seconds: float) -> bool:
        """Read so long; False: the link has taken over.

        Raises:
            ReplicationError: the master's log is another one, or the connection ended.
            OSError: the connection broke, or the disk takes no more.
        """
        loop = asyncio.get_running_loop()
        self._is_at_rest.clear()
        reading = self._pool.submit(self._follow, seconds, loop)
        try:
            pause = await asyncio.shield(asyncio.wrap_future(reading))
        except ValueError as error:
            at = self._stream.standing().position
            raise ReplicationError(f"the master's bytes at {at} are refused: {error}") from None
        standing = self._stream.standing()
        if self._stream.has_heard():
            self._link.heard(standing, steady_ms())
        if pause == STREAM_CLOSED:
            raise self._link.closed()
        if pause != STREAM_OTHER:
            return True
        if answer := self._link.take_over(standing, steady_ms()):
            self._transport.write(answer)
        self._transport.resume_reading()
        return False

    async def close(self, *, ends_connection: bool = True) -> None:
        """Wait until the thread reads no more. With it the connection ends, unless the link goes on
        with it."""
        if ends_connection:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        is_cancelled = False
        # What was read is appended before anybody else has the log.
        while not self._is_at_rest.is_set():
            try:
                await self._is_at_rest.wait()
            except asyncio.CancelledError:
                is_cancelled = True
        self._pool.shutdown(wait=False)
        self._connection.close()
        if is_cancelled:
            raise asyncio.CancelledError

    def _follow(self, seconds: float, loop: asyncio.AbstractEventLoop) -> int:
        try:
            return self._stream.follow(seconds)
        finally:
            loop.call_soon_threadsafe(self._is_at_rest.set)
