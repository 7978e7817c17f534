"""The part of a broker in replication, by its role: a master's port, or a slave's two clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kerolox.broker.access.guards import Guards
from kerolox.broker.base import Base
from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.server import SlaveServer
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.services.background import BackgroundTasks
from kerolox.broker.services.registration import Registration
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables
from kerolox.errors import ConfigError
from kerolox.protocol.extensions.roles import RoleStatus
from kerolox.role_settings import ENFORCING

if TYPE_CHECKING:
    from kerolox.broker.replication.auto_switch_service import AutoSwitchService
    from kerolox.broker.replication.follower import Follower
    from kerolox.broker.replication.resync import Restart
    from kerolox.broker.replication.tables import SlaveTables

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

    def __init__(
        self,
        base: Base,
        server: SlaveServer,
        make_tables: Callable[[Callable[[RoleStatus], None]], SlaveTables],
        registration: Registration,
        restart: Restart | None = None,
        service: AutoSwitchService | None = None,
    ) -> None:
        """Nothing is opened before :meth:`start`; the identity of ``base`` gets the port of a
        master then. ``make_tables`` makes what a slave takes from its master; its argument is
        called with what the master says of itself. ``service``: of a broker under a controller.
        """
        self._settings = base.settings
        self._role = base.role
        self._identity = base.identity
        self._store = base.store
        self._restart = restart
        self._service = service
        self._background = BackgroundTasks()
        self._make_tables = make_tables
        self._on_status: list[Callable[[RoleStatus], None]] = []
        self._server = server
        self.waits = server.waits
        self.follower: Follower | None = None
        self.tables: SlaveTables | None = None
        if self._role.current.is_slave:
            self._make_slave()
        self._is_following = False
        """Its tasks run."""
        registration.subscribe(on_master=self._named)

    def subscribe(self, on_status: Callable[[RoleStatus], None]) -> None:
        """Have a function be called with what a slave's master says of itself."""
        self._on_status.append(on_status)

    def _make_slave(self) -> tuple[Follower, SlaveTables]:
        from kerolox.broker.replication.follower import Follower

        self.follower = Follower(
            self._settings, self._role, self._store, self._restart, self._service
        )
        self.tables = self._make_tables(self._note_status)
        return self.follower, self.tables

    def _note_status(self, status: RoleStatus) -> None:
        for on_status in self._on_status:
            on_status(status)

    def _named(self, ha_address: str, address: str) -> None:
        """A name server names the master. Under a controller that is the one who does so, and a
        name server may know an earlier one."""
        is_known = self.tables is not None and address == self.tables.master
        if self._service is None or is_known:
            self.set_master(ha_address, address)

    def set_master(self, ha_address: str, address: str) -> None:
        """What a name server says of a slave's master."""
        if self.follower is not None and self.tables is not None:
            self.follower.set_master(ha_address)
            is_other = address not in ("", self.tables.master)
            self.tables.set_master(address)
            if is_other and self._is_following:
                # Whoever takes its place needs the topics of what it copies from now on.
                self._background.run(self.tables.sync())

    @property
    def port(self) -> int:
        """Where a master listens for slaves; 0: nowhere."""
        return self._server.port

    async def start(self) -> None:
        """Listen, or follow."""
        if self.follower is None or self.tables is None:
            await self.listen(is_sync=self._role.current.is_sync_master)
        else:
            self._begin_to_follow(self.follower, self.tables, FIRST_SYNC_SECONDS)

    def _begin_to_follow(self, follower: Follower, tables: SlaveTables, first: float) -> None:
        self._is_following = True
        self._background.run(follower.run())
        self._background.repeat(SYNC_SECONDS, tables.sync, first=first)

    async def listen(self, *, is_sync: bool) -> None:
        """Open the port of a master. ``is_sync``: its senders wait for slaves. ConfigError: it
        can't be opened, where it was named or is needed.
        """
        config = self._settings.current
        missing = _missing_guards(config)
        if missing and not config.ha_listen_port:
            _log.info("no port for slaves is open: %s; or name one (haListenPort)", missing)
            return
        is_free = not config.ha_listen_port and not config.listen_port
        try:
            await self._server.open(0 if is_free else self._identity.wanted_ha_port)
        except ConfigError as error:
            if config.ha_listen_port or is_sync:
                raise
            _log.warning("no slave can connect: %s", error)
        self._identity.ha_port = self._server.port

    async def follow(self, ha_address: str, address: str) -> None:
        """A master became a slave, or a slave's master is another one: follow that. ``ha_address``:
        where it sends its log; empty: a name server says. ``address``: where it has its tables;
        empty: the same.
        """
        await self.stop()
        self._identity.ha_port = 0
        self.waits.begin_anew()
        follower, tables = self._make_slave()
        self.set_master(ha_address, address)
        # At once: should that master be gone soon, it is known what it was, and what it had.
        self._begin_to_follow(follower, tables, 0.0)

    async def stop_listening(self) -> None:
        """Close the port of a master."""
        await self._server.close()
        self._identity.ha_port = 0

    async def stop_following(self) -> None:
        """A slave becomes a master: let the log be."""
        self._is_following = False
        await self._background.stop()
        if self.tables is not None:
            await self.tables.close()
        self.follower = self.tables = None

    async def stop(self) -> None:
        """Close the port of a master, or what a slave asks its master by. Idempotent."""
        self._is_following = False
        await self._background.stop()
        await self._server.close()
        if self.tables is not None:
            await self.tables.close()


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
        service: AutoSwitchService | None = None,
    ) -> None:
        """Nobody is asked or told. ``restart`` has the log of a slave cut. ``service``: of a broker
        under a controller."""
        self.registration = Registration(base, tables)
        door = SlaveServer(
            base.config,
            base.store,
            waits,
            guards.access.refuse_slave,
            guards.tls,
            None if service is None else service.link_to_slave,
        )
        copied = partial(_slave_tables, base, tables, writing)
        self.replication = Replication(base, door, copied, self.registration, restart, service)


def _slave_tables(
    base: Base, tables: Tables, writing: Writing, on_status: Callable[[RoleStatus], None]
) -> SlaveTables:
    from kerolox.broker.replication.tables import SlaveTables

    return SlaveTables(base, tables, writing.schedule, writing.timer, on_status)


def _missing_guards(config: BrokerConfig) -> str:
    """What the port for slaves lacks that the main port has; empty: nothing. Whoever connects gets
    every message, so such a port is not opened unless somebody names it."""
    lacks = []
    if config.acl_enable and not (config.ha_acl_enable or config.ha_allowed):
        lacks.append(
            "aclEnable asks for accounts there: have slaves show one (haAclEnable), or name them "
            "(haAllowedSlaves)"
        )
    if config.tls_server_mode == ENFORCING and config.ha_tls_mode != ENFORCING:
        lacks.append("tls.server.mode=enforcing, and there plain bytes may pass (haTlsMode)")
    return "; ".join(lacks)
