"""The part of a broker in replication, by its role: a master's port, or a slave's two clients."""

from __future__ import annotations

import logging

from kerolox.broker.config import BrokerConfig
from kerolox.broker.identity import Identity
from kerolox.broker.replication.follower import Follower
from kerolox.broker.replication.master import Replicated
from kerolox.broker.replication.server import SlaveServer
from kerolox.broker.replication.tables import SlaveTables
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.services.background import BackgroundTasks
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.errors import ConfigError
from kerolox.kernel import ReplicatedLog
from kerolox.role_settings import ENFORCING

SYNC_SECONDS = 10.0
FIRST_SYNC_SECONDS = 3.0
"""When a slave takes its master's tables, as RocketMQ's does."""

_log = logging.getLogger(__name__)


class Replication:
    """Masters send their log, slaves follow it.

    Attributes:
        waits: how far the log of a master is on a slave, and who waits for that.
        follower: of a slave.
        tables: of a slave.
    """

    def __init__(self, config: BrokerConfig, identity: Identity, store: ReplicatedLog) -> None:
        """Nothing is opened before :meth:`start`."""
        self._config = config
        self._identity = identity
        replicated = Replicated(config.ha_slave_fallbehind_max)
        self.waits = SlaveWaits(replicated, config.slave_timeout / 1000)
        self._server = SlaveServer(config, store, self.waits)
        self.follower = Follower(config, store) if config.is_slave else None
        self.tables: SlaveTables | None = None

    def take_tables(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        schedule: DelaySchedule,
    ) -> None:
        """The tables that a slave takes from its master."""
        if self._config.is_slave:
            self.tables = SlaveTables(
                self._config, self._identity, topics, groups, offsets, schedule
            )

    def set_master(self, ha_address: str, address: str) -> None:
        """What a name server says of a slave's master."""
        if self.follower is not None and self.tables is not None:
            self.follower.set_master(ha_address)
            self.tables.set_master(address)

    @property
    def port(self) -> int:
        """Where a master listens for slaves; 0: nowhere."""
        return self._server.port

    async def start(self, background: BackgroundTasks) -> None:
        """Listen, or follow.

        Raises:
            ConfigError: the port of a master can't be opened, where it was named or is needed.
        """
        if self.follower is not None and self.tables is not None:
            background.run(self.follower.run())
            background.repeat(SYNC_SECONDS, self.tables.sync, first=FIRST_SYNC_SECONDS)
            return
        config = self._config
        is_guarded = config.acl_enable or config.tls_server_mode == ENFORCING
        if is_guarded and not config.ha_listen_port:
            _log.info(
                "no port for slaves is open: name one (haListenPort); it has no accounts, no TLS"
            )
            return
        is_free = not config.ha_listen_port and not config.listen_port
        try:
            await self._server.open(0 if is_free else self._identity.wanted_ha_port)
        except ConfigError as error:
            if config.ha_listen_port or config.is_sync_master:
                raise
            _log.warning("no slave can connect: %s", error)
        self._identity.ha_port = self._server.port

    async def stop(self) -> None:
        """Close the port of a master, or what a slave asks its master by. Idempotent."""
        await self._server.close()
        if self.tables is not None:
            await self.tables.close()
