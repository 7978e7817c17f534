"""A slave that follows its master: the connection to ``haListenPort`` (``HAClient``)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, cast

from kerolox.addresses import split_address
from kerolox.broker.config import BrokerSettings
from kerolox.broker.replication.comparing import DivergedError, LogGoneError
from kerolox.broker.replication.resync import Restart, Resync
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.sockets import (
    LoggedTexts,
    check_seconds,
    replication_settings,
    steady_ms,
)
from kerolox.broker.replication.wire import FRAME_BYTES, READ_BYTES, ReplicationError
from kerolox.broker.role import BrokerRole
from kerolox.errors import ConfigError
from kerolox.kernel.read import STREAM_CLOSED, STREAM_OTHER, MasterStream
from kerolox.kernel.store import ReplicatedLog
from kerolox.security.contexts import TlsContexts
from kerolox.security.slave_proof import made_proof

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kerolox.broker.replication.auto_switch_service import AutoSwitchService

CONNECT_SECONDS_MAX = 3.0
STOPPED_SECONDS = 60.0
"""Between two checks of a master whose log is another one."""
NOTE_SECONDS = 0.1
"""How often to check whether the time of the master's note is over, and whether the log goes on."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 5.0

_log = logging.getLogger(__name__)


class Follower:
    """Keeps the log of a slave equal to its master's.

    Attributes:
        is_following: the master sends, and what it sends fits.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: ReplicatedLog,
        restart: Restart | None = None,
        service: AutoSwitchService | None = None,
    ) -> None:
        """Nothing is opened before :meth:`run`. ``restart``: has the log cut. ``service``: of a
        broker under a controller.
        """
        self._service = service
        config = settings.current
        self._resync = Resync(config, restart)
        self._tls = TlsContexts(lambda: settings.current.tls_to_master())
        self._settings = settings
        self._store = store
        self._timing = replication_settings(config)
        self._role = role
        self._address = role.current.ha_master_address
        self._changed = asyncio.Event()
        self._logged = LoggedTexts()
        self.is_following = False

    @property
    def has_address(self) -> bool:
        """Whether it is known where the master sends its log."""
        return bool(self._address)

    def set_master(self, address: str) -> None:
        """What a name server says of the master's ``haServerAddr``; haMasterAddress is stronger."""
        if not self._role.current.ha_master_address and address and address != self._address:
            _log.info("the master sends its log at %s", address)
            self._address = address
            self._resync.forget()
            self._changed.set()

    async def run(self) -> None:
        """Follow the master, and connect again whenever the connection ends, until cancelled."""
        pause = RETRY_SECONDS_MIN
        while True:
            self._changed.clear()
            began = steady_ms()
            if self._address:
                try:
                    await self._follow(self._address)
                except (DivergedError, LogGoneError) as error:
                    end = self._store.max_physical_offset
                    text = self._resync.decide(error, end, self._address)
                    # Where there is none, a look further back comes next.
                    pause = STOPPED_SECONDS if text else RETRY_SECONDS_MIN / 2
                    if text:
                        self._log_once(text)
                except (ReplicationError, ConfigError, OSError, TimeoutError, ValueError) as error:
                    self._log_once(str(error) or f"no answer within {CONNECT_SECONDS_MAX:g} s")
                finally:
                    self.is_following = False
            if pause < STOPPED_SECONDS:
                is_fresh = steady_ms() - began > RETRY_SECONDS_MAX * 1_000
                pause = RETRY_SECONDS_MIN if is_fresh else min(pause * 2, RETRY_SECONDS_MAX)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue
            finally:
                pause = min(pause, RETRY_SECONDS_MAX)

    async def _follow(self, address: str) -> None:
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            context = self._tls.current()
            name = None if context is None else host
            try:
                reader, writer = await asyncio.open_connection(
                    host, port, limit=READ_BYTES, ssl=context, server_hostname=name
                )
            except OSError as error:
                if context is None:
                    raise
                raise ReplicationError(f"by TLS (haTlsMode) it is not reached: {error}") from error
        thread: StreamThread | None = None
        try:
            link = self._link(steady_ms())
            if reader.at_eof() or writer.is_closing():
                raise link.closed()
            receiver = LogReceiver(link, writer.transport)
            writer.transport.set_protocol(receiver)
            writer.write(link.start())
            while address == self._address:
                is_new = link.is_greeting or not self.is_following
                seconds = check_seconds(self._timing)
                if thread is None and self.is_following:
                    thread = StreamThread.begin(link, receiver.transport, self._store)
                if thread is None:
                    await receiver.wait(min(seconds, NOTE_SECONDS) if is_new else seconds)
                elif not await thread.read(seconds):
                    await thread.close(ends_connection=False)
                    thread = None
                if link.is_equal and link.has_received and not self.is_following:
                    self.is_following = True
                    self._logged.forget()
                    self._resync.forget()
                    _log.info("master %s sends its log", address)
                if report := link.tick(steady_ms()):
                    writer.write(report)
        finally:
            try:
                if thread is not None:
                    await thread.close()
            finally:
                writer.transport.abort()

    def _link(self, now_ms: int) -> MasterLink:
        compared = self._resync.compared_bytes
        if self._service is not None:
            return self._service.link_to_master(self._store, now_ms, compared)
        file_size = self._settings.current.mapped_file_size_commit_log
        account = self._settings.current.account_of_broker()
        prove = None if account is None else partial(made_proof, account)
        return MasterLink(self._store, file_size, self._timing, now_ms, compared, prove)

    def _log_once(self, text: str) -> None:
        if self._logged.is_new(text, asyncio.get_running_loop().time()):
            _log.error(
                "master %s: its log does not come, it is tried again: %s", self._address, text
            )


class LogReceiver(asyncio.BufferedProtocol):
    """Gives what comes to a link, and sends what that answers.

    Bytes are read into one buffer and appended from there, with each read of the socket: no task
    wakes up, and nothing is copied between. While the master takes no answers, nothing is read:
    what waits to be sent stays small.
    """

    def __init__(self, link: MasterLink, transport: asyncio.BaseTransport) -> None:
        """To be set as the protocol of a connection that is open. ``link``: its decisions."""
        self._link = link
        self.transport = cast("asyncio.Transport", transport)
        # A bytearray would not do: of one, TLS fills a copy.
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, seconds: float) -> None:
        """Wait for the end of the connection, so long at most. ReplicationError: the master's log
        is another one, or it is no master. OSError: the connection broke, or the disk takes no
        more.
        """
        await asyncio.wait((self._end,), timeout=seconds)
        if self._end.done():
            self._end.result()

    def get_buffer(self, _sizehint: int) -> Buffer:
        """Where the next bytes go."""
        return self._buffer[: self._link.next_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._end.done():
            return
        try:
            answer = self._link.received(self._buffer[:nbytes], steady_ms())
        except Exception as error:
            self._finish(error)
        else:
            if answer:
                self.transport.write(answer)

    def eof_received(self) -> bool:
        """The master closed its side."""
        self._finish(self._link.closed())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._finish(exc or self._link.closed())

    def pause_writing(self) -> None:
        """The master takes no answers for now."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It takes them again."""
        self.transport.resume_reading()

    def _finish(self, error: Exception) -> None:
        if not self._end.done():
            self._end.set_exception(error)
            # Whoever waits no more need not hear of it.
            self._end.exception()
            self.transport.abort()


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
        stream_position = link.hand_over()
        if stream_position is None or transport.is_closing():
            return None
        stream = store.read_master(plain.fileno(), stream_position, FRAME_BYTES, READ_BYTES)
        if stream is None:
            return None
        # The transport may close its own while the kernel reads.
        connection = socket.socket(fileno=os.dup(plain.fileno()))
        transport.pause_reading()
        return cls(link, transport, stream, connection)

    async def read(self, seconds: float) -> bool:
        """Read so long; False: the link has taken over. Errors as of :meth:`wait`; the end of the
        connection is a ReplicationError.
        """
        if self._transport.get_write_buffer_size():
            # Half a report may be among it, and one of the kernel's must not come between.
            return self._give_back()
        loop = asyncio.get_running_loop()
        self._is_at_rest.clear()
        try:
            reading = self._pool.submit(self._follow, seconds, loop)
        except RuntimeError as error:
            self._is_at_rest.set()
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error
        try:
            pause = await asyncio.shield(asyncio.wrap_future(reading))
        except ValueError as error:
            at = self._stream.stream_position().position
            raise ReplicationError(f"the master's bytes at {at} are refused: {error}") from None
        if self._stream.has_received():
            self._link.advanced(self._stream.stream_position(), steady_ms())
        if pause == STREAM_CLOSED:
            raise self._link.closed()
        return pause != STREAM_OTHER or self._give_back()

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

    def _give_back(self) -> bool:
        """Have the link go on; False."""
        if answer := self._link.take_over(self._stream.stream_position()):
            self._transport.write(answer)
        self._transport.resume_reading()
        return False

    def _follow(self, seconds: float, loop: asyncio.AbstractEventLoop) -> int:
        try:
            return self._stream.follow(seconds)
        finally:
            loop.call_soon_threadsafe(self._is_at_rest.set)
