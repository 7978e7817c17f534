"""What nearly every part of a broker uses."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.addresses import join_address
from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.role import BrokerRole
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.tables import FastPathTables
from kerolox.message import pack_host
from kerolox.protocol.codes import MASTER_ID
from kerolox.settings_class import settings_dataclass

HA_PORT_DISTANCE = 1


class Identity:
    """The addresses of one broker, by its settings and the port that it listens on.

    Attributes:
        port: ``listenPort``; with 0 the port that the system gave, once it listens.
        ha_port: where slaves connect; 0: nowhere, or not yet.
        grpc_address: where clients reach the port for gRPC; empty: it is not open.
        store_host: the host that new records name, packed.
    """

    def __init__(
        self, settings: BrokerSettings, store: FastPathTables, store_address: str, port: int
    ) -> None:
        """The kernel is told now, and with each change, what answers and records say.
        ``store_address``: the IP address of records (``BrokerConfig.store_address``). ``port``: as
        far as it is known.
        """
        self._settings = settings
        self._store = store
        self._store_address = store_address
        self.ha_port = 0
        self.grpc_address = ""
        self.listens_on(port)
        settings.subscribe(self._settings_changed)

    def listens_on(self, port: int) -> None:
        """This is the port."""
        self.port = port
        advertised_port = self._settings.current.advertised(port)[1]
        self.store_host = pack_host(self._store_address, advertised_port)
        self._announce(self._settings.current)

    @property
    def address(self) -> str:
        """What name servers tell clients: ``advertisedAddress``, else ``brokerIP1:port``."""
        return join_address(*self._settings.current.advertised(self.port))

    @property
    def ha_address(self) -> str:
        """Where slaves connect (``haServerAddr``)."""
        return join_address(self._settings.current.broker_ip2, self.ha_port or self.wanted_ha_port)

    @property
    def wanted_ha_port(self) -> int:
        """``haListenPort``, else the port behind ``listenPort``."""
        return self._settings.current.ha_listen_port or self.port + HA_PORT_DISTANCE

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if (old.region_id, old.trace_on) != (new.region_id, new.trace_on):
            self._announce(new)

    def _announce(self, config: BrokerConfig) -> None:
        self._store.set_identity(
            cluster=config.broker_cluster_name,
            region=config.region_id,
            trace_on=config.trace_on,
            store_host=self.store_host,
            # Whom answers to pulls suggest to ask next: slaves send their readers back, too.
            broker_id=MASTER_ID,
        )


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Settings, role, store, addresses and clocks of one broker. ``now_ms`` gives milliseconds
    since the epoch, ``steady_ms`` those of a clock that nobody sets."""

    settings: BrokerSettings
    role: BrokerRole
    store: StoreKernel
    identity: Identity
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.settings.current
