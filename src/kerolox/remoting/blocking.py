"""One blocking connection: ask and wait, or keep many requests open at once.

For places without an event loop: Spark's planning and worker processes, scripts, tests. It drives
``remoting/core`` as the asyncio client does: there are the requests, who waits for each, and what
ends them. Here bytes come and go, and time passes. Ways of use, which may alternate:

- ``ask`` and ``invoke`` send requests and wait for their responses;
- ``post`` sends requests, each with a waiter (``send_frames`` and ``requests`` do so for who makes
  frames by himself); ``wait`` reads until one of them has its answer;
- ``send`` sends a request whose response nobody waits for.

Nothing is read ahead but what one ``recv`` brings, and what a peer sends while it takes nothing.
Requests that the broker sends to its clients go to ``on_request``. After a time-out or a loss the
connection is closed, since a response may still be on its way, and all its requests end with that
error; make a new one.

An instance belongs to one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Self, TypeVar

from kerolox.addresses import split_address
from kerolox.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    KeroloxError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import FRAME_BYTES_MAX
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameBuffer
from kerolox.remoting.core.client_requests import PullRequests, ReadPull
from kerolox.remoting.core.requests import Answer, Waiter
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

SEND_BYTES = 256 * 1024
"""Bytes given to the socket at once while it may not take all."""

UNREAD_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Most bytes that are kept while a peer takes none; answers to sends are far smaller."""

IN_FLIGHT_MAX = 64
"""Most requests of one ``ask`` that are open at once."""

_OPAQUE_MASK = 0x7FFFFFFF
_READABLE = select.POLLIN | select.POLLPRI
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_Error = TypeVar("_Error", bound=KeroloxError)


def _ignore(*_: object) -> None:
    """Nothing is to be done: a caller that waits has its own clock, and nobody wants requests."""


class BlockingConnection:
    """A connection to one name server or broker, with blocking calls.

    Args:
        address: ``host:port``.
        connect_timeout_seconds: longest wait for the connection, the TLS handshake included.
        credentials: requests are signed with these, those of :meth:`encode` too.
        tls: how the connection is encrypted; files of settings are read each time, so make a
            context of them for many connections (:func:`kerolox.security.tls.context_of`).
        read_pull: reads fast-path answers of pulls (that of a codec); None: nobody pulls.

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
        read_pull: ReadPull | None = None,
    ) -> None:
        self.address = address
        self.requests = PullRequests(_ignore, _ignore, read_pull)
        """Those that are open. Waiters have no deadline of their own: ``wait`` has one."""
        self.on_request: Callable[[RemotingCommand], object] = _ignore
        """Is given what the peer asks."""
        self._signer = None if credentials is None else Signer(credentials)
        self._opaques = itertools.count(1)
        self._decoder = FrameBuffer(RECEIVE_BYTES)
        self._frames: deque[bytes] = deque()
        """What has arrived and is not taken yet."""
        self._unread_bytes = 0
        self._has_received = False
        self._socket = _connected(address, connect_timeout_seconds, tls)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._events = _READABLE
        self._poll.register(self._socket, self._events)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_opaque(self) -> int:
        """A request id that this connection has not used yet."""
        return next(self._opaques) & _OPAQUE_MASK

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

    # -- ask and wait ---------------------------------------------------------------------------
    def invoke(self, command: RemotingCommand, timeout_seconds: float = 3.0) -> RemotingCommand:
        """Send a request and wait for its response, which may carry an error code.

        ``command.opaque`` is set. Responses to other requests that arrive meanwhile are dropped.
        RequestTimeoutError, ConnectionLostError and RemoteProtocolError leave it closed.
        """
        return self.ask([command], timeout_seconds)[0]

    def ask(
        self, commands: Sequence[RemotingCommand], timeout_seconds: float = 3.0
    ) -> list[RemotingCommand]:
        """The responses to requests, of which many are open at once; as :meth:`invoke`, with so
        long for each response that comes."""
        answers: list[Answer[RemotingCommand]] = []
        for first in range(0, len(commands), IN_FLIGHT_MAX):
            some = commands[first : first + IN_FLIGHT_MAX]
            answers += [Answer() for _ in some]
            self.post(some, answers[first:], timeout_seconds)
            while self.requests.calls:
                self.wait(timeout_seconds)
        return [answer.get() for answer in answers]

    def post(
        self,
        commands: Sequence[RemotingCommand],
        waiters: Sequence[Waiter[RemotingCommand]],
        timeout_seconds: float = 3.0,
    ) -> None:
        """Send requests, in one write, and have the response to each handed to its waiter by a
        later :meth:`wait`. What ends the connection is handed to all that are open. Nothing is sent
        by a LocalProtocolError: no frame can hold one of them.
        """
        self._check_open()
        frames = b"".join(map(self.encode, commands))
        for command, waiter in zip(commands, waiters, strict=True):
            self.requests.calls.wait(waiter, command.opaque, inf, "")
        self.send_frames(frames, timeout_seconds)

    def wait(self, timeout_seconds: float) -> None:
        """Read until one more of the open requests has its answer, and take all that came with it.

        Whatever nobody asked for does not make the wait longer. Errors as for :meth:`invoke`.
        """
        count = self.requests.open_count

        def is_answered() -> bool:
            self._take()
            return self.requests.open_count < count

        self._read_until(is_answered, timeout_seconds)

    def take_arrived(self) -> None:
        """Take the answers of one read, and wait for none. Errors as for :meth:`invoke`."""
        self._check_open()
        if self._ready(_READABLE, 0.0):
            self._receive_now()
        self._take()

    def send(self, command: RemotingCommand, timeout_seconds: float = 3.0) -> int:
        """Send a request, and wait for nothing; its opaque. A response is dropped."""
        self.send_frames(self.encode(command), timeout_seconds)
        return command.opaque

    def send_frames(self, data: bytes | bytearray, timeout_seconds: float = 3.0) -> None:
        """Send whole frames as they are; opaques come from :meth:`next_opaque`.

        A peer that can't get rid of its answers stops reading. So what arrives is read while the
        peer takes no bytes, and kept. The caller bounds it, by how many requests it has open.
        RequestTimeoutError: the peer took no byte for so long, and sent none. RemoteProtocolError:
        more than ``UNREAD_BYTES_MAX`` has arrived; the connection is closed.
        """
        self._check_open()
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[self._socket.send(view[:SEND_BYTES]) :]
                except _NOT_NOW:
                    self._read_until_writable(timeout_seconds)
        except OSError as error:
            raise self._lost(error) from error

    def is_quiet(self) -> bool:
        """Nothing has arrived that was not received, and the peer has not closed: a connection
        whose answers have all come can be used for other requests."""
        is_read = not self._frames and not self._decoder.buffered_bytes
        return not self.closed and is_read and not self._ready(_READABLE, 0.0)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            if isinstance(self._socket, ssl.SSLSocket):
                keep_session(self._socket)
                # Without a close notification the session would be of no use; nobody waits for
                # theirs.
                with contextlib.suppress(OSError, ValueError):
                    self._socket.unwrap()
            self._socket.close()
        self._frames.clear()

    # -- bytes and time -------------------------------------------------------------------------
    def _take(self) -> None:
        """Hand what has arrived to who waits for it."""
        if not self._frames:
            return
        frames = list(self._frames)
        self._frames.clear()
        self._unread_bytes = 0
        for frame in self.requests.take_pull_answers(frames):
            command = self._decoded(frame)
            if command.is_response:
                self.requests.complete(command)
            else:
                self.on_request(command)

    def _decoded(self, frame: bytes) -> RemotingCommand:
        try:
            return RemotingCommand.decode(frame)
        except RemoteProtocolError as error:
            raise self._foreign(error) from error

    def _read_until(self, done: Callable[[], bool], timeout_seconds: float) -> None:
        """Read until something is done; late when it is not within so long, whatever came."""
        deadline = time.monotonic() + timeout_seconds
        if done():
            return
        while True:
            while not self._receive_now():
                if not self._ready(_READABLE, max(deadline - time.monotonic(), 0.001)):
                    raise self._late(timeout_seconds)
            if done():
                return
            if time.monotonic() >= deadline:
                raise self._late(timeout_seconds)

    def _receive_now(self) -> bool:
        """Keep what one read brings; False: nothing is there yet."""
        self._check_open()
        decoder = self._decoder
        try:
            if decoder.error is not None:
                raise decoder.error
            with decoder.space() as space:
                count = self._socket.recv_into(space)
            if not count:
                raise self._lost()
            self._frames.extend(decoder.filled(count))
        except _NOT_NOW:
            return False
        except OSError as error:
            raise self._lost(error) from error
        except RemoteProtocolError as error:
            raise self._foreign(error) from error
        self._has_received = True
        self._unread_bytes += count
        return True

    def _read_until_writable(self, timeout_seconds: float) -> None:
        """Keep what arrives until bytes can be sent, or as many have arrived as one read takes."""
        ready = self._ready(_READABLE | select.POLLOUT, timeout_seconds)
        if not ready:
            raise self._fail(
                RequestTimeoutError(f"{self.address} took no bytes for {timeout_seconds:g} s")
            )
        if ready & ~select.POLLOUT:
            self._receive_now()
            if self._unread_bytes > UNREAD_BYTES_MAX:
                raise self._fail(
                    RemoteProtocolError(
                        f"{self.address} sends far more than it was asked for, and reads nothing"
                    )
                )

    def _ready(self, events: int, seconds: float) -> int:
        """Which of the events have come, or errors, within so long; 0: none."""
        if events != self._events:
            self._poll.modify(self._socket, events)
            self._events = events
        ready = self._poll.poll(seconds * 1000)
        return ready[0][1] if ready else 0

    # -- what ends them -------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.address} is closed; make a new one")

    def _fail(self, error: _Error) -> _Error:
        """Close, and end all requests with an error, which it returns."""
        self.close()
        self.requests.end_all(lambda _what: error)
        while self.requests.is_ending:
            self.requests.go_on()
        return error

    def _late(self, timeout_seconds: float) -> RequestTimeoutError:
        return self._fail(
            RequestTimeoutError(f"{self.address} did not answer within {timeout_seconds:g} s")
        )

    def _foreign(self, error: RemoteProtocolError) -> RemoteProtocolError:
        return self._fail(
            RemoteProtocolError(f"{self.address} does not speak this protocol: {error}")
        )

    def _lost(self, error: OSError | None = None) -> ConnectionLostError:
        reason = str(error) if error else ""
        if isinstance(self._socket, ssl.SSLSocket):
            reason = why_closed(error, has_received=self._has_received)
        reason = reason or "the peer closed it"
        return self._fail(ConnectionLostError(f"connection to {self.address} lost: {reason}"))


def _connected(address: str, seconds: float, tls: Tls) -> socket.socket:
    """A socket that is connected, and speaks TLS where it should."""
    try:
        place = split_address(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    secure = context_of(tls)
    deadline = time.monotonic() + seconds
    try:
        plain = socket.create_connection(place, timeout=seconds)
    except OSError as error:
        raise ConnectError(
            f"can't connect to {address} within {seconds:g} s: {error}; "
            "is it running, and is the address right?"
        ) from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if secure is None:
        return plain
    try:
        plain.settimeout(max(deadline - time.monotonic(), 0.001))
        session = secure.session_of(place[0]) if isinstance(secure, ResumingContext) else None
        return secure.wrap_socket(plain, server_hostname=place[0], session=session)
    except TimeoutError as error:
        plain.close()
        raise ConnectError(
            f"no TLS connection to {address} within {seconds:g} s; does it speak TLS"
            " (tls.server.mode)?"
        ) from error
    except OSError as error:
        plain.close()
        reason = handshake_fault(error) if is_handshake_error(error) else str(error)
        raise ConnectError(f"no TLS connection to {address}: {reason}") from error
