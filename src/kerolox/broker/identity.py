"""Who the broker is: the addresses that it tells others, and the host in its records."""

from __future__ import annotations

from kerolox.addresses import join_address
from kerolox.broker.config import BrokerConfig
from kerolox.kernel import FastPathTables
from kerolox.message import pack_host
from kerolox.protocol.codes import MASTER_ID

HA_PORT_DISTANCE = 1


class Identity:
    """The addresses of one broker, by its settings and the port that it listens on.

    Attributes:
        port: ``listenPort``; with 0 the port that the system gave, after the start.
        ha_port: where slaves connect; 0: nowhere, or not yet.
        store_host: the host that new records name, packed; empty before :meth:`resolve`.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._store_address = ""
        self.port = config.listen_port
        self.ha_port = 0
        self.store_host = b""

    @property
    def address(self) -> str:
        """What name servers tell clients: ``advertisedAddress``, else ``brokerIP1:port``."""
        return join_address(*self._config.advertised(self.port))

    @property
    def ha_address(self) -> str:
        """Where slaves connect (``haServerAddr``)."""
        return join_address(self._config.broker_ip2, self.ha_port or self.wanted_ha_port)

    @property
    def wanted_ha_port(self) -> int:
        """``haListenPort``, else the port behind ``listenPort``."""
        return self._config.ha_listen_port or self.port + HA_PORT_DISTANCE

    def resolve(self) -> None:
        """Look the advertised host up: records hold an IP address.

        Raises:
            ConfigError: it can't be resolved.
        """
        self._store_address = self._config.store_address()

    def announce(self, store: FastPathTables) -> None:
        """Tell the kernel what its answers and records say of the broker."""
        config = self._config
        self.store_host = pack_host(self._store_address, config.advertised(self.port)[1])
        store.set_identity(
            cluster=config.broker_cluster_name,
            region=config.region_id,
            trace_on=config.trace_on,
            store_host=self.store_host,
            # Whom answers to pulls suggest to ask next: slaves send their readers back, too.
            broker_id=MASTER_ID,
        )
