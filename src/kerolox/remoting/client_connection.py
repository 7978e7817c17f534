"""A client's connection to one address: room for requests, and what becomes of them.

A connection that brings not one byte while a request waits ``SILENT_SECONDS_MAX`` for its response
leads nowhere: the peer's machine is gone, or a firewall has forgotten us. It is closed
(clientCloseSocketIfTimeout), so that the next request opens another.

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
from kerolox.errors import (
    ClientClosedError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.connection import FrameConnection, Handling, OpenCalls, Shared

OPEN_CALLS_MAX = 65535
"""Requests of one connection that may wait for a response (clientAsyncSemaphoreValue)."""

TURN_BYTES_MAX = 1024 * 1024
"""Bytes of requests that a connection gathers in one turn of the loop."""

ONEWAY_PER_TURN_MAX = 64
"""One-way requests after which their sender lets the loop have a turn."""

SILENT_SECONDS_MAX = 2.5
"""A connection on which nothing arrived while a request timed out after so long is closed."""

_SECOND_LOOK_SECONDS = 0.1

_NO_ROOM = (
    "no room in time for {}: the peer takes no more, or leaves too many requests unanswered; it is"
    " stopped or overloaded, or more is sent than it can take. The request was not sent"
)

_log = logging.getLogger("kerolox.remoting.client")  # one name for all of the client's side


class ClientConnection(FrameConnection):
    """The connection to one address. Made by the client; handlers of server requests see it."""

    def __init__(
        self,
        shared: Shared,
        address: str,
        on_request: RequestHandler,
        on_lost: Callable[[ClientConnection], None],
        open_calls_max: int = OPEN_CALLS_MAX,
    ) -> None:
        super().__init__(shared)
        self.address: str = address
        """The address as the caller gave it."""
        self.received_at: float = 0.0
        """When bytes arrived last (``loop.time()``)."""
        self._handler = on_request
        self._on_lost = on_lost
        self._open_calls_max = open_calls_max
        self._decoder = FrameDecoder()
        self._read_view = memoryview(self._read_buffer)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._queue: OrderedDict[int, Queued] = OrderedDict()
        self._queued_calls = OpenCalls(shared.loop, _NO_ROOM)

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
        self._queued_calls.fail(
            lambda what: ConnectionLostError(
                f"connection to {self.address} closed before {what} was sent"
            )
        )

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
        self.received_at = self.loop.time()
        try:
            with memoryview(self._read_buffer)[:nbytes] as view:
                frames = self._decoder.feed(view)
        except RemoteProtocolError as error:
            self._refuse(str(error))
            return
        if frames:
            self._take_frames(frames)
        if self._decoder.error is not None:
            self._refuse(str(self._decoder.error))

    # -- writing ------------------------------------------------------------------------------
    def has_room(self) -> bool:
        """A request may be written at once."""
        return not self._queue and self._takes_more()

    def _takes_more(self) -> bool:
        """Nothing but those that wait already stands before a further request."""
        return (
            not self.blocked
            and self._gathered_bytes < TURN_BYTES_MAX
            and len(self.calls) < self._open_calls_max
        )

    def is_open(self, opaque: int) -> bool:
        """A request with this opaque waits for its response, or to be written."""
        return opaque in self.calls or opaque in self._queue

    def write(self, data: bytes) -> None:
        """Write a frame together with the others of this turn of the loop."""
        if not self._gathered:
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

    def forget(self, opaque: int) -> None:
        """A request is answered, or its caller went away; those that wait may go on."""
        self.calls.drop(opaque)
        if self._queue:
            self._queued_calls.drop(opaque)
            self._queue.pop(opaque, None)
            self.admit()

    def admit(self) -> None:
        """Write requests that wait, those that came first first, as far as there is room."""
        calls, queue = self.calls, self._queue
        while queue and not self.closed and self._takes_more():
            opaque, queued = queue.popitem(last=False)
            if queued.future.done() or opaque not in self._queued_calls:
                continue  # its time is over, or its caller went away
            command = queued.command
            try:
                data = command.encode()
            except LocalProtocolError as error:
                self._queued_calls.refuse(opaque, error)
                continue
            queued.written_at = self.loop.time()
            self.write(data)
            if command.is_oneway:
                self._queued_calls.complete(command)
            else:
                self._queued_calls.hand_over(opaque, calls)

    def _write_gathered(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._gathered_bytes = 0
            self.send(data)

    def _end_turn(self) -> None:
        self._write_gathered()
        if self._queue:
            self.admit()

    # -- closing ------------------------------------------------------------------------------
    def timed_out(self, asked_at: float) -> None:
        """A request had no response; close when nothing at all came since (``loop.time()``)."""
        if self.received_at > asked_at or self.loop.time() - asked_at < SILENT_SECONDS_MAX:
            return
        # When it was our own loop that stood still, what the peer sent meanwhile is read first.
        self.loop.call_later(_SECOND_LOOK_SECONDS, self._close_if_silent, asked_at)

    def close(self) -> None:
        """Send what is buffered (for a bounded time), then close. Idempotent."""
        self._write_gathered()
        super().close()

    def waiting(self) -> list[asyncio.Future[RemotingCommand]]:
        """The futures of all requests without a response, those that were not yet written too."""
        return [*self.calls.futures(), *self._queued_calls.futures()]

    def fail_all(self) -> None:
        """End them: the client is closed."""
        self._queue.clear()
        self._queued_calls.fail(
            lambda what: ClientClosedError(f"the client was closed before {what} was sent")
        )
        self.calls.fail(
            lambda what: ClientClosedError(
                f"the client was closed before the response to {what} came;"
                " whether it was done is unknown"
            )
        )

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


RequestHandler = Callable[[RemotingCommand, ClientConnection], Handling]
"""Answers a request of the server; see :mod:`kerolox.remoting.connection` for its one rule."""
