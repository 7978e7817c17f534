"""One client that speaks gRPC: its connection, and its calls.

HTTP/2 is decided in ``remoting/http2``, or in the native kernel; here are sockets, steps and calls.
A unary call is run on the spot up to its first wait, as requests of remoting are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Protocol, cast

from kerolox.kernel.feed import FED_MORE, FED_READY, FED_WAITS, TRIED_DECLINED, TRIED_FOUND
from kerolox.kernel.http2 import Http2Error, Http2Event, Opened, Received, WasReset
from kerolox.remoting.connection import (
    IN_FLIGHT_BYTES_MAX,
    PAUSED_BY_ANSWERS,
    PAUSED_BY_HANDLERS,
    PAUSED_BY_SLICE,
    PAUSED_BY_WRITES,
    WRITE_BYTES_MAX,
    acknowledged_bytes,
    go_on,
    have_reset,
)
from kerolox.remoting.grpc.counts import GrpcCounts
from kerolox.remoting.grpc.steps import StepQueue
from kerolox.remoting.grpc.wire import (
    RESPONSE_HEADERS,
    CallHead,
    CallRefusedError,
    GrpcStatus,
    MessageReader,
    parse_head,
    trailers,
    trailers_alone,
    with_prefix,
)
from kerolox.remoting.http2.frames import ErrorCode
from kerolox.remoting.http2.server_side import WATCHED_MAX
from kerolox.remoting.limits.requests import LimitedFeeder
from kerolox.remoting.server import (
    BIG_CHUNK_BYTES,
    ServerConnection,
)

WAITING_BYTES_MAX = WRITE_BYTES_MAX
"""Of one stream's answer that the peer grants no window for; the call ends then."""

MESSAGES_WAITING_MAX = 64
"""Messages of one stream that wait for their turn; the call ends then."""

CALL_BYTES = 8 * 1024
"""What a call keeps besides its messages, until its handler is done: also when the peer has reset
it."""

EVENTS_PER_STEP = 4
"""Of a connection, taken at a time where they wait for their turn."""

LOST_PER_STEP = 16
"""Calls of a connection that is gone which are told so at a time."""

if TYPE_CHECKING:
    from kerolox.kernel.feed import ConnectionKernel, GivenMembers
    from kerolox.kernel.http2 import Http2ServerSide
    from kerolox.remoting.connection import Shared
    from kerolox.remoting.server import RemotingServer

_log = logging.getLogger(__name__)


class Serve(Protocol):
    """What serves the calls of a server."""

    def message_bytes_max(self, path: str) -> int:
        """Of one message of a call."""

    def unread(self, given: list[GivenMembers]) -> None:
        """What the kernel gave out in answers that their client has not read."""

    def __call__(self, call: Call) -> Coroutine[object, None, None]:
        """Serve one call; it runs up to its first wait outside of any task."""


class Call:
    """One call, from its headers to its end."""

    def __init__(self, connection: GrpcConnection, stream_id: int, head: CallHead) -> None:
        self.connection = connection
        self.head = head
        self.deadline: float | None = None
        """By the loop's clock."""
        if head.timeout_seconds is not None:
            self.deadline = connection.loop.time() + head.timeout_seconds
        self.is_over = False
        """Nobody wants its answer: it is answered, cancelled, or its connection is gone."""
        self.is_answered = False
        """It is over since the kernel has answered it."""
        self.on_over: Callable[[], None] | None = None
        """Called once when that is so, unless it was answered by its own handler."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends it at its deadline."""
        self._stream_id = stream_id
        self._has_headers = False
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_ended = False
        self._waiting_bytes = 0
        """Of messages that wait for their turn."""
        self._handed_bytes = CALL_BYTES
        """Kept until the handler is done, with the message that it handles."""
        connection.keeps(CALL_BYTES)
        self.reader = MessageReader(connection.message_bytes_max(head.path))

    @property
    def seconds_left(self) -> float | None:
        """Until its deadline; None: it has none."""
        return None if self.deadline is None else self.deadline - self.connection.loop.time()

    # -- the peer's messages ------------------------------------------------------------------
    def take(self, messages: list[bytes], *, is_ended: bool) -> None:
        """Called by the connection: so much came."""
        self._messages += messages
        size = sum(map(len, messages))
        self._waiting_bytes += size
        self.connection.keeps(size)
        self._is_ended = self._is_ended or is_ended
        if len(self._messages) > MESSAGES_WAITING_MAX:
            self.end(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages of one call wait")
        self._wake()

    async def message(self) -> bytes | None:
        """The next message; None: the peer sends no more, or the call is over."""
        self._hold(CALL_BYTES)
        while not self._messages:
            if self._is_ended or self.is_over:
                return None
            self._waiter = self.connection.loop.create_future()
            await self._waiter
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        self.connection.keeps(-len(message))
        self._hold(CALL_BYTES + len(message))
        return message

    def _hold(self, size: int) -> None:
        self.connection.keeps(size - self._handed_bytes)
        self._handed_bytes = size

    def handled(self) -> None:
        """Called by the connection: its handler is done, whoever ended the call."""
        self._hold(0)
        if self.timer is not None:
            self.timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- its answer ---------------------------------------------------------------------------
    def begin(self) -> None:
        """Send the headers of the answer, which the first message does otherwise."""
        if not self.is_over and not self._has_headers:
            self._has_headers = True
            self.connection.http2.send_headers(self._stream_id, RESPONSE_HEADERS)
            self.connection.flush_soon()

    def send(self, message: bytes) -> None:
        """Send one message. A peer that takes nothing loses the call."""
        if self.is_over:
            return
        self.begin()
        http2 = self.connection.http2
        http2.send_data(self._stream_id, with_prefix(message))
        self.connection.flush_soon()
        if http2.waiting_bytes(self._stream_id) > WAITING_BYTES_MAX:
            _log.warning(
                "ending a call of %s: it left %d bytes unread",
                self.connection.remote_address,
                http2.waiting_bytes(self._stream_id),
            )
            self.connection.counts.calls_refused["UNREAD"] += 1
            http2.reset(self._stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self.cancelled()

    def try_receive(self, request: bytes, client_id: str) -> int:
        """See :meth:`~kerolox.kernel.feed.ConnectionKernel.try_receive`; of a call that has no
        answer yet."""
        if self.is_over or self._has_headers:
            return TRIED_DECLINED
        tried = self.connection.try_receive(self._stream_id, client_id, request)
        if tried == TRIED_FOUND:
            self.is_answered = True
            self.connection.flush_soon()
            self._end()
        return tried

    def watch(self, on_unread: Callable[[], None]) -> None:
        """Called before its answer is sent: have something done if the client does not read it."""
        self.connection.watch(self._stream_id, on_unread)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End it."""
        if self.is_over:
            return
        if status is not GrpcStatus.OK:
            self.connection.counts.calls_refused[status.name] += 1
        http2 = self.connection.http2
        if self._has_headers:
            http2.send_trailers(self._stream_id, trailers(status, text))
        else:
            http2.send_headers(self._stream_id, trailers_alone(status, text), end=True)
        self.connection.flush_soon()
        self._end()

    def end(self, status: GrpcStatus, text: str) -> None:
        """End it from outside of its handler, which gives up what it waits for."""
        if not self.is_over:
            self.finish(status, text)
            self._give_up()

    def cancelled(self) -> None:
        """Called by the connection: nobody wants the answer any more."""
        if not self.is_over:
            self.lost()

    def lost(self) -> None:
        """Called by the connection: as :meth:`cancelled`, of one that is over since its connection
        is gone."""
        self._end()
        self._give_up()

    def expired(self) -> None:
        """Called at its deadline."""
        self.end(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call is over (grpc-timeout)")

    def _give_up(self) -> None:
        if self.on_over is not None:
            self.on_over()

    def _end(self) -> None:
        self.is_over = True
        self._messages.clear()
        self.connection.keeps(-self._waiting_bytes)
        self._waiting_bytes = 0
        self.connection.ended(self._stream_id)
        self._wake()


class GrpcConnection(ServerConnection):
    """The connection of one client."""

    def __init__(
        self,
        server: RemotingServer,
        shared: Shared,
        connection_id: int,
        serve: Serve,
        http2: Http2ServerSide,
        counts: GrpcCounts,
        steps: StepQueue,
    ) -> None:
        super().__init__(server, shared, connection_id)
        self.http2 = http2
        self._serve = serve
        self.counts = counts
        self.message_bytes_max = serve.message_bytes_max
        self._calls: dict[int, Call] = {}
        self._refused_streams = 0
        """That are counted."""
        self._unserved: deque[Call] = deque()
        """Whose message is there, and whose turn is not."""
        self._lost: deque[Call] = deque()
        """Whose connection is gone, and who do not know it yet."""
        self._events: deque[Http2Event] = deque()
        """What came, and waits for its turn; nothing more is read meanwhile."""
        self._has_frames = False
        """HTTP/2 has frames that wait for their turn."""
        self._steps = steps
        self._flushes_soon = False
        self._watched: dict[int, Callable[[], None]] = {}
        """By stream, what to do if its answer is not read; of the last ones."""

    # -- the loop's side ----------------------------------------------------------------------
    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        self.active = True
        if not self.is_counted:
            self._server.memory_limiter.add(self)
        self._take(memoryview(self._read_buffer)[:nbytes])
        if nbytes >= BIG_CHUNK_BYTES and not self.closed:
            self._pause(PAUSED_BY_SLICE)
            self._server.queue_read(self, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed; nobody wants any answer."""
        super().connection_lost(exc)
        resets = [each.stream_id for each in self._events if isinstance(each, WasReset)]
        unread = self.http2.unread(self._arrived_bytes())
        if unread:
            self._drop_unsent()
        self._unread([*resets, *unread])
        self._events.clear()
        self._unserved.clear()
        self._has_frames = False
        self._lost.extend(self._calls.values())
        for call in self._lost:
            call.is_over = True
        if self._lost:
            self._steps.join(self)

    @property
    def _kernel_itself(self) -> ConnectionKernel:
        kernel = self._kernel
        if isinstance(kernel, LimitedFeeder):
            kernel = kernel.kernel
        return cast("ConnectionKernel", kernel)

    def memory_bytes(self) -> int:
        """See :class:`~kerolox.remoting.limits.memory_limiter.MemoryLimiter`."""
        unsent = 0 if self.closed else self._transport.get_write_buffer_size()
        unfinished = sum(call.reader.kept_bytes for call in self._calls.values())
        return unsent + self.http2.kept_bytes + unfinished + self._in_flight_bytes

    def may_close_idle(self) -> bool:
        """Called when nothing came for long: whether to close it. One with open calls is asked
        first whether anybody is there."""
        if not self._calls or self.http2.unanswered_pings:
            return True
        self.http2.ping()
        self.flush_soon()
        return False

    def answered(self, data: bytes) -> None:
        """Called by the server: answers of the kernel became ready."""
        if not self.closed:
            self._kernel_itself.answer_calls(self.http2, data)
            self.flush_soon()

    def try_receive(self, stream_id: int, client_id: str, request: bytes) -> int:
        """See :meth:`~kerolox.kernel.feed.ConnectionKernel.try_receive`."""
        return self._kernel_itself.try_receive(self.http2, stream_id, client_id, request)

    # -- frames -------------------------------------------------------------------------------
    def _receive(self, data: memoryview | bytes) -> tuple[list[Http2Event], int]:
        if self._server.limits.is_on:
            # They count requests, which the kernel would answer by itself.
            events, has_more = self.http2.receive(data)
            return events, FED_MORE if has_more else 0
        return self._kernel_itself.feed_calls(self.http2, data)

    def _take(self, data: memoryview | bytes) -> None:
        try:
            events, flags = self._receive(data)
        except Http2Error as error:
            self._count_refused_streams()
            self.counts.connections_closed[ErrorCode(error.code).name] += 1
            self.http2.leave(error.code, str(error))
            self._flush()
            self._refuse(str(error))
            return
        self._count_refused_streams()
        self._events.extend(events)
        self._has_frames = bool(flags & FED_MORE)
        self._take_events()
        self._serve_calls()
        self._flush()
        if flags & FED_READY:
            self._server.fast_path.on_ready()
        if flags & FED_WAITS:
            self._server.fast_path.on_waits()
        if (self._events or self._has_frames) and not self.closed:
            self._pause(PAUSED_BY_ANSWERS)
            self._steps.join(self)

    def _count_refused_streams(self) -> None:
        refused = self.http2.refused_streams
        if refused != self._refused_streams:
            self.counts.calls_refused[ErrorCode.REFUSED_STREAM.name] += (
                refused - self._refused_streams
            )
            self._refused_streams = refused

    def _feed_more(self) -> None:
        """Called when the peer took enough of what was written."""
        self._steps.join(self)

    def _take_events(self) -> None:
        """Take what came at once where nothing of this connection waits, and there is time."""
        while self._events and not self._steps.has_joined(self):
            if not self._steps.has_time():
                self._steps.join(self)
                return
            self._take_event(self._events.popleft())

    def _take_event(self, event: Http2Event) -> None:
        if isinstance(event, Opened):
            self._open(event)
            return
        call = self._calls.get(event.stream_id)
        if not isinstance(event, Received):
            if call is not None:
                call.cancelled()
            self._unread([event.stream_id])
            return
        if call is None:
            return
        try:
            messages = call.reader.feed(event.data)
        except CallRefusedError as error:
            call.end(error.status, str(error))
            return
        call.take(messages, is_ended=event.is_ended)

    def _open(self, event: Opened) -> None:
        try:
            head = parse_head(event.headers)
        except CallRefusedError as error:
            self.counts.calls_refused[error.status.name] += 1
            block = trailers_alone(error.status, str(error))
            self.http2.send_headers(event.stream_id, block, end=True)
            return
        call = Call(self, event.stream_id, head)
        self._calls[event.stream_id] = call
        self.counts.streams += 1
        if event.is_ended:
            call.take([], is_ended=True)
        self._unserved.append(call)

    # -- answers that are not read ------------------------------------------------------------
    def watch(self, stream_id: int, on_unread: Callable[[], None]) -> None:
        """See :meth:`Call.watch`."""
        while len(self._watched) >= WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        self._watched[stream_id] = on_unread
        self.http2.watch(stream_id)

    def _arrived_bytes(self) -> int:
        """Of what HTTP/2 has sent, what the peer's system has, at least; where the system does not
        say, all."""
        taken = self.http2.taken_bytes
        sock = self._transport.get_extra_info("socket")
        arrived = None if sock is None else acknowledged_bytes(sock)
        if arrived is None:
            return taken
        # TLS writes some more.
        return max(taken - max(getattr(self._transport, "written_bytes", taken) - arrived, 0), 0)

    def _drop_unsent(self) -> None:
        """Have the system send no more of what the peer lacks: the messages come again, and it
        would try for minutes."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                have_reset(sock)

    def _unread(self, streams: list[int]) -> None:
        """The client gave these calls up, or is gone, and has not read their answers whole."""
        for stream_id in streams:
            on_unread = self._watched.pop(stream_id, None)
            if on_unread is not None:
                on_unread()
        given = self._kernel_itself.take_given(streams) if streams else []
        if given:
            self._serve.unread(given)

    def keeps(self, size: int) -> None:
        """Called by a call: so many bytes of messages more are kept. With too many nothing more is
        read."""
        self._in_flight_bytes += size
        if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._pause(PAUSED_BY_HANDLERS)
        else:
            self._resume(PAUSED_BY_HANDLERS)

    def ended(self, stream_id: int) -> None:
        """Called by a call: it is over."""
        if self._calls.pop(stream_id, None) is not None:
            self.counts.streams -= 1

    # -- calls --------------------------------------------------------------------------------
    def _serve_calls(self) -> None:
        """Serve new calls at once where nothing of this connection waits, and there is time."""
        if not self._unserved or self._steps.has_joined(self):
            return
        while self._unserved and not self.closed:
            if not self._steps.has_time():
                self._steps.join(self)
                return
            self._start(self._unserved.popleft())

    def go_on(self) -> bool:
        """Called by :class:`StepQueue`: do a little of what waits; whether there is more."""
        if self._lost:
            for _ in range(min(LOST_PER_STEP, len(self._lost))):
                self._lost.popleft().lost()
        elif self._events:
            for _ in range(min(EVENTS_PER_STEP, len(self._events))):
                self._take_event(self._events.popleft())
            self.flush_soon()
        elif self._unserved and not self.closed:
            self._start(self._unserved.popleft())
        elif self._may_feed:
            self._take(b"")
        if not (self._events or self._has_frames):
            self._resume(PAUSED_BY_ANSWERS)
        return bool(self._lost or self._events or self._unserved or self._may_feed)

    @property
    def _may_feed(self) -> bool:
        """Whether frames that wait may have their turn: the peer takes its answers."""
        return self._has_frames and not (self.closed or self._paused & PAUSED_BY_WRITES)

    def _start(self, call: Call) -> None:
        if call.deadline is not None and call.deadline <= self.loop.time():
            call.expired()
        if call.is_over:
            call.handled()
            return
        coroutine = self._serve(call)
        try:
            awaited = coroutine.send(None)
        except StopIteration:
            call.handled()
        except Exception:
            self._failed(call)
            call.handled()
        else:
            if call.deadline is not None:
                call.timer = self.loop.call_at(call.deadline, call.expired)
            task = self.loop.create_task(self._finish_call(call, go_on(coroutine, awaited)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish_call(self, call: Call, rest: Awaitable[None]) -> None:
        try:
            await rest
        except asyncio.CancelledError:
            # Only a stop cancels; a client tries another broker at once.
            call.finish(GrpcStatus.UNAVAILABLE, "the broker stops")
            raise
        except Exception:
            self._failed(call)
        finally:
            call.handled()

    def _failed(self, call: Call) -> None:
        _log.exception("call %s of %s failed", call.head.path, self.remote_address)
        call.finish(GrpcStatus.INTERNAL, "the broker failed; its log says why")

    # -- what is written ----------------------------------------------------------------------
    def flush_soon(self) -> None:
        """Have what is to be sent leave in this iteration of the loop, in one write."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes_soon = False
        data = self.http2.take_output()
        if data:
            self.send(data)

    def leave(self) -> None:
        """Take no more calls, and have the client go elsewhere (GOAWAY)."""
        if not self.closed:
            self.http2.leave()
            self._flush()
