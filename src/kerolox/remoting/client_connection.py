"""A client's connection to one address: the socket of its requests.

What becomes of the requests is decided in ``remoting/core``: who has capacity, who waits, whose
time is over, when the peer is silent. Here bytes come and go, timers fire and futures are made.

Requests of one iteration of the event loop leave in one write, or in one for each
``BUFFER_BYTES_MAX``. A fast-path send that nothing else waits for on its connection is written at
once. While a connection has no capacity, that is while ``OPEN_CALLS_MAX`` requests wait for a
response, or the peer has left ``WRITE_HIGH_WATER_BYTES`` unread, further requests wait in the order
in which they came, each within its own time limit. So unsent are at most 5 MiB and two frames.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import cast

from kerolox import owners
from kerolox.codec.pulling import message_codec
from kerolox.codec.sending import Opaques, SendChannel, SendCodec
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.connection import FrameConnection, Handling, Shared
from kerolox.remoting.core.client_requests import ClientRequests, Queued, WriteSend
from kerolox.security.tls import keep_session, why_closed

OPEN_CALLS_MAX = 65535
"""Requests of one connection that may wait for a response (clientAsyncSemaphoreValue)."""

BUFFER_BYTES_MAX = 1024 * 1024
"""Bytes of requests that a connection buffers; then it writes them before the iteration is over."""

ONEWAY_PER_ITERATION_MAX = 64
"""One-way requests after which their sender yields to the event loop."""

TLS_ALERT = 0x15
"""First byte of what a TLS server answers to anything else; no frame that we take begins so."""

_SECOND_CHECK_SECONDS = 0.1

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
        *,
        codec: SendCodec,
        opaques: Opaques,
        seal: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """``seal`` is given the frames of each write, and returns what is written instead."""
        super().__init__(shared)
        self.address: str = address
        """The address as the caller gave it."""
        self._speaks_tls = False
        self._handler = on_request
        self._on_lost = on_lost
        self._read_view = memoryview(self._read_buffer)
        self._seal = seal
        loop = shared.loop
        actions = (self._arm, self._next_iteration, self._suspect)
        self.requests: ClientRequests = ClientRequests(
            address,
            lambda calls, request_queue: codec.SendChannel(
                opaques,
                calls,
                request_queue,
                open_calls_max,
                BUFFER_BYTES_MAX,
                loop.time,
                partial(loop.call_soon, self._end_iteration),
                self._write_buffered,
                self._arm,
                self.admit,
                prompt=True,
            ),
            *actions,
            message_codec().pull_answer,
        )
        self.sends: SendChannel = self.requests.sends
        """The fast-path sends, and all that is to be written."""
        self._silence = self.requests.silence
        self._request_queue = self.requests.request_queue.entries
        self._open_pulls = self.requests.pulls.opaques

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: the socket is open."""
        super().connection_made(transport)
        owners.watch(self)

    def _inherited(self) -> None:
        """In a forked child: whatever happens to this connection here, the peer sees nothing."""
        self.closed = self.sends.closed = True
        sock = self._transport.get_extra_info("socket")
        descriptor = -1 if sock is None else sock.fileno()
        if descriptor >= 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            os.close(null)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed."""
        keep_session(self._transport.get_extra_info("ssl_object"))
        self.sends.closed = True
        self._on_lost(self)
        super().connection_lost(exc)

    def _why_lost(self, exc: Exception | None) -> str:
        if self._transport.get_extra_info("ssl_object") is not None:
            cause = why_closed(exc, has_received=bool(self._silence.received_at))
            return f" ({cause})" if cause else ""
        reason = super()._why_lost(exc)
        if self._speaks_tls:
            return f"{reason} (it speaks TLS; set tls in the settings)"
        if self._silence.received_at:
            return reason
        return f"{reason} (it said nothing; does it take TLS only?)"

    def pause_writing(self) -> None:
        """Called by the loop: the peer does not take what is written, so requests wait. What it
        sends is read: answers that nobody takes would stop it for good."""
        self.blocked = self.sends.blocked = True

    def resume_writing(self) -> None:
        """Called by the loop: the peer took enough of it."""
        self.sends.blocked = False
        super().resume_writing()
        self.admit()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop before each read. Not the bytearray itself: asyncio's TLS reads into
        slices of what it gets, which would be copies."""
        return self._read_view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        self.active = True
        silence = self._silence
        if not silence.received_at:
            self._speaks_tls = self._read_buffer[0] == TLS_ALERT
        silence.received_at = self.loop.time()
        frames, fault = self.sends.feed(self._read_buffer, nbytes)
        if self._request_queue:
            self.admit()
        if frames and self._open_pulls:
            frames = self.requests.take_pull_answers(frames)
            if self._request_queue:
                self.admit()
        if frames:
            self._take_frames(frames)
        if fault is not None:
            self._refuse(fault)

    def _take_response(self, response: RemotingCommand) -> None:
        self.requests.complete(response)
        if self._request_queue:
            self.admit()

    # -- writing ------------------------------------------------------------------------------
    def has_capacity(self) -> bool:
        """A request may be written at once."""
        return self.sends.has_capacity()

    def write(self, data: bytes) -> None:
        """Write a frame together with the others of this iteration of the event loop."""
        self.sends.write(data)

    def should_yield(self) -> bool:
        """So many one-way requests are written in this iteration that the caller should yield to
        the event loop."""
        return self.sends.buffered_frames >= ONEWAY_PER_ITERATION_MAX

    def queue(
        self, command: RemotingCommand, deadline: float, what: str
    ) -> tuple[asyncio.Future[RemotingCommand], Queued]:
        """Let a request wait until there is capacity; :meth:`forget` it whatever comes.

        Its future ends with its response, or, if it is one-way, when it is written.
        """
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        return future, self.requests.queue(command, deadline, what, future)

    def post_later(
        self, write: WriteSend, opaque: int, deadline: float, what: str
    ) -> asyncio.Future[None]:
        """Let a send wait until there is capacity.

        The future ends when it is written or withdrawn, or with why it was not:
        SlowPathNeededError, or the end of its time or of the connection.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        self.requests.post_later(write, opaque, deadline, what, future)
        return future

    def give_up(self, opaque: int) -> None:
        """Nobody waits for the answer to a pull; requests that wait may go on."""
        self.requests.pulls.drop(opaque)
        if self._request_queue:
            self.admit()

    def withdraw(self, opaque: int) -> None:
        """The caller of a send that waits for capacity went away; others may go on."""
        if self._request_queue:
            self.requests.withdraw(opaque)
            self.admit()

    def forget(self, opaque: int) -> None:
        """A request is answered, or its caller went away; those that wait may go on."""
        self.requests.forget(opaque)
        if self._request_queue:
            self.admit()

    def admit(self) -> None:
        """There may be capacity for requests that wait."""
        self.requests.admit(self.loop.time())

    def _write_buffered(self) -> None:
        if self.sends.buffered_bytes:
            data = self.sends.take()
            self.send(data if self._seal is None else self._seal(data))

    def _end_iteration(self) -> None:
        self._write_buffered()
        if self._request_queue:
            self.admit()

    # -- closing ------------------------------------------------------------------------------
    def timed_out(self, asked_at: float) -> None:
        """A request that was written then (``loop.time()``) had no response; close when nothing at
        all came for too long since the first such request, however shortly each of them waited."""
        self.requests.timed_out(asked_at, self.loop.time())

    def _suspect(self, since: float) -> None:
        # When it was our own loop that stood still, what the peer sent meanwhile is read first.
        self.loop.call_later(_SECOND_CHECK_SECONDS, self._close_if_silent, since)

    def _close_if_silent(self, since: float) -> None:
        if self._silence.lasts(since) and not self.closed:
            _log.warning(
                "closing %s: silent for %.1f s", self.remote_address, self.loop.time() - since
            )
            self.abort()

    def close(self) -> None:
        """Send what is buffered (for a bounded time), then close. Idempotent."""
        self._write_buffered()
        self.sends.closed = True
        super().close()

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        self.sends.closed = True
        super().abort()

    def waiting(self) -> list[asyncio.Future[object]]:
        """The futures of all requests without a response, those that were not yet written too."""
        return cast("list[asyncio.Future[object]]", self.requests.waiters())


RequestHandler = Callable[[RemotingCommand, ClientConnection], Handling]
"""Answers a request of the server; see :mod:`kerolox.remoting.connection` for its one rule."""
