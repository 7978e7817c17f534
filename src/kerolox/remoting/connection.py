"""What both ends of a connection do: reading, answering, calling, and the limits of each.

:class:`FrameConnection` is the protocol of one socket. Chunks land in a read buffer that all
connections of a server or client share, and are fed at once. Frames for Python become commands:

- a response completes the open call that has its opaque (``remoting/core`` has the requests of
  either end, and decides about them);
- a request goes to the handler. The handler's coroutine is run on the spot up to its first wait;
  only one that does wait becomes a task. So **until its first wait a handler runs outside any
  task**: ``asyncio.timeout``, ``TaskGroup`` and ``current_task`` work only after it
  (``await asyncio.sleep(0)`` when nothing else comes before). A task for each request would cost
  half as much again (12 to 17 us against 21 to 27 on Python 3.11); eager tasks, which 3.12 has,
  cost a tenth more, and handlers would run inside of a task there and outside of one on 3.11.

Three things can stop the reading of a connection, each for as long as it lasts: bytes that the
peer does not take (``WRITE_HIGH_WATER_BYTES``), handlers that do not finish (``in_flight_max``,
``IN_FLIGHT_BYTES_MAX``), and frames that wait for their turn. A peer that takes nothing at all
while others make bytes for it (held pulls, notices) is cut off at ``WRITE_BYTES_MAX``. A client
goes on reading while its own requests wait to be taken: their answers are among what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import Self, TypeVar, cast

from kerolox.addresses import join_address
from kerolox.errors import BrokerError, KeroloxError, LocalProtocolError, RemoteProtocolError
from kerolox.protocol.codes import FLAG_RESPONSE, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.core.requests import Requests

_TCP_INFO_BYTES, _BYTES_ACKED_AT = 192, 120
"""Of ``struct tcp_info`` of Linux."""

_RESETS = struct.pack("ii", 1, 0)
"""``SO_LINGER``, on, for no time: to close is to reset."""

if sys.platform == "linux":
    import fcntl
    import termios

    def has_arrived(sock: socket.socket) -> bool:
        """Whether the peer's system has all that a socket was given (``SIOCOUTQ``); OSError: it is
        closed.
        """
        unsent = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return not any(unsent)

    def acknowledged_bytes(sock: socket.socket) -> int | None:
        """Of what a socket was given since it was made, what the peer's system has, also after its
        end (``tcpi_bytes_acked``); None: the system does not say."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (found,) = struct.unpack_from("=Q", info, _BYTES_ACKED_AT)
        except (OSError, struct.error):
            return None
        return int(found)

    CAN_RESET = True
else:

    def has_arrived(sock: socket.socket) -> bool:
        """Not known on this system."""
        return False

    def acknowledged_bytes(sock: socket.socket) -> int | None:
        """Not known on this system."""
        return None

    CAN_RESET = False
"""Whether this system says what has arrived."""


def have_reset(sock: socket.socket) -> None:
    """Make the next close of a socket a reset, which Java clients hear at once; OSError: it is
    closed.

    A Java client whose connection is reset fails the requests that wait on it, and tries again.
    When the stream just ends it waits for each of them until its time is over
    (``NettyRemotingClient`` calls ``failFast`` for an exception only), and one may always be on its
    way when a server stops. A reset drops what the peer's system has not received, so it comes
    after that (:func:`has_arrived`). What it has received, a Linux system still gives to its
    reader.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)


READ_BUFFER_BYTES = 256 * 1024
"""Size of the read buffer that the connections of one server or client share."""

WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
"""Unsent bytes above which a connection is not read any more."""

WRITE_LOW_WATER_BYTES = 1024 * 1024
"""Unsent bytes below which it is read again."""

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "::1"))

WRITE_BYTES_MAX = 64 * 1024 * 1024
"""Unsent bytes above which a connection is cut."""

IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a connection's requests whose handlers may be waiting at the same time."""

CLOSE_SECONDS_MAX = 2.0
"""How long a closing connection may take to send what it still has."""

LEAVE_SECONDS_MAX = 0.25
"""How long a closing TLS connection waits, all sent, for the peer to take leave too. Java's servers
do not."""

GONE_SECONDS_MAX = 0.5
"""How long ``close`` and ``stop`` wait for the loop to say that sockets which were cut off, or do
not listen any more, are closed."""

SLICE_SECONDS_MAX = 0.002
"""How long the frames of one connection may be handled before the others get their turn."""

PAUSED_BY_WRITES = 1
PAUSED_BY_ANSWERS = 2
PAUSED_BY_HANDLERS = 4
PAUSED_BY_SLICE = 8
PAUSED_BY_STOP = 16

Handling = Coroutine[object, None, RemotingCommand | None]
"""The handling of one request; its result is the answer, None: nothing is answered."""

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


_read_buffers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray] = (
    weakref.WeakKeyDictionary()
)


def read_buffer_of(loop: asyncio.AbstractEventLoop) -> bytearray:
    """The buffer that all connections of an event loop read into, of servers and of clients: what
    one of them has read is handled before the loop reads again."""
    buffer = _read_buffers.get(loop)
    if buffer is None:
        buffer = _read_buffers[loop] = bytearray(READ_BUFFER_BYTES)
    return buffer


@dataclass(slots=True)
class Shared:
    """What all connections of one server or client share."""

    loop: asyncio.AbstractEventLoop
    in_flight_max: int
    """Requests of one connection whose handlers may be waiting at the same time."""
    read_buffer: bytearray
    """See :func:`read_buffer_of`."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """The handlers that wait."""


class FrameConnection(asyncio.BufferedProtocol):
    """One socket that carries frames; the base of the server's and the client's connections."""

    _handler: Callable[[RemotingCommand, Self], Handling]
    """Answers requests of the peer; set by whoever inherits."""
    requests: Requests
    """Our own; made by whoever inherits, with the actions that stand here."""

    def __init__(self, shared: Shared) -> None:
        self.loop: asyncio.AbstractEventLoop = shared.loop
        loop = self.loop
        self.peer: tuple[str, int] = ("", 0)
        self.remote_address: str = ""
        """``ip:port`` of the peer; ``:0`` where it was gone before the socket was examined."""
        self.closed: bool = False
        self.active: bool = True
        """Set by every read and write, cleared by :class:`IdleWatch`."""
        self.idle_since: float = 0.0
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the socket is closed."""
        self.blocked: bool = False
        """The peer does not take what is written, for now."""
        self.certificate_subject: str | None = None
        """On a server: of the certificate that the client showed and that was found good, as RFC
        4514 writes it (``CN=broker-a,O=Example``); None: it showed none."""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected
        self._read_buffer = shared.read_buffer
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._in_flight_max = shared.in_flight_max
        self._tasks = shared.tasks
        self._waiting: deque[bytes] = deque()
        self._drains_soon = False
        self._paused = 0
        self._deadline_timer: asyncio.TimerHandle | None = None

    # -- the protocol's side ------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: the socket is open."""
        # uvloop's transports are no asyncio.Transport by class, only by what they do.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(
            high=WRITE_HIGH_WATER_BYTES, low=WRITE_LOW_WATER_BYTES
        )
        peer = transport.get_extra_info("peername") or ("", 0)
        host = str(peer[0]).removeprefix("::ffff:")
        self.peer = (host, int(peer[1]))
        self.remote_address = join_address(host, int(peer[1]))
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # Some systems refuse it where the peer has reset the connection already.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if host in LOOPBACK_HOSTS:
                # Nothing congests the loopback, and one that paces (BBR) costs a timer per write:
                # 5 to 9 per cent of the CPU of a pull. A system without it keeps its default.
                with contextlib.suppress(OSError, AttributeError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed; open calls end with an error."""
        self.closed = True
        self._waiting.clear()
        self.requests.lost(self.remote_address, self._why_lost(exc))
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self.resume_writing()
        if not self.gone.done():
            self.gone.set_result(None)

    def _why_lost(self, exc: Exception | None) -> str:
        """What is known of the end of a connection, for errors."""
        return f" ({exc})" if exc else ""

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """Called by the loop before each read: every connection reads into the same buffer."""
        return self._read_buffer

    def eof_received(self) -> bool:
        """Called by the loop: the peer sends no more; what is buffered is sent, then it closes."""
        return False

    def pause_writing(self) -> None:
        """Called by the loop: the peer does not take what is written."""
        self.blocked = True
        self._pause(PAUSED_BY_WRITES)

    def resume_writing(self) -> None:
        """Called by the loop: the peer took enough of it."""
        self.blocked = False
        self._resume(PAUSED_BY_WRITES)
        if self._waiting and not self._drains_soon and not self.closed:
            self._drain_soon()

    def encrypted(self, transport: asyncio.Transport, subject: str | None) -> None:
        """Called when a server's TLS handshake is done: ``transport`` is in the socket's place."""
        self._transport = transport
        self.certificate_subject = subject

    # -- our own requests: their actions ------------------------------------------------------
    def wait_for(self, opaque: int, deadline: float, what: str) -> asyncio.Future[RemotingCommand]:
        """A future for the response to a request; ``what`` it is, for errors."""
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        self.requests.calls.wait(future, opaque, deadline, what)
        return future

    def _arm(self, deadline: float) -> None:
        """The earliest deadline is this one."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        when = self.requests.next_check(deadline, self.loop.time())
        self._deadline_timer = self.loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        self.requests.expire(self.loop.time())

    def _next_iteration(self) -> None:
        """Requests that end with an error do so in several iterations."""
        self.loop.call_soon(self.requests.go_on)

    # -- what users of a connection call ------------------------------------------------------
    def send(self, data: bytes) -> None:
        """Write whole frames. Never waits; a peer that takes nothing is cut off."""
        if self.closed:
            return
        self.active = True
        self._transport.write(data)
        if self.blocked:
            unsent = self._transport.get_write_buffer_size()
            if unsent > WRITE_BYTES_MAX:
                _log.warning(
                    "closing %s: it left %d bytes unread; the limit is %d",
                    self.remote_address,
                    unsent,
                    WRITE_BYTES_MAX,
                )
                self.abort()

    def send_command(self, command: RemotingCommand) -> None:
        """Encode and write one command; LocalProtocolError: no frame can hold it."""
        self.send(command.encode())

    def close(self) -> None:
        """Send what is buffered (at most ``CLOSE_SECONDS_MAX``), then close. Idempotent."""
        if self.closed:
            return
        self.closed = True
        transport = self._transport
        is_secure = transport.get_extra_info("ssl_object") is not None
        is_sent = not transport.get_write_buffer_size()
        transport.close()
        if is_secure or not is_sent:
            seconds = LEAVE_SECONDS_MAX if is_secure and is_sent else CLOSE_SECONDS_MAX
            timer = self.loop.call_later(seconds, self._cut_off)
            self.gone.add_done_callback(lambda _: timer.cancel())

    def reset_when_sent(self) -> bool:
        """Read no more, and end the connection by a reset once all that was written has arrived:
        now, or if it gives False, later: ask again soon. A system that does not say what has
        arrived closes it as ever.
        """
        if self.closed:
            return True
        if not CAN_RESET:
            self.close()
            return True
        self._pause(PAUSED_BY_STOP)
        sock = self._transport.get_extra_info("socket")
        try:
            if self._transport.get_write_buffer_size() or not has_arrived(sock):
                return False
            have_reset(sock)
        except OSError:
            pass  # The peer is gone.
        self.abort()
        return True

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        self.closed = True
        self._cut_off()

    def _cut_off(self) -> None:
        # asyncio's transport raises when it closed by itself after it sent what it had.
        if self._transport is not None and not self.gone.done():
            self._transport.abort()

    def may_close_idle(self) -> bool:
        """Called when nothing came or went for long: whether to close it now."""
        return True

    # -- pausing ------------------------------------------------------------------------------
    def _pause(self, reason: int) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- frames -------------------------------------------------------------------------------
    def _take_frames(self, frames: list[bytes]) -> None:
        """Dispatch frames in order; the answers that are there at once leave in one write."""
        if self._waiting:
            self._waiting.extend(frames)
            return
        answers: list[bytes] = []
        broken: RemoteProtocolError | None = None
        # Not the loop's time, which stands still until this iteration is over.
        slice_end = monotonic() + SLICE_SECONDS_MAX
        for index, frame in enumerate(frames):
            is_over = monotonic() >= slice_end
            if is_over or self._is_full():
                self._waiting.extend(frames[index:])
                self._pause(PAUSED_BY_HANDLERS)
                if is_over and not self._drains_soon:
                    self._drain_soon()
                break
            try:
                self._take_frame(frame, answers)
            except RemoteProtocolError as error:
                broken = error
                break
            if self.closed:
                break
        if answers:
            self.send(answers[0] if len(answers) == 1 else b"".join(answers))
        if broken is not None:
            self._refuse(str(broken))

    def _take_frame(self: Self, frame: bytes, answers: list[bytes]) -> None:
        command = RemotingCommand.decode(frame)
        if command.flag & FLAG_RESPONSE:
            self._take_response(command)
            return
        coroutine = self._handler(command, self)
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            answer = _encode_answer(command, stop.value)
        except Exception as error:
            answer = _encode_answer(command, _error_answer(command, error, self.remote_address))
        else:
            # It waits for something: the rest of it becomes a task.
            size = len(frame)
            self._in_flight += 1
            self._in_flight_bytes += size
            task = self.loop.create_task(self._finish(command, go_on(coroutine, awaited), size))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if answer:
            answers.append(answer)

    def _take_response(self, response: RemotingCommand) -> None:
        self.requests.complete(response)

    async def _finish(
        self,
        command: RemotingCommand,
        rest: Coroutine[object, None, RemotingCommand | None],
        size: int,
    ) -> None:
        try:
            answer = _encode_answer(command, await rest)
        except Exception as error:
            answer = _encode_answer(command, _error_answer(command, error, self.remote_address))
        except asyncio.CancelledError:
            # Only a stop cancels handlers, and clients wait for an answer until their time is over.
            if answer := _encode_answer(command, _stop_answer(command)):
                self.send(answer)
            raise
        finally:
            self._in_flight -= 1
            self._in_flight_bytes -= size
        if answer:
            self.send(answer)
        # Once, however many end in this iteration: each slice has SLICE_SECONDS_MAX.
        if self._waiting and not self._drains_soon and not self._is_full():
            self._drain_soon()

    def _is_full(self) -> bool:
        return (
            self._in_flight >= self._in_flight_max or self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX
        )

    def _drain_soon(self) -> None:
        self._drains_soon = True
        self.loop.call_soon(self._drain_waiting)

    def _drain_waiting(self) -> None:
        self._drains_soon = False
        if self.closed or not self._waiting or self._paused & PAUSED_BY_WRITES:
            return
        frames = list(self._waiting)
        self._waiting.clear()
        self._take_frames(frames)
        if not self._waiting:
            self._resume(PAUSED_BY_HANDLERS)

    def _refuse(self, reason: str, *, is_foreign: bool = False) -> None:
        if is_foreign:
            # A line of its own kind: what to do is known, and must not be lost among others.
            _log.warning("closing %s, no client of ours: %s", self.remote_address, reason)
        else:
            _log.warning("closing %s: %s", self.remote_address, reason)
        self.close()


class IdleWatch:
    """Closes connections without traffic; one timer for all of a server or client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: Callable[[], list[FrameConnection]],
        idle_seconds_max: float,
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._idle_seconds_max = idle_seconds_max
        self._timer = loop.call_later(idle_seconds_max / 8, self._check)

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        for connection in self._connections():
            if connection.active:
                connection.active = False
                connection.idle_since = now
            elif (
                now - connection.idle_since >= self._idle_seconds_max
                and connection.may_close_idle()
            ):
                _log.info("closing %s: idle", connection.remote_address)
                connection.close()
        self._timer = self._loop.call_later(self._idle_seconds_max / 8, self._check)


@types.coroutine
def go_on(
    coroutine: Coroutine[object, None, _Result], awaited: object
) -> Generator[object, None, _Result]:
    """The rest of a coroutine that was run up to a wait for ``awaited``."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            try:
                awaited = coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
        else:
            try:
                awaited = coroutine.send(sent)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]


def _error_answer(command: RemotingCommand, error: Exception, peer: str) -> RemotingCommand:
    if isinstance(error, BrokerError):
        return command.response(error.code, error.remark)
    if not isinstance(error, KeroloxError):
        _log.error("request %d of %s failed", command.code, peer, exc_info=error)
    return command.response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _stop_answer(command: RemotingCommand) -> RemotingCommand:
    return command.response(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: it stops, and this request was not done before; it may have "
        "been done in part",
    )


def _encode_answer(command: RemotingCommand, answer: RemotingCommand | None) -> bytes:
    if answer is None or command.is_oneway:
        return b""
    try:
        return answer.encode()
    except LocalProtocolError as error:
        return command.response(ResponseCode.SYSTEM_ERROR, f"LocalProtocolError: {error}").encode()
