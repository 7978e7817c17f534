"""Serves gRPC on the server of remoting, whose accepting, limits, TLS and memory are its own.

What a connection needs (``hpack``) is imported with the first one, which takes some milliseconds:
few brokers have gRPC clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.remoting.grpc.counts import GrpcCounts
from kerolox.remoting.grpc.steps import StepQueue
from kerolox.remoting.server import (
    ConnectionLimits,
    FastPath,
    RemotingServer,
    ServerConnection,
    next_connection_id,
)

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.grpc.connection import Serve
    from kerolox.remoting.limits.requests import RequestLimits
    from kerolox.remoting.tls.server_tls import ServerTls


async def _no_frames(command: RemotingCommand, connection: ServerConnection) -> None:
    """No frame of remoting reaches a connection of gRPC."""


class GrpcServer(RemotingServer):
    """Listens on a port for clients that speak gRPC."""

    def __init__(
        self,
        load: Callable[[], Serve],
        *,
        host: str,
        port: int,
        kernel: str | None = None,
        fast_path: FastPath | None = None,
        connection_limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        """Nothing is opened before ``start``.

        Args:
            load: gives what serves each call, when the first client is here.
            host, port, fast_path, connection_limits, tls, limits: as those of
                :class:`~kerolox.remoting.server.RemotingServer`.
            kernel: whose HTTP/2 it is; None: that of the process.
        """
        super().__init__(
            _no_frames,
            host=host,
            port=port,
            fast_path=fast_path,
            connection_limits=connection_limits,
            tls=tls,
            limits=limits,
        )
        self._load = load
        self._serve: Serve | None = None
        self._kernel = kernel
        self._steps: StepQueue | None = None
        self.counts = GrpcCounts()

    def _make_connection(self) -> ServerConnection:
        from kerolox.remoting.grpc.connection import GrpcConnection
        from kerolox.remoting.http2.choice import http2_of

        if self._serve is None:
            self._serve = self._load()
        if self._steps is None:
            self._steps = StepQueue(self._shared.loop)
        return GrpcConnection(
            self,
            self._shared,
            next_connection_id(),
            self._serve,
            http2_of(self._kernel)(),
            self.counts,
            self._steps,
        )
