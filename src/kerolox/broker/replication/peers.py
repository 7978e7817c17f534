"""Whom one broker speaks to by itself: name servers, and its master or its slaves."""

from __future__ import annotations

from functools import partial

from kerolox.broker.access.guards import Guards
from kerolox.broker.base import Base
from kerolox.broker.replication.replication import Replication
from kerolox.broker.replication.resync import Restart
from kerolox.broker.replication.server import SlaveServer
from kerolox.broker.replication.tables import SlaveTables
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.services.registration import Registration
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables


class Peers:
    """The registration and the part in replication."""

    def __init__(
        self,
        base: Base,
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
        self.registration = Registration(base, tables)
        door = SlaveServer(base.config, base.store, waits, guards.access.refuse_slave, guards.tls)
        copied = partial(SlaveTables, base, tables, writing.schedule)
        self.replication = Replication(base, door, copied, self.registration, restart)
