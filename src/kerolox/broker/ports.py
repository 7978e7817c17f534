"""The ports of a broker: the main one, whose fast requests the kernel answers, and the VIP port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kerolox.broker.context import Context
from kerolox.broker.requests import ROUTER
from kerolox.errors import BrokerError, ConfigError
from kerolox.kernel.feed import ConnectionKernel
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.pop_names import POP_FRAME
from kerolox.remoting.coalescing import RequestCoalescer
from kerolox.remoting.server import (
    ConnectionLimits,
    FastPath,
    Handler,
    RemotingServer,
    ServerConnection,
)
from kerolox.remoting.time_slices import SLICE_SECONDS_MAX
from kerolox.remoting.unserved import UnservedCodes

if TYPE_CHECKING:
    from kerolox.broker.grpc.port import GrpcPort
    from kerolox.broker.requests.pop_fast import FastPops

VIP_PORT_DISTANCE = -2

GRPC_PACKAGES = "hpack", "google.protobuf"

Feeder = Callable[[int, bytes], ConnectionKernel]
"""Makes the kernel of a connection from its id and its packed peer address."""


def check_grpc_packages() -> None:
    """ConfigError: the packages of the port for gRPC are not installed."""
    missing = [name for name in GRPC_PACKAGES if not _has_package(name)]
    if missing:
        raise ConfigError(
            f"gRPC needs the packages {', '.join(missing)}: install kerolox[grpc], or "
            "leave the port closed (grpcServerPort=0)"
        )


def _has_package(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class Ports:
    """Listens for one broker and brings each request to its handler."""

    def __init__(
        self,
        broker: Context,
        feeder: Feeder,
        *,
        kernel: str | None = None,
        may_lack_grpc: bool = False,
    ) -> None:
        """Nothing is opened before :meth:`open`. ``kernel``: the name of that which the feeder
        is of. ``may_lack_grpc``: where the port for gRPC can't be opened, the others are all the
        same.
        """
        self._kernel = kernel
        self._may_lack_grpc = may_lack_grpc
        self.why_no_grpc = ""
        """Why that is so."""
        self._broker = broker
        self._feeder = feeder
        self._pops: FastPops | None = None
        self._main: RemotingServer | None = None
        self._servers: list[RemotingServer] = []
        self._unserved_by_vip = UnservedCodes("VIP port of the broker")
        self._coalescer = RequestCoalescer(
            broker.config.gather_time_micros / 1e6, self._messages_moved
        )
        self._cleanup = contextlib.AsyncExitStack()
        self.grpc: GrpcPort | None = None
        """The port for gRPC; None: there is none."""
        self.grpc_addresses: tuple[str, ...] = ()
        """Those that it listens on for gRPC."""
        broker.peers.replication.waits.subscribe(self.deliver_ready)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on, the VIP port's aside."""
        return () if self._main is None else self._main.addresses

    async def open(self) -> None:
        """Listen; the broker's identity gets the port that the system gave. ConfigError: a port
        can't be opened, or a file of TLS can't be used; some ports may be open then, see
        :meth:`close`.
        """
        config, identity = self._broker.config, self._broker.identity
        if self._broker.guards.tls is not None:
            self._broker.guards.tls.start()
            self._cleanup.push_async_callback(self._broker.guards.tls.stop)
        self._coalescer.start()
        self._cleanup.callback(self._coalescer.stop)
        try:
            waits = self._broker.peers.replication.waits
            fast_path = FastPath(
                self._kernel_of,
                self.deliver_ready,
                waits.request_flush,
                self._answer_pop,
            )
            self._main = await self._listen(identity.port, self._handle, fast_path)
        except ConfigError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
            raise ConfigError(
                f"{error}; it may also be the VIP port of a broker with "
                f"listenPort={config.listen_port - VIP_PORT_DISTANCE}"
            ) from error
        identity.listens_on(self._main.port)
        if config.vip_port_enable and config.listen_port:
            await self._listen_vip(config.listen_port)
        if config.grpc_server_port:
            try:
                await self._listen_grpc()
            except ConfigError as error:
                if not self._may_lack_grpc:
                    raise
                self.why_no_grpc = str(error)

    async def close(self) -> None:
        """Close all connections, in bounded time. Idempotent."""
        await self._cleanup.aclose()

    def deliver_ready(self) -> None:
        """Send the answers that became ready outside a feed."""
        if self._main is None:
            return
        for connection_id, data in self._broker.store.drain_ready():
            # Their ids are of one row.
            for server in self._servers:
                server.deliver(connection_id, data)
        self._broker.arrivals.wake_arrived()

    def _answer_pop(self, frame: bytes, connection: ServerConnection) -> bytes | None:
        """See ``FastPath.answer``. What answers pops is loaded for the first: most brokers see
        none."""
        if not frame.startswith(POP_FRAME, 4):
            return None
        if self._pops is None:
            from kerolox.broker.requests.pop_fast import FastPops

            self._pops = FastPops(self._broker)
        return self._pops.answer(frame, connection)

    def _kernel_of(self, connection_id: int, host: bytes) -> ConnectionKernel:
        """The kernel of a new connection."""
        kernel = self._feeder(connection_id, host)
        access = self._broker.guards.access
        if access.fast_path is not None:
            access.fast_path.opened(connection_id, kernel)
        return kernel

    def _connection_closed(self, connection: ServerConnection) -> None:
        if self._broker.guards.access.fast_path is not None:
            self._broker.guards.access.fast_path.closed(connection.connection_id)
        self._leave(connection)
        self._broker.arrivals.connection_closed(connection.connection_id)
        self._broker.popping.held.connection_closed(connection.connection_id)
        self._broker.tables.offsets.stale.connection_closed(connection.connection_id)

    def _client_left(self, connection: ServerConnection) -> None:
        """A client of gRPC is gone; it may have had several connections."""
        self._leave(connection)
        self._broker.popping.held.connection_closed(connection.connection_id)

    def _leave(self, connection: ServerConnection) -> None:
        """The clients of a closed connection leave their groups, in time slices."""
        self._go_on_leaving(self._broker.tables.clients.leaving(connection))

    def _go_on_leaving(self, steps: Iterator[None]) -> None:
        end = time.monotonic() + SLICE_SECONDS_MAX
        for _ in steps:
            if time.monotonic() >= end:
                asyncio.get_running_loop().call_soon(self._go_on_leaving, steps)
                return

    async def _listen_vip(self, listen_port: int) -> None:
        try:
            await self._listen(listen_port + VIP_PORT_DISTANCE, self._handle_vip, None)
        except ConfigError as error:
            raise ConfigError(
                f"the VIP port, {-VIP_PORT_DISTANCE} below listenPort={listen_port}, which only "
                f"clients with vipChannelEnabled use, can't be opened: {error}; or do without it "
                "(vipPortEnable=false)"
            ) from error

    async def _listen_grpc(self) -> None:
        check_grpc_packages()
        # Few brokers have it.
        from kerolox.broker.grpc.port import GrpcPort

        # Without what the kernel knows of a peer by access control: with accounts no call is fast.
        waits = self._broker.peers.replication.waits
        fast_path = FastPath(self._feeder, self.deliver_ready, waits.request_flush)
        port = GrpcPort(
            self._broker, self._handle, self._client_left, fast_path, kernel=self._kernel
        )
        self._cleanup.push_async_callback(port.close)
        server = await port.open()
        self.grpc = port
        self._servers.append(server)
        self.grpc_addresses = server.addresses
        self._broker.identity.grpc_address = self._broker.config.grpc_advertised()

    @property
    def kept_bytes(self) -> int:
        """What connections keep: frames that are not whole, answers that are not read."""
        return sum(server.memory_limiter.kept for server in self._servers)

    async def _listen(
        self, port: int, handler: Handler, fast_path: FastPath | None
    ) -> RemotingServer:
        config = self._broker.config
        server = RemotingServer(
            handler,
            host=config.listen_host,
            port=port,
            fast_path=fast_path,
            on_close=self._connection_closed,
            connection_limits=ConnectionLimits.of(config),
            coalescer=self._coalescer,
            tls=self._broker.guards.tls,
            limits=self._broker.guards.limits,
        )
        await server.start()
        self._servers.append(server)
        self._cleanup.push_async_callback(server.stop)
        return server

    async def _handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        broker = self._broker
        account = await broker.guards.access.admit_in_slices(command, connection)
        busy = broker.guards.limits.refuse_account(command, account, connection.remote_address)
        if busy is not None:
            return busy
        if broker.roles.forwarder.is_on:
            try:
                passed = await broker.roles.forwarder.take(command)
            except BrokerError as error:
                return command.response(error.code, error.remark)
            if passed is not None:
                return passed
        return await ROUTER.dispatch(broker, command, connection, account)

    async def _handle_vip(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            self._broker.guards.access.admit(command, connection)
            return self._unserved_by_vip.answer(command, connection)
        return await self._handle(command, connection)

    def _messages_moved(self) -> int:
        stats = self._broker.store.stats()
        return stats["put_count"] + stats["get_count"]
