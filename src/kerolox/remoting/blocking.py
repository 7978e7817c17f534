"""One blocking connection: ask and wait, or keep many requests open at once.

For places without an event loop: Spark's planning and worker processes, scripts, tests. Two ways of
use that may alternate but not overlap:

- ``invoke`` sends one request and waits for its response;
- *pipelining*: ``send`` any number of requests (each gets an opaque), then ``receive`` the
  responses in the order in which they arrive and pair them by ``opaque``. ``send_frames`` and
  ``receive_frame`` are the same without the encoding, for loops that make their own bytes.

Nothing is read ahead of ``receive`` but what one ``recv`` brings; at most one frame of
``FRAME_BYTES_MAX`` is buffered, in a buffer of ``RECEIVE_BYTES`` that grows for larger ones.
Requests that the broker sends to its clients are dropped: nobody here is a registered client. After
a time-out or a loss the connection is closed, since a response may still be on its way; make a new
one.

An instance belongs to one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import time
from collections.abc import Container
from types import TracebackType
from typing import Self

from kerolox.addresses import split_address
from kerolox.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import FRAME_BYTES_MAX, HEADER_SIZE_MASK
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import LENGTHS, is_header_size
from kerolox.security.credentials import Credentials, Signer
from kerolox.security.tls import (
    ResumingContext,
    Tls,
    context_of,
    handshake_fault,
    is_handshake_error,
    keep_session,
    why_closed,
)

RECEIVE_BYTES = 256 * 1024
"""Bytes asked of the socket at once."""

KEPT_BYTES_MAX = 4 * RECEIVE_BYTES
"""A larger buffer, which a large frame has made, is given back when it is empty."""

SEND_BYTES = 256 * 1024
"""Bytes given to the socket at once while it may not take all."""

UNREAD_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Most bytes that are kept while a peer takes none; answers to sends are far smaller."""

_OPAQUE_MASK = 0x7FFFFFFF


class BlockingConnection:
    """A connection to one name server or broker, with blocking calls.

    Args:
        address: ``host:port``.
        connect_timeout_seconds: longest wait for the connection, the TLS handshake included.
        credentials: requests are signed with these, those of :meth:`encode` too.
        tls: how the connection is encrypted; files of settings are read each time, so make a
            context of them for many connections (:func:`kerolox.security.tls.context_of`).

    Raises:
        ConfigError: ``address`` is not of that form, or a file of ``tls`` can't be used.
        ConnectError: nobody answers there, or without TLS.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_seconds: float = 3.0,
        credentials: Credentials | None = None,
        tls: Tls = False,
    ) -> None:
        self.address = address
        self._signer = None if credentials is None else Signer(credentials)
        self._opaques = itertools.count(1)
        self._buffer = bytearray()
        # What has arrived and is not taken yet.
        self._start = self._end = 0
        self._has_received = False
        try:
            place = split_address(address)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        secure = context_of(tls)
        deadline = time.monotonic() + connect_timeout_seconds
        try:
            self._socket = socket.create_connection(place, timeout=connect_timeout_seconds)
        except OSError as error:
            raise ConnectError(
                f"can't connect to {address} within {connect_timeout_seconds:g} s: {error}; "
                "is it running, and is the address right?"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure is not None:
            self._encrypt(secure, place[0], deadline, connect_timeout_seconds)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def next_opaque(self) -> int:
        """A request id that this connection has not used yet."""
        return next(self._opaques) & _OPAQUE_MASK

    def invoke(self, command: RemotingCommand, timeout_seconds: float = 3.0) -> RemotingCommand:
        """Send a request and wait for its response, which may carry an error code.

        ``command.opaque`` is set. Responses to other requests that arrive meanwhile are dropped.

        Raises:
            RequestTimeoutError: no response in time; the connection is closed.
            ConnectionLostError: the peer closed it.
            RemoteProtocolError: the peer sent no frame; the connection is closed.
        """
        deadline = time.monotonic() + timeout_seconds
        opaque = self.send(command, timeout_seconds)
        try:
            return self.receive(max(deadline - time.monotonic(), 0.0), (opaque,))
        except RequestTimeoutError:
            raise self.late(timeout_seconds) from None

    def send(self, command: RemotingCommand, timeout_seconds: float = 3.0) -> int:
        """Send a request without waiting; its opaque."""
        self.send_frames(self.encode(command), timeout_seconds)
        return command.opaque

    @property
    def signs(self) -> bool:
        """The connection has credentials: each request goes through :meth:`encode`."""
        return self._signer is not None

    def encode(self, command: RemotingCommand, opaque: int | None = None) -> bytes:
        """The frame of a request, for :meth:`send_frames`; sets its opaque (None: the next one),
        and signs it where the connection has credentials."""
        command.opaque = self.next_opaque() if opaque is None else opaque
        if self._signer is not None:
            self._signer.sign(command)
        return command.encode()

    def receive(
        self, timeout_seconds: float = 3.0, opaques: Container[int] | None = None
    ) -> RemotingCommand:
        """The next response to a request with one of the opaques; None: to any.

        Whatever else arrives is dropped, and does not make the wait longer. Errors as for
        :meth:`invoke`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            frame = self.receive_frame(max(deadline - time.monotonic(), 0.0))
            try:
                command = RemotingCommand.decode(frame)
            except RemoteProtocolError:
                self.close()
                raise
            if command.is_response and (opaques is None or command.opaque in opaques):
                return command
            if time.monotonic() >= deadline:
                raise self.late(timeout_seconds)

    def send_frames(self, data: bytes | bytearray, timeout_seconds: float = 3.0) -> None:
        """Send whole frames as they are; opaques come from :meth:`next_opaque`."""
        self._check_open()
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.sendall(data)
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(
                f"{self.address} took no bytes for {timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise self._lost(error) from error

    def send_and_keep_answers(self, data: bytes | bytearray, timeout_seconds: float = 3.0) -> None:
        """As :meth:`send_frames`, for large amounts while answers are on their way.

        A peer that can't get rid of its answers stops reading. So what arrives is read while the
        peer takes no bytes, and kept for :meth:`receive_frame`. The caller bounds it, by how many
        requests it has open.

        Raises:
            RemoteProtocolError: more than ``UNREAD_BYTES_MAX`` has arrived; the connection is
                closed.
        """
        self._check_open()
        sock = self._socket
        sock.settimeout(0)
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[sock.send(view[:SEND_BYTES]) :]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    self._read_until_writable(timeout_seconds)
        except OSError as error:
            raise self._lost(error) from error

    def _read_until_writable(self, timeout_seconds: float) -> None:
        """Keep what arrives until bytes can be sent, or as many have arrived as one read takes."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        ready = poll.poll(timeout_seconds * 1000)
        if not ready:
            self.close()
            raise RequestTimeoutError(f"{self.address} took no bytes for {timeout_seconds:g} s")
        if ready[0][1] & ~select.POLLOUT:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._read_some()
            if self._end - self._start > UNREAD_BYTES_MAX:
                self.close()
                raise RemoteProtocolError(
                    f"{self.address} sends far more than it was asked for, and reads nothing"
                )

    def receive_frame(self, timeout_seconds: float = 3.0) -> bytes:
        """The next frame without its length field, a response or not."""
        self._check_open()
        deadline = 0.0
        while True:
            frame = self._take_frame()
            if frame is not None:
                return frame
            now = time.monotonic()
            deadline = deadline or now + timeout_seconds
            self._fill(deadline - now, timeout_seconds)

    def receive_frames(self, timeout_seconds: float = 3.0) -> list[bytes]:
        """The next frame as :meth:`receive_frame` gives it, and all that are there behind it."""
        frames = [self.receive_frame(timeout_seconds)]
        while (frame := self._take_frame()) is not None:
            frames.append(frame)
        return frames

    def is_quiet(self) -> bool:
        """Nothing has arrived that was not received, and the peer has not closed: a connection
        whose answers have all come can be used for other requests."""
        if self.closed or self._end > self._start:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLPRI)
        return not poll.poll(0)

    def late(self, timeout_seconds: float) -> RequestTimeoutError:
        """The error for an answer that did not come in time; closes the connection.

        For those who take frames themselves: what nobody asked for must not make them wait on.
        """
        self.close()
        return RequestTimeoutError(f"{self.address} did not answer within {timeout_seconds:g} s")

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            if isinstance(self._socket, ssl.SSLSocket):
                keep_session(self._socket)
                # Without a close notification the session would be of no use; nobody waits for
                # theirs.
                self._socket.settimeout(0)
                with contextlib.suppress(OSError, ValueError):
                    self._socket.unwrap()
            self._socket.close()
        self._buffer = bytearray()
        self._start = self._end = 0

    def _encrypt(self, secure: ssl.SSLContext, host: str, deadline: float, seconds: float) -> None:
        """Speak TLS from now on."""
        plain = self._socket
        try:
            plain.settimeout(max(deadline - time.monotonic(), 0.001))
            session = secure.session_of(host) if isinstance(secure, ResumingContext) else None
            self._socket = secure.wrap_socket(plain, server_hostname=host, session=session)
        except TimeoutError as error:
            plain.close()
            raise ConnectError(
                f"no TLS connection to {self.address} within {seconds:g} s; does it speak TLS"
                " (tls.server.mode)?"
            ) from error
        except OSError as error:
            plain.close()
            reason = handshake_fault(error) if is_handshake_error(error) else str(error)
            raise ConnectError(f"no TLS connection to {self.address}: {reason}") from error

    def _take_frame(self) -> bytes | None:
        start = self._start
        held = self._end - start
        if held < LENGTHS.size:
            return None
        size, word = LENGTHS.unpack_from(self._buffer, start)
        header_size = word & HEADER_SIZE_MASK
        if not 4 <= size <= FRAME_BYTES_MAX or not is_header_size(header_size, size):
            self.close()
            raise RemoteProtocolError(
                f"{self.address} sent a frame of {size} bytes with a header of "
                f"{header_size}; it does not speak this protocol"
            )
        if held < 4 + size:
            return None
        with memoryview(self._buffer) as view:
            frame = bytes(view[start + 4 : start + 4 + size])
        self._start = start + 4 + size
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BYTES_MAX:
                self._buffer = bytearray()
        return frame

    def _fill(self, remaining_seconds: float, timeout_seconds: float) -> None:
        try:
            # A zero time-out would mean "non-blocking"; what has arrived is still taken.
            self._socket.settimeout(max(remaining_seconds, 0.001))
            self._read_some()
        except TimeoutError as error:
            raise self.late(timeout_seconds) from error
        except OSError as error:
            raise self._lost(error) from error

    def _read_some(self) -> None:
        """Keep what one read brings.

        Raises:
            ConnectionLostError: the peer closed the connection.
            OSError: as the socket raises it.
        """
        buffer, held = self._buffer, self._end - self._start
        if self._start:
            buffer[:held] = buffer[self._start : self._end]
            self._start, self._end = 0, held
        if len(buffer) - held < RECEIVE_BYTES // 2:
            # Twice as much each time, so that a large frame is not moved often.
            buffer.extend(bytes(max(RECEIVE_BYTES, held)))
        with memoryview(buffer) as view:
            count = self._socket.recv_into(view[held : held + RECEIVE_BYTES])
        if not count:
            raise self._lost()
        self._has_received = True
        self._end += count

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.address} is closed; make a new one")

    def _lost(self, error: OSError | None = None) -> ConnectionLostError:
        reason = str(error) if error else ""
        if isinstance(self._socket, ssl.SSLSocket):
            reason = why_closed(error, has_received=self._has_received)
        self.close()
        return ConnectionLostError(
            f"connection to {self.address} lost: {reason or 'the peer closed it'}"
        )
