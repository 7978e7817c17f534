"""The client's side of remoting: one connection per address, opened when it is first needed.

Requests of all callers share the connection and are paired with their responses by opaque. A
connection that closes ends its open requests with :class:`ConnectionLostError`; the next request
opens a new one. Nothing is sent twice here: whether a request may be repeated is for the caller
to know. A connection that brings not one byte while a request waits ``SILENT_SECONDS_MAX`` for its
response leads nowhere: the peer's machine is gone, or a firewall has forgotten us. It is closed
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
from typing import Protocol

from kerolox import owners
from kerolox.addresses import split_address
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import FLAG_ONEWAY
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.connection import (
    FrameConnection,
    Handling,
    IdleWatch,
    Opaques,
    OpenCalls,
    Shared,
)

__all__ = ["ClientConnection", "RemotingClient", "RequestHandler", "RpcHook"]

CONNECT_SECONDS_MAX = 3.0
"""Default time limit of opening a connection (connectTimeoutMillis)."""

IDLE_SECONDS_MAX = 120.0
"""A connection without traffic for so long is closed (clientChannelMaxIdleTimeSeconds)."""

OPEN_CALLS_MAX = 65535
"""Requests of one connection that may wait for a response (clientAsyncSemaphoreValue)."""

TURN_BYTES_MAX = 1024 * 1024
"""Bytes of requests that a connection gathers in one turn of the loop."""

ONEWAY_PER_TURN_MAX = 64
"""One-way requests after which their sender lets the loop have a turn."""

REQUESTS_IN_FLIGHT_MAX = 1024
"""Requests of a server whose handlers may be waiting at the same time."""

CLOSE_SECONDS_MAX = 2.0
"""How long ``close`` lets connections send what they still have."""

SILENT_SECONDS_MAX = 2.5
"""A connection on which nothing arrived while a request timed out after so long is closed."""

_SECOND_LOOK_SECONDS = 0.1

_NO_ROOM = (
    "no room in time for {}: the peer takes no more, or leaves too many requests unanswered; it is"
    " stopped or overloaded, or more is sent than it can take. The request was not sent"
)

_log = logging.getLogger(__name__)


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
        return not (
            self.blocked
            or self._gathered_bytes >= TURN_BYTES_MAX
            or self._queue
            or len(self.calls) >= self._open_calls_max
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
        while (
            queue
            and not self.blocked
            and not self.closed
            and self._gathered_bytes < TURN_BYTES_MAX
            and len(calls) < self._open_calls_max
        ):
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


class RpcHook(Protocol):
    """What runs around requests; :class:`kerolox.client.core.hooks.RpcHook` says more."""

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """May change the request; raising ends it with that error."""

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """The response has come, or our own is about to go."""


class RemotingClient:
    """A pool of connections, one per address. Use it in one event loop; close it at the end."""

    def __init__(
        self,
        *,
        connect_timeout_seconds: float = CONNECT_SECONDS_MAX,
        on_request: RequestHandler | None = None,
        on_disconnect: Callable[[str], None] | None = None,
        rpc_hook: RpcHook | None = None,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        open_calls_max: int = OPEN_CALLS_MAX,
    ) -> None:
        """Nothing is opened before the first request.

        Args:
            connect_timeout_seconds: time limit of opening a connection.
            on_request: answers requests of servers, each in a task of its own; without it they
                get no answer.
            on_disconnect: called with the address after one of the connections closed.
            rpc_hook: sees each request and its response, of either side.
            idle_seconds_max: a connection without traffic for so long is closed.
            open_calls_max: requests per connection that may wait for a response; more wait.
        """
        self._connect_timeout_seconds = connect_timeout_seconds
        self._on_request: RequestHandler = on_request or _no_answer
        self._on_disconnect = on_disconnect
        self._rpc_hook = rpc_hook
        if rpc_hook is not None:
            self._on_request = _hooked(self._on_request, rpc_hook)
        self._on_request = _in_task(self._on_request)
        self._idle_seconds_max = idle_seconds_max
        self._open_calls_max = open_calls_max
        self._opaques = Opaques()
        self._connections: dict[str, ClientConnection] = {}
        self._connecting: dict[str, asyncio.Task[ClientConnection]] = {}
        self._shared: Shared = None  # type: ignore[assignment]  # until used
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # until used
        self._idle_watch: IdleWatch | None = None
        self._closed = False
        self._is_inherited = False

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def invoke(
        self,
        address: str,
        command: RemotingCommand,
        *,
        timeout_seconds: float = 3.0,
        ahead: bool = False,
    ) -> RemotingCommand:
        """Send a request and wait for its response, whatever its code. Sets the opaque.

        Args:
            address: whom to ask.
            command: the request.
            timeout_seconds: time limit, connecting and waiting for room included.
            ahead: do not wait for room; for few and small ones that must not be late.

        Raises:
            ConnectError: no connection to ``address`` ("host:port") in time.
            ConnectionLostError: it closed before the response came.
            RequestTimeoutError: no response within ``timeout_seconds``, connecting included.
            LocalProtocolError: no frame can hold the command.
            ClientClosedError: the client is closed.
            ClientError: it was first used in another event loop, or in the parent of this process.
        """
        connection, deadline = await self._ready(address, timeout_seconds)
        command.opaque = opaque = self._opaque_for(connection)
        hook = self._rpc_hook
        if hook is not None:
            _run(hook.before_request, address, command)
        what = f"request {command.code} to {address}"
        asked_at: float | None = self._loop.time()
        queued: Queued | None = None
        if ahead or connection.has_room():
            data = command.encode()
            future = connection.calls.open(opaque, deadline, what)
            connection.write(data)
        else:
            queued = connection.queue(command, deadline, what)
            future = queued.future
        try:
            response = await future
        except RequestTimeoutError:
            if queued is not None:
                asked_at = queued.written_at
            if asked_at is not None:
                connection.timed_out(asked_at)
            raise
        finally:
            connection.forget(opaque)
        if hook is not None:
            _run(hook.after_response, address, command, response)
        return response

    async def invoke_oneway(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float = 3.0
    ) -> None:
        """Send a request that gets no response; waits only for the connection and for room in
        it, and lets the loop have a turn after ``ONEWAY_PER_TURN_MAX`` of them. Sets the opaque
        and the one-way flag. Errors as those of :meth:`invoke`.
        """
        connection, deadline = await self._ready(address, timeout_seconds)
        command.opaque = self._opaque_for(connection)
        command.flag |= FLAG_ONEWAY
        if self._rpc_hook is not None:
            _run(self._rpc_hook.before_request, address, command)
        if connection.has_room():
            connection.write(command.encode())
            if connection.is_turn_full():
                await asyncio.sleep(0)
            return
        what = f"one-way request {command.code} to {address}"
        try:
            await connection.queue(command, deadline, what).future
        finally:
            connection.forget(command.opaque)

    @property
    def closed(self) -> bool:
        """:meth:`close` was called."""
        return self._closed

    def connection(self, address: str) -> ClientConnection | None:
        """The open connection to an address; None: the next request opens another."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    def disconnect(self, address: str) -> None:
        """Close the connection to an address, if there is one; the next request opens another."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until no request is without a response, for a bounded time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while waiting := [f for c in self._connections.values() for f in c.waiting()]:
                    await asyncio.wait(waiting)
                    await asyncio.sleep(0)  # whoever tries once more does so now
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Close all connections, in about two seconds at most; open requests end with an error."""
        if self._closed:
            return
        self._shut()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        if connections:
            gone = [connection.gone for connection in connections]
            await asyncio.wait(gone, timeout=CLOSE_SECONDS_MAX)
            for connection in connections:
                connection.abort()
            await asyncio.wait(gone, timeout=0.5)

    def abort(self) -> None:
        """Close all connections at once; what was not yet sent is lost. Idempotent."""
        if not self._is_inherited:
            self._shut()
            for connection in list(self._connections.values()):
                connection.abort()

    def _inherited(self) -> None:
        """In a forked child: of no use."""
        self._closed = self._is_inherited = True

    def _shut(self) -> None:
        """Send nothing any more; whoever waits for something is told."""
        self._closed = True
        if self._idle_watch is not None:
            self._idle_watch.stop()
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        if self._shared is not None:
            for task in list(self._shared.tasks):
                task.cancel()
        for connection in list(self._connections.values()):
            connection.fail_all()

    # -- connections --------------------------------------------------------------------------
    async def _ready(self, address: str, timeout_seconds: float) -> tuple[ClientConnection, float]:
        """The connection to an address, and the deadline."""
        loop = asyncio.get_running_loop()
        if self._closed:
            if self._is_inherited:
                raise ClientError(owners.in_child("the remoting client"))
            raise ClientClosedError("the remoting client is closed")
        if self._shared is None:
            self._loop = loop
            owners.watch(self)
            self._shared = Shared(self._loop, REQUESTS_IN_FLIGHT_MAX)
            self._idle_watch = IdleWatch(
                self._loop, lambda: list(self._connections.values()), self._idle_seconds_max
            )
        elif self._loop is not loop:
            raise ClientError(owners.in_other_loop("the remoting client"))
        deadline = loop.time() + timeout_seconds
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await self._connected(address, deadline)
        if connection.closed:
            if self._closed:
                raise ClientClosedError("the remoting client is closed")
            raise ConnectionLostError(f"connection to {address} closed before the request was sent")
        return connection, deadline

    async def _connected(self, address: str, deadline: float) -> ClientConnection:
        task = self._connecting.get(address)
        if task is None:
            task = self._loop.create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connect_done(address, done))
        seconds = max(deadline - self._loop.time(), 0.0)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise ConnectError(f"no connection to {address} within {seconds:.1f} s")
        if task.cancelled():
            raise ClientClosedError("the remoting client is closed")
        return task.result()

    def _connect_done(self, address: str, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # seen: those who waited for it may be gone

    async def _connect(self, address: str) -> ClientConnection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise ConnectError(str(error)) from None
        seconds = self._connect_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                _transport, connection = await self._loop.create_connection(
                    lambda: ClientConnection(
                        self._shared, address, self._on_request, self._forget, self._open_calls_max
                    ),
                    host,
                    port,
                )
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within {seconds:.1f} s") from None
        except OSError as error:
            known = error.errno is not None and error.errno > 0
            reason = os.strerror(error.errno) if known else str(error)  # type: ignore[arg-type]
            raise ConnectError(f"can't connect to {address}: {reason}") from error
        if self._closed:
            connection.abort()
            raise ClientClosedError("the remoting client is closed")
        self._connections[address] = connection
        return connection

    def _forget(self, connection: ClientConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self._on_disconnect is not None:
                self._on_disconnect(connection.address)

    def _opaque_for(self, connection: ClientConnection) -> int:
        opaque = self._opaques.allocate()
        while connection.is_open(opaque):
            opaque = self._opaques.allocate()
        return opaque


def _run(hook: Callable[..., None], *arguments: object) -> None:
    """Call a hook of the user's; it waits for nothing, so a CancelledError of its is a failure and
    must not end whoever sends the request."""
    try:
        hook(*arguments)
    except asyncio.CancelledError as error:
        name = getattr(hook, "__qualname__", repr(hook))
        raise ClientError(f"{name} raised CancelledError; a hook must not wait") from error


def _hooked(on_request: RequestHandler, hook: RpcHook) -> RequestHandler:
    """A handler that runs the hook around another one."""

    async def handle(
        command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        _run(hook.before_request, connection.remote_address, command)
        response = await on_request(command, connection)
        if response is not None:
            _run(hook.after_response, connection.remote_address, command, response)
        return response

    return handle


def _in_task(on_request: RequestHandler) -> RequestHandler:
    """A handler that may use all of asyncio at once; until its first wait it has no task."""

    async def handle(
        command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        await asyncio.sleep(0)
        return await on_request(command, connection)

    return handle


async def _no_answer(command: RemotingCommand, connection: ClientConnection) -> None:
    return None
