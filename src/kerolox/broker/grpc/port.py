"""The port of gRPC clients: opened, its chores, closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.addresses import network_of
from kerolox.broker.context import Context
from kerolox.broker.grpc.stats import GrpcStats, measure
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.grpc.counts import GrpcCounts
from kerolox.remoting.grpc.server import GrpcServer
from kerolox.remoting.server import ConnectionLimits, FastPath, Handler, ServerConnection
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from kerolox.broker.grpc.clients import GrpcClient
    from kerolox.broker.grpc.service import Service
    from kerolox.broker.grpc.stats import CallKey
    from kerolox.kernel.metrics import Latencies
    from kerolox.metrics.families import Families
    from kerolox.remoting.grpc.connection import Serve

CHORES_SECONDS = 5.0
"""How often messages are renewed, and silent clients looked for."""


class GrpcPort:
    """Listens for gRPC clients of one broker."""

    def __init__(
        self,
        broker: Context,
        dispatch: Handler,
        on_client_left: Callable[[ServerConnection], None],
        fast_path: FastPath,
        *,
        kernel: str | None = None,
    ) -> None:
        """Nothing is opened before :meth:`open`. ``dispatch``: checks and handles requests;
        ``on_client_left``: called with what stands for the connection of a client that leaves;
        ``fast_path``: answers frequent calls; ``kernel``: the name of the broker's."""
        self._fast_path, self._kernel = fast_path, kernel
        self._broker = broker
        self._dispatch = dispatch
        self._on_client_left = on_client_left
        self._service: Service | None = None
        self.server: GrpcServer | None = None
        self._chores: asyncio.Task[None] | None = None
        self.stats = GrpcStats()

    async def open(self) -> GrpcServer:
        """Listen; ConfigError: the port can't be opened."""
        config, guards = self._broker.config, self._broker.guards
        server = GrpcServer(
            self._load,
            host=config.listen_host,
            port=config.grpc_server_port,
            kernel=self._kernel,
            fast_path=self._fast_path,
            connection_limits=ConnectionLimits.of(config),
            tls=guards.tls,
            limits=guards.limits,
        )
        await server.start()
        self.server = server
        self._chores = asyncio.get_running_loop().create_task(self._do_chores())
        return server

    # -- as metrics need it -------------------------------------------------------------------
    @property
    def counts(self) -> GrpcCounts:
        """What its connections count."""
        return GrpcCounts() if self.server is None else self.server.counts

    @property
    def connections(self) -> int:
        """Open ones."""
        return 0 if self.server is None else len(self.server.connections)

    @property
    def clients(self) -> int:
        """Those that have told their settings."""
        return 0 if self._service is None else len(self._service.clients)

    @property
    def renewed(self) -> int:
        """Messages whose invisible time is renewed."""
        return 0 if self._service is None else len(self._service.renewals)

    def calls(self) -> dict[CallKey, Latencies]:
        """All that were answered, by the kernel too."""
        of_kernel = () if self._service is None else self._service.calls_of_kernel()
        return self.stats.all_calls(of_kernel)

    def measure(self, families: Families) -> None:
        """Add its metrics."""
        measure(families, self)

    # -- its end --------------------------------------------------------------------------------
    async def close(self) -> None:
        """End streams, take no calls, close, in bounded time."""
        await end_tasks(self._chores)
        if self._service is not None:
            self._service.clients.end_streams()
        if self.server is not None:
            await self.server.stop()
        if self._service is not None:
            await self._service.renewals.close()
            await self._service.others.close()

    async def _do_chores(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHORES_SECONDS)
            if self._service is not None:
                self._service.clients.expire(loop.time())
                await self._service.renewals.run()

    def _load(self) -> Serve:
        from kerolox.broker.grpc.service import Service

        self._service = Service(self._broker, self._limited, self._client_left, self.stats)
        return self._service

    async def _limited(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        limits = self._broker.guards.limits
        if limits.is_on:
            network = network_of(connection.peer[0])
            busy = limits.refuse_address(command, network, connection.remote_address)
            if busy is not None:
                return busy
        return await self._dispatch(command, connection)

    def _client_left(self, client: GrpcClient) -> None:
        if self._service is not None:
            self._service.renewals.client_left(client)
        self._on_client_left(client.as_connection)
