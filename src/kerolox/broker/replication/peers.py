"""Whom one broker speaks to by itself: name servers, and its master or its slaves."""

from __future__ import annotations

from kerolox.broker.access.guards import Guards
from kerolox.broker.config import BrokerSettings
from kerolox.broker.identity import Identity
from kerolox.broker.replication.replication import Replication
from kerolox.broker.replication.resync import Restart
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.role import BrokerRole
from kerolox.broker.services.registration import Registration
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables
from kerolox.kernel import StoreKernel


class Peers:
    """The registration and the part in replication."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: StoreKernel,
        identity: Identity,
        guards: Guards,
        tables: Tables,
        writing: Writing,
        waits: SlaveWaits,
        restart: Restart,
    ) -> None:
        """Nobody is asked or told. ``restart`` has the log of a slave cut.

        Raises:
            ConfigError: a file of TLS or of the account can't be used.
        """
        self.registration = Registration(settings, role, identity, tables)
        self.replication = Replication(
            settings,
            role,
            identity,
            store,
            tables,
            writing.schedule,
            waits,
            self.registration,
            restart,
            guards.access.refuse_slave,
            guards.tls,
        )
