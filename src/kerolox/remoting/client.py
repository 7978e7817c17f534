"""The client's side of remoting: one connection per address, opened when it is first needed.

Requests of all callers share the connection and are paired with their responses by opaque. A
connection that closes ends its open requests with :class:`ConnectionLostError`; the next request
opens a new one. Nothing is sent twice here: whether a request may be repeated is for the caller
to know. :mod:`kerolox.remoting.client_connection` has the connection, ``remoting/core`` what it
decides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from kerolox import owners
from kerolox.addresses import split_address
from kerolox.codec.choice import send_codec
from kerolox.codec.sending import SendCodec, Sender, SendFuture
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import FLAG_ONEWAY, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client_connection import (
    OPEN_CALLS_MAX,
    ClientConnection,
    RequestHandler,
)
from kerolox.remoting.connection import GONE_SECONDS_MAX, IdleWatch, Shared, read_buffer_of
from kerolox.remoting.core.client_requests import Queued
from kerolox.security.contexts import TlsContexts
from kerolox.security.credentials import Credentials, Signer
from kerolox.security.tls import Tls, handshake_fault, is_handshake_error
from kerolox.tasks import retrieve_error

__all__ = ["ClientConnection", "RemotingClient", "RequestHandler", "RpcHook"]

CONNECT_SECONDS_MAX = 3.0
"""Default time limit of opening a connection (connectTimeoutMillis)."""

IDLE_SECONDS_MAX = 120.0
"""A connection without traffic for so long is closed (clientChannelMaxIdleTimeSeconds)."""

REQUESTS_IN_FLIGHT_MAX = 1024
"""Requests of a server whose handlers may be waiting at the same time."""

CLOSE_SECONDS_MAX = 2.0
"""How long ``close`` lets connections send what they still have."""


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
        credentials: Credentials | None = None,
        tls: Tls | TlsContexts = False,
        serialize_type: SerializeType = SerializeType.JSON,
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
            credentials: sign each request with these, after the hook.
            tls: how connections are encrypted; its files are read now, and again when they change.
            serialize_type: the encoding of requests' headers; responses have their request's.

        Raises:
            ConfigError: ``tls`` is none of what it can be, or a file of it can't be used.
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
        self._signer = None if credentials is None else Signer(credentials)
        self._serialize_type = serialize_type
        self._prepares = self._signer is not None or serialize_type is not SerializeType.JSON
        self._tls = tls if isinstance(tls, TlsContexts) else TlsContexts(tls)
        self.codec: SendCodec = send_codec()
        """What makes and reads fast-path sends."""
        self._opaques = self.codec.Opaques()
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
            timeout_seconds: time limit, connecting and waiting for capacity included.
            ahead: do not wait for capacity; for few and small ones that must not be late.

        Raises:
            ConnectError: no connection to ``address`` ("host:port") in time, or no TLS with it.
            ConnectionLostError: it closed before the response came.
            RequestTimeoutError: no response within ``timeout_seconds``, connecting included.
            LocalProtocolError: no frame can hold the command.
            ClientClosedError: the client is closed.
            ClientError: it was first used in another event loop, or in the parent of this process.
        """
        connection, deadline = await self._ready(address, timeout_seconds)
        command.opaque = opaque = connection.sends.new_opaque()
        hook = self._rpc_hook
        if hook is not None:
            _run(hook.before_request, address, command)
        if self._prepares:
            self._prepare(command)
        what = f"request {command.code} to {address}"
        asked_at: float | None = self._loop.time()
        queued: Queued | None = None
        if ahead or connection.has_capacity():
            data = command.encode()
            future = connection.wait_for(opaque, deadline, what)
            connection.write(data)
            del data  # thousands may wait
        else:
            future, queued = connection.queue(command, deadline, what)
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
        """Send a request that gets no response; waits only for the connection and for capacity in
        it, and yields to the event loop after ``ONEWAY_PER_ITERATION_MAX`` of them. Sets the opaque
        and the one-way flag. Errors as those of :meth:`invoke`.
        """
        connection, deadline = await self._ready(address, timeout_seconds)
        command.opaque = connection.sends.new_opaque()
        command.flag |= FLAG_ONEWAY
        if self._rpc_hook is not None:
            _run(self._rpc_hook.before_request, address, command)
        if self._prepares:
            self._prepare(command)
        if connection.has_capacity():
            connection.write(command.encode())
            if connection.should_yield():
                await asyncio.sleep(0)
            return
        what = f"one-way request {command.code} to {address}"
        try:
            future, _queued = connection.queue(command, deadline, what)
            await future
        finally:
            connection.forget(command.opaque)

    @property
    def is_plain(self) -> bool:
        """Requests may be encoded elsewhere: they have JSON headers, and no hook sees them. Where
        there are credentials, their connection signs them as they leave."""
        return self._serialize_type is SerializeType.JSON and self._rpc_hook is None

    @property
    def closed(self) -> bool:
        """:meth:`close` was called."""
        return self._closed

    def connection(self, address: str) -> ClientConnection | None:
        """The open connection to an address; None: the next request opens another."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    def fast_connection(self, address: str) -> ClientConnection | None:
        """The open connection to an address, for a send that a codec makes; None: it takes the
        slow path, since there is none yet, or requests are not for the fast path."""
        if not self.is_plain or self._closed:
            return None
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    def disconnect(self, address: str) -> None:
        """Close the connection to an address, if there is one; the next request opens another."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close()

    def sends_of(self, sender: Sender) -> list[SendFuture]:
        """The futures of a producer's fast-path sends that wait for an answer."""
        return [f for each in self._connections.values() for f in each.sends.futures(sender)]

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
        connecting = list(self._connecting.values())
        self._shut()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        if connecting:
            await asyncio.wait(connecting, timeout=GONE_SECONDS_MAX)
        if connections:
            gone = [connection.gone for connection in connections]
            await asyncio.wait(gone, timeout=CLOSE_SECONDS_MAX)
            for connection in connections:
                connection.abort()
            await asyncio.wait(gone, timeout=GONE_SECONDS_MAX)

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
            connection.requests.fail()

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
            self._shared = Shared(self._loop, REQUESTS_IN_FLIGHT_MAX, read_buffer_of(self._loop))
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
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
            task.add_done_callback(retrieve_error)
        seconds = max(deadline - self._loop.time(), 0.0)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise ConnectError(f"no connection to {address} within {seconds:.1f} s")
        if task.cancelled():
            raise ClientClosedError("the remoting client is closed")
        return task.result()

    async def _connect(self, address: str) -> ClientConnection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise ConnectError(str(error)) from None
        seconds = self._connect_timeout_seconds
        secure = self._tls.current()
        connection = ClientConnection(
            self._shared,
            address,
            self._on_request,
            self._forget,
            self._open_calls_max,
            codec=self.codec,
            opaques=self._opaques,
            seal=None if self._signer is None else self._signer.sign_frames,
        )
        try:
            async with asyncio.timeout(seconds):
                await self._loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=secure,
                    server_hostname=None if secure is None else host,
                    # The time limit above ends a handshake; its own would be a minute.
                    ssl_shutdown_timeout=None if secure is None else CLOSE_SECONDS_MAX,
                )
        except asyncio.CancelledError:
            # Where the handshake has just ended TLS would wait for the peer's last word.
            connection.abort()
            raise
        except TimeoutError:
            raise ConnectError(_late(address, seconds, is_secure=secure is not None)) from None
        except OSError as error:
            if secure is not None and is_handshake_error(error):
                raise ConnectError(
                    f"no TLS connection to {address}: {handshake_fault(error)}"
                ) from error
            known = error.errno is not None and error.errno > 0
            reason = os.strerror(error.errno) if known else str(error)  # type: ignore[arg-type]
            raise ConnectError(f"can't connect to {address}: {reason}") from error
        if self._closed:
            connection.abort()
            raise ClientClosedError("the remoting client is closed")
        self._connections[address] = connection
        return connection

    def _prepare(self, command: RemotingCommand) -> None:
        """Give a request the form in which it travels; nothing changes it any more."""
        command.serialize_type = self._serialize_type
        if self._signer is not None:
            self._signer.sign(command)

    def _forget(self, connection: ClientConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self._on_disconnect is not None:
                self._on_disconnect(connection.address)


def _late(address: str, seconds: float, *, is_secure: bool) -> str:
    what = f"no connection to {address} within {seconds:.1f} s"
    if not is_secure:
        return what
    return f"{what}, the TLS handshake included; does it speak TLS (tls.server.mode)?"


def _run(hook: Callable[..., None], *arguments: object) -> None:
    """Call a hook of the user's. It waits for nothing, so its CancelledError is a failure and must
    not end the sender of the request."""
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
