"""The name server: route table, key-values and handlers behind a port.

Everything but the key-values is in memory only: brokers register again every 30 seconds, with every
name server. A scan every 10 seconds takes out brokers that were silent for two minutes; a broker
whose connection closes is taken out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from kerolox import clock
from kerolox.metrics.endpoint import MetricsEndpoint
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.handlers import NameServerHandlers
from kerolox.namesrv.key_values import KeyValues
from kerolox.namesrv.route_table import RouteTable
from kerolox.release import __version__
from kerolox.remoting.server import ConnectionLimits, RemotingServer, ServerConnection
from kerolox.remoting.tls.server_tls import ServerTls
from kerolox.security.access.watching import POLL_SECONDS
from kerolox.tasks import end_tasks
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole

SCAN_FIRST_SECONDS = 5.0
SCAN_INTERVAL_SECONDS = 10.0

_log = logging.getLogger(__name__)


class NameServer:
    """One name server. An async context manager: started inside, stopped outside."""

    def __init__(self, config: NamesrvConfig, *, clock_ms: Callable[[], int] | None = None) -> None:
        """``clock_ms`` gives milliseconds since the epoch; tests turn one by hand. Without it a
        clock that nobody sets decides who is alive."""
        self.routes = RouteTable()
        self._clock_ms = clock_ms or clock.steady_ms
        self._key_values = KeyValues(config.kv_config_path)
        self._handlers = NameServerHandlers(config, self.routes, self._key_values, self._clock_ms)
        self._tls = ServerTls.of(config)
        self._server = RemotingServer(
            self._handlers.handle,
            host=config.listen_host,
            port=config.listen_port,
            on_close=self._on_close,
            connection_limits=ConnectionLimits.of(config),
            tls=self._tls,
            limits=self._handlers.limits,
        )
        self._metrics = MetricsEndpoint(config, self._measured)
        self._scanning: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()
        self._watching: asyncio.Task[None]
        self._sweeping: asyncio.Task[None] | None = None

    def _measured(self) -> MeasuredRole:
        """Its metrics, for who asks for them."""
        from kerolox.namesrv.metrics import NameServerExposition

        return NameServerExposition(self._handlers, self.routes, self._server.memory_limiter)

    @property
    def config(self) -> NamesrvConfig:
        """The settings in force."""
        return self._handlers.config

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def metrics_port(self) -> int:
        """Where its metrics are (after the start); 0: nowhere."""
        return self._metrics.port

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on (after the start)."""
        return self._server.addresses

    async def start(self) -> None:
        """Load the key-values and listen; ConfigError: the port is in use, or the key-values or a
        file of TLS can't be used.
        """
        self._key_values.load()
        self._handlers.gate.load()
        if self.config.cluster_test:
            _log.warning(
                "clusterTest: routes of %s are not asked for; only own ones are known",
                self.config.product_env_name,
            )
        if self._tls is not None:
            self._tls.start()
        try:
            await self._server.start()
            await self._metrics.start()
        except BaseException:
            await self._server.stop()
            await self._stop_tls()
            raise
        loop = asyncio.get_running_loop()
        self._scanning = loop.create_task(self._scan_always())
        self._watching = loop.create_task(self._watch_accounts())
        _log.info("name server listens on %s", ", ".join(self.listen_addresses))
        _log.info("Kerolox %s", __version__)

    async def stop(self) -> None:
        """Close all connections; bounded. Idempotent; whoever calls it meanwhile waits for the end,
        too."""
        async with self._ending:
            await self._stop()

    async def _stop(self) -> None:
        if self._scanning is None:
            return
        scanning, self._scanning = self._scanning, None
        for task in (scanning, self._watching):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._metrics.stop()
        await self._server.stop()
        await self._stop_tls()
        await self._handlers.dynamic_config.stop()
        self._handlers.audit.close()
        await self._key_values.close()
        await end_tasks(self._sweeping)
        _log.info("name server stopped")

    async def _stop_tls(self) -> None:
        if self._tls is not None:
            await self._tls.stop()

    async def reload_settings(self) -> None:
        """Read the settings file again (what SIGHUP asks for). Settings that are live are in force
        when this returns; others are named in the log and wait for a restart. A file with a mistake
        changes nothing and is one error in the log. Raises nothing."""
        await self._handlers.dynamic_config.reload()
        if self._handlers.gate.accounts is not None:
            await self._handlers.gate.accounts.reload()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def scan(self) -> int:
        """Take out the brokers that were silent too long and close their connections; how many."""
        expired = self.routes.expire(self._clock_ms())
        for address, connection_id in expired:
            _log.warning("broker %s expired", printable(address))
            connection = self._server.connection(connection_id)
            if connection is not None:
                connection.close()
        self._sweep_soon()
        return len({address for address, _ in expired})

    async def _scan_always(self) -> None:
        await asyncio.sleep(SCAN_FIRST_SECONDS)
        while True:
            self.scan()
            await asyncio.sleep(SCAN_INTERVAL_SECONDS)

    async def _watch_accounts(self) -> None:
        accounts = self._handlers.gate.accounts
        while accounts is not None:
            await asyncio.sleep(POLL_SECONDS)
            await accounts.poll()

    def _on_close(self, connection: ServerConnection) -> None:
        self._handlers.connection_closed(connection.connection_id)
        self._sweep_soon()

    def _sweep_soon(self) -> None:
        """Brokers of many topics that are gone leave memory in the background."""
        if not self.routes.is_swept and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.get_running_loop().create_task(self._handlers.sweep())
