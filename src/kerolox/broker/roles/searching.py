"""A slave that has nothing to follow looks for its master.

A slave hears of its master in the answers to its registrations, of which RocketMQ's makes one every
``registerNameServerPeriod``. One that starts before its master, or whose master comes back at
another address, would follow half a minute late, and until then all that is acknowledged is on one
machine. So it asks the name servers each second who has its name, those of RocketMQ too, and
registers at once when they name a master that it does not know.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.base import Base
from kerolox.broker.replication.replication import Peers
from kerolox.broker.roles.fencing import addresses_of
from kerolox.protocol.codes import MASTER_ID
from kerolox.remoting.client import RemotingClient

SEARCH_SECONDS = 1.0
"""Between two checks, each of one small request to every name server."""

AGAIN_SECONDS = 5.0
"""Between two registrations for the same master, which may not say where it sends its log."""

LOG_SECONDS = 600.0
"""Between two lines of the log that say that it still waits."""

_log = logging.getLogger(__name__)


class MasterSearch:
    """The search of one broker; a master has none."""

    def __init__(self, base: Base, client: RemotingClient, peers: Peers) -> None:
        """Asks nobody before :meth:`poll`. ``base`` has the address of this broker, which is not
        its own master; ``peers`` know what is followed, and tell name servers of this broker.
        """
        self._settings = base.settings
        self._client = client
        self._peers = peers
        self._identity = base.identity
        self._registered_at: dict[str, float] = {}
        """Address of a master → when it made this broker register."""
        self._logged_at = 0.0
        """When it was said that a master is waited for; 0: it is not."""

    async def poll(self) -> None:
        """Look once, where it is needed."""
        replication = self._peers.replication
        follower, tables = replication.follower, replication.tables
        if follower is None or tables is None or (follower.is_following and tables.master):
            self._registered_at.clear()
            self._logged_at = 0.0
            return
        servers = self._settings.current.name_servers
        if not servers:
            return
        named = await asyncio.gather(
            *(
                addresses_of(self._client, each, self._settings.current.broker_name)
                for each in servers
            )
        )
        masters = {each[MASTER_ID] for each in named if MASTER_ID in each} - {
            self._identity.address
        }
        if follower.has_address and tables.master:
            masters.discard(tables.master)
        elif not follower.has_address:
            self._log_waiting(masters)
        now = asyncio.get_running_loop().time()
        for address in masters:
            if now - self._registered_at.get(address, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._registered_at[address] = now
                self._peers.registration.soon()
        for gone in self._registered_at.keys() - masters:
            del self._registered_at[gone]

    def _log_waiting(self, masters: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        if self._logged_at and now - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = now
        name = self._settings.current.broker_name
        if masters:
            _log.info("the master of %s is %s", name, ", ".join(sorted(masters)))
            self._logged_at = 0.0
            return
        _log.warning(
            "this slave waits for its master: no name server knows one of the name %s; it is "
            "looked for each second, and nothing is copied until then",
            name,
        )
