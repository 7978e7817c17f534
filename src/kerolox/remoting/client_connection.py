"""A client's connection to one address: room for requests, and what becomes of them.

A connection that brings not one byte while requests, one after the other, wait for their responses
for ``SILENT_SECONDS_MAX`` leads nowhere: the peer's machine is gone, or a firewall has forgotten
us. It is closed (clientCloseSocketIfTimeout), so that the next request opens another.

Requests of one turn of the loop leave in one write. While a connection has no room, that is while
``OPEN_CALLS_MAX`` requests wait for a response, ``TURN_BYTES_MAX`` are to be written in this turn,
or the peer has left ``WRITE_HIGH_WATER_BYTES`` unread, further requests wait in the order in which
they came, each within its own time limit. So unsent are at most 5 MiB and two frames.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable

from kerolox import owners
from kerolox.codec.sending import SendAnswer, SendCodec
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    KeroloxError,
    LocalProtocolError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.connection import FrameConnection, Handling, OpenCalls, Shared

OPEN_CALLS_MAX = 65535
"""Requests of one connection that may wait for a response (clientAsyncSemaphoreValue)."""

TURN_BYTES_MAX = 1024 * 1024
"""Bytes of requests that a connection gathers in one turn of the loop."""

ONEWAY_PER_TURN_MAX = 64
"""One-way requests after which their sender lets the loop have a turn."""

SILENT_SECONDS_MAX = 2.5
"""A connection on which nothing arrived while a request timed out after so long is closed."""

TLS_ALERT = 0x15
"""First byte of what a TLS server answers to anything else; no frame that we take begins so."""

_SECOND_LOOK_SECONDS = 0.1

_NO_ROOM = (
    "no room in time for {}: the peer takes no more, or leaves too many requests unanswered; it is"
    " stopped or overloaded, or more is sent than it can take. The request was not sent"
)

_log = logging.getLogger("kerolox.remoting.client")  # one name for all of the client's side


class NotPlainError(ClientError):
    """A send that waited for room can't be written by a codec; it takes the general way."""


MakeFrame = Callable[[int], bytes | None]
"""Makes the frame of a send that waited for room, from its opaque; None: it is not plain."""


class ClientConnection(FrameConnection):
    """The connection to one address. Made by the client; handlers of server requests see it."""

    def __init__(
        self,
        shared: Shared,
        address: str,
        on_request: RequestHandler,
        on_lost: Callable[[ClientConnection], None],
        open_calls_max: int = OPEN_CALLS_MAX,
        *,
        codec: SendCodec,
    ) -> None:
        super().__init__(shared)
        self.address: str = address
        """The address as the caller gave it."""
        self.received_at: float = 0.0
        """When bytes arrived last (``loop.time()``)."""
        self._speaks_tls = False
        self._silent_since = 0.0
        """When the first request after that was written whose time is over."""
        self._handler = on_request
        self._on_lost = on_lost
        self._open_calls_max = open_calls_max
        self._decoder = codec.SendDecoder()
        self._read_view = memoryview(self._read_buffer)
        self._gathered: list[bytes] = []
        self.is_turn_new: bool = True
        """Nothing is gathered yet in this turn of the loop."""
        self._gathered_bytes = 0
        self.sends: OpenCalls[Answer] = OpenCalls(shared.loop)
        """Those of the calls whose plain answers the codec reads."""
        self._open_calls, self._open_sends = self.calls.opaques, self.sends.opaques
        self._queue: OrderedDict[int, Queued | MakeFrame] = OrderedDict()
        self._queued_calls: OpenCalls[RemotingCommand] = OpenCalls(shared.loop, _NO_ROOM)
        self._queued_sends: OpenCalls[Answer] = OpenCalls(shared.loop, _NO_ROOM)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: the socket is open."""
        super().connection_made(transport)
        owners.watch(self)

    def _inherited(self) -> None:
        """In a forked child: whatever happens to this connection here, the peer sees nothing."""
        self.closed = True
        sock = self._transport.get_extra_info("socket")
        descriptor = -1 if sock is None else sock.fileno()
        if descriptor >= 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            os.close(null)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed."""
        self._on_lost(self)
        super().connection_lost(exc)
        self._queue.clear()
        reason = self._why_lost(exc)

        def lost(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {self.remote_address} closed{reason} during {what}"
            )

        def unsent(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {self.address} closed before {what} was sent"
            )

        self.sends.fail(lost)
        self._queued_calls.fail(unsent)
        self._queued_sends.fail(unsent)

    def _why_lost(self, exc: Exception | None) -> str:
        reason = super()._why_lost(exc)
        if self._transport.get_extra_info("ssl_object") is not None:
            return reason
        if self._speaks_tls:
            return f"{reason} (it speaks TLS; set tls in the settings)"
        return reason if self.received_at else f"{reason} (it said nothing; does it take TLS only?)"

    def pause_writing(self) -> None:
        """Called by the loop: the peer does not take what is written, so requests wait. What it
        sends is read: answers that nobody takes would stop it for good."""
        self.blocked = True

    def resume_writing(self) -> None:
        """Called by the loop: the peer took enough of it."""
        super().resume_writing()
        self.admit()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop before each read. Not the bytearray itself: asyncio's TLS reads into
        slices of what it gets, which would be copies."""
        return self._read_view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        self.active = True
        if not self.received_at:
            self._speaks_tls = self._read_buffer[0] == TLS_ALERT
        self.received_at = self.loop.time()
        answers, frames, fault = self._decoder.feed(self._read_buffer, nbytes, self.sends.opaques)
        if answers:
            complete = self.sends.complete
            for answer in answers:
                complete(answer[0], answer)
            if self._queue:
                self.admit()
        if frames:
            self._take_frames(frames)
        if fault is not None:
            self._refuse(fault)

    def _take_response(self, response: RemotingCommand) -> None:
        opaque = response.opaque
        if opaque in self.sends:
            self.sends.complete(opaque, response)
            if self._queue:
                self.admit()
        else:
            self.calls.complete(opaque, response)

    # -- writing ------------------------------------------------------------------------------
    def has_room(self) -> bool:
        """A request may be written at once."""
        return not (
            self._queue
            or self.blocked
            or self._gathered_bytes >= TURN_BYTES_MAX
            or len(self._open_calls) + len(self._open_sends) >= self._open_calls_max
        )

    def _takes_more(self) -> bool:
        """Nothing but those that wait already stands before a further request."""
        return not (
            self.blocked
            or self._gathered_bytes >= TURN_BYTES_MAX
            or len(self._open_calls) + len(self._open_sends) >= self._open_calls_max
        )

    def is_open(self, opaque: int) -> bool:
        """A request with this opaque waits for its response, or to be written."""
        return opaque in self._open_calls or opaque in self._open_sends or opaque in self._queue

    def write(self, data: bytes) -> None:
        """Write a frame together with the others of this turn of the loop."""
        if not self._gathered:
            self.is_turn_new = False
            self.loop.call_soon(self._end_turn)
        self._gathered.append(data)
        self._gathered_bytes += len(data)

    def is_turn_full(self) -> bool:
        """So many one-way requests are written in this turn that the loop should have another."""
        return len(self._gathered) >= ONEWAY_PER_TURN_MAX

    def queue(self, command: RemotingCommand, deadline: float, what: str) -> Queued:
        """Let a request wait until there is room; :meth:`forget` it whatever comes.

        Its future ends with its response, or, if it is one-way, when it is written.
        """
        future = self._queued_calls.open(command.opaque, deadline, what)
        queued = self._queue[command.opaque] = Queued(command, future)
        return queued

    def post(self, frame: bytes, opaque: int, deadline: float, what: str) -> asyncio.Future[Answer]:
        """Write a send, for which there is room; :meth:`withdraw` it if it fails."""
        if not self._gathered:
            self.is_turn_new = False
            self.loop.call_soon(self._end_turn)
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        return self.sends.open(opaque, deadline, what)

    def post_later(
        self, make_frame: MakeFrame, opaque: int, deadline: float, what: str
    ) -> asyncio.Future[Answer]:
        """Let a send wait until there is room; :meth:`withdraw` it if it fails.

        Its future ends with its answer, or with :class:`NotPlainError`.
        """
        self._queue[opaque] = make_frame
        return self._queued_sends.open(opaque, deadline, what)

    def withdraw(self, opaque: int) -> None:
        """A send has failed, or its caller went away; those that wait may go on."""
        self.sends.drop(opaque)
        self._queued_sends.drop(opaque)
        self._queue.pop(opaque, None)
        if self._queue:
            self.admit()

    def forget(self, opaque: int) -> None:
        """A request is answered, or its caller went away; those that wait may go on."""
        self.calls.drop(opaque)
        self._queued_calls.drop(opaque)
        if self._queue:
            self._queue.pop(opaque, None)
            self.admit()

    def admit(self) -> None:
        """Write requests that wait, those that came first first, as far as there is room."""
        queue = self._queue
        while queue and not self.closed and self._takes_more():
            opaque, queued = queue.popitem(last=False)
            # Not one whose time is over, or whose caller went away.
            if not isinstance(queued, Queued):
                if self._queued_sends.is_waiting(opaque):
                    self._admit_post(opaque, queued)
            elif self._queued_calls.is_waiting(opaque):
                self._admit_call(opaque, queued)

    def _admit_post(self, opaque: int, make_frame: MakeFrame) -> None:
        data = make_frame(opaque)
        if data is None:
            self._queued_sends.refuse(opaque, NotPlainError())
            return
        self.write(data)
        self._queued_sends.hand_over(opaque, self.sends)

    def _admit_call(self, opaque: int, queued: Queued) -> None:
        command = queued.command
        try:
            data = command.encode()
        except LocalProtocolError as error:
            self._queued_calls.refuse(opaque, error)
            return
        queued.written_at = self.loop.time()
        self.write(data)
        if command.is_oneway:
            self._queued_calls.complete(opaque, command)
        else:
            self._queued_calls.hand_over(opaque, self.calls)

    def _write_gathered(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self.is_turn_new = True
            self._gathered_bytes = 0
            self.send(data)

    def _end_turn(self) -> None:
        self._write_gathered()
        if self._queue:
            self.admit()

    # -- closing ------------------------------------------------------------------------------
    def timed_out(self, asked_at: float) -> None:
        """A request had no response; close when nothing at all came for too long since the first
        such request (``loop.time()``), however shortly each of them waited."""
        if self.received_at > asked_at:
            return
        if self._silent_since <= self.received_at:
            self._silent_since = asked_at
        if self.loop.time() - self._silent_since < SILENT_SECONDS_MAX:
            return
        # When it was our own loop that stood still, what the peer sent meanwhile is read first.
        self.loop.call_later(_SECOND_LOOK_SECONDS, self._close_if_silent, self._silent_since)

    def close(self) -> None:
        """Send what is buffered (for a bounded time), then close. Idempotent."""
        self._write_gathered()
        super().close()

    def waiting(self) -> list[asyncio.Future[RemotingCommand] | asyncio.Future[Answer]]:
        """The futures of all requests without a response, those that were not yet written too."""
        return [
            *self.calls.futures(),
            *self._queued_calls.futures(),
            *self.sends.futures(),
            *self._queued_sends.futures(),
        ]

    def fail_all(self) -> None:
        """End them: the client is closed."""

        def unsent(what: str) -> KeroloxError:
            return ClientClosedError(f"the client was closed before {what} was sent")

        def unknown(what: str) -> KeroloxError:
            return ClientClosedError(
                f"the client was closed before the response to {what} came;"
                " whether it was done is unknown"
            )

        self._queue.clear()
        self._queued_calls.fail(unsent)
        self._queued_sends.fail(unsent)
        self.calls.fail(unknown)
        self.sends.fail(unknown)

    def _close_if_silent(self, since: float) -> None:
        if self.received_at <= since and not self.closed:
            _log.warning(
                "closing %s: silent for %.1f s", self.remote_address, self.loop.time() - since
            )
            self.abort()


class Queued:
    """A request that waits until its connection has room for it."""

    __slots__ = ("command", "future", "written_at")

    def __init__(self, command: RemotingCommand, future: asyncio.Future[RemotingCommand]) -> None:
        self.command: RemotingCommand = command
        self.future: asyncio.Future[RemotingCommand] = future
        self.written_at: float | None = None
        """When it was written (``loop.time()``)."""


Answer = SendAnswer | RemotingCommand
"""What a send is answered with: where the message is stored, or anything else."""

RequestHandler = Callable[[RemotingCommand, ClientConnection], Handling]
"""Answers a request of the server; see :mod:`kerolox.remoting.connection` for its one rule."""
