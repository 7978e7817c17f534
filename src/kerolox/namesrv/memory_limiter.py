"""How much of a name server's tables there is, and who may have it.

The tables are bounded in entries and in bytes. The brokers of one host have at most half of what
those of others leave, so that one host alone fills no table.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.errors import KeroloxError
from kerolox.protocol.registration import TOPICS_MAX
from kerolox.text import printable

BROKERS_MAX = 2_048
"""Addresses of brokers; further ones are refused."""

BROKERS_OF_CONNECTION_MAX = 64
"""Those that one connection may register."""

ENTRIES_OF_BROKER_MAX = TOPICS_MAX + TOPICS_MAX // 4
"""Topics of one broker name: as many as a broker has, and some that it has no more."""

ENTRIES_MAX = 1_000_000
"""Topics of all broker names together."""

ROUTES_BYTES_MAX = 256 * 1024 * 1024
"""Memory of all topics, as counted by ``TOPIC_BYTES`` and ``ENTRY_BYTES``."""

TOPIC_BYTES = 280
"""What a topic costs, besides its name."""
ENTRY_BYTES = 80
"""What it costs on each broker name."""


class TablesFullError(KeroloxError):
    """A table is full; the text says how full, and what to do."""


@dataclass(slots=True)
class _Share:
    """What the brokers of one host have."""

    addresses: int = 0
    entries: int = 0
    bytes: int = 0


class MemoryLimiter:
    """Counts what is in the tables, in all and by host."""

    def __init__(self) -> None:
        self.addresses = 0
        """Addresses of brokers."""
        self.entries = 0
        """Topics of all broker names."""
        self.bytes = 0
        """What they cost."""
        self.shares: dict[str, _Share] = {}
        """host → what is its part of these."""

    def check_address(self, host: str, of_connection: int, who: str) -> None:
        """TablesFullError unless one more broker of that host, and on a connection with so many,
        has space.
        """
        own = self._share(host).addresses
        if not _fits(own, self.addresses, 1, BROKERS_MAX):
            raise TablesFullError(
                f"{self.addresses} brokers are registered, {own} from {host}, and there is no "
                f"space for {who}"
            )
        if of_connection >= BROKERS_OF_CONNECTION_MAX:
            raise TablesFullError(
                f"{of_connection} brokers are registered on this connection; {who} needs another "
                "one"
            )

    def add_entry(self, host: str, topic: str, broker_name: str, of_broker: int, new: bool) -> None:
        """Count one more topic of a broker that has so many; ``new``: no broker has it yet.
        TablesFullError: it has no space.
        """
        advice = "delete topics that nobody uses"
        if of_broker >= ENTRIES_OF_BROKER_MAX:
            raise TablesFullError(
                f"broker {printable(broker_name)} has {of_broker} topics at this name server, and "
                f"no space for another one; {advice}"
            )
        cost = _cost(topic, new)
        own = self._share(host)
        if not (
            _fits(own.entries, self.entries, 1, ENTRIES_MAX)
            and _fits(own.bytes, self.bytes, cost, ROUTES_BYTES_MAX)
        ):
            raise TablesFullError(
                f"this name server has {self.entries} topics of all brokers, {self.bytes} bytes, "
                f"{own.entries} of brokers from {host}, and no space for another one; {advice}"
            )
        self._count(host, entries=1, cost=cost)

    def drop_entry(self, host: str, topic: str, last: bool) -> None:
        """A broker has that topic no more; ``last``: none has."""
        self._count(host, entries=-1, cost=-_cost(topic, last))

    def add_address(self, host: str) -> None:
        """One more broker of that host."""
        self._count(host, addresses=1)

    def drop_address(self, host: str) -> None:
        """One broker of that host less."""
        self._count(host, addresses=-1)

    def _share(self, host: str) -> _Share:
        return self.shares.get(host) or _Share()

    def _count(self, host: str, *, addresses: int = 0, entries: int = 0, cost: int = 0) -> None:
        """Something came or went. Where several hosts have a topic, its name is the first one's
        when it comes and the last one's when it goes. A share may be off by that, the sums not."""
        self.addresses += addresses
        self.entries += entries
        self.bytes += cost
        share = self.shares.setdefault(host, _Share())
        share.addresses += addresses
        share.entries += entries
        share.bytes += cost
        if not share.addresses and not share.entries:
            del self.shares[host]


def _cost(topic: str, with_name: bool) -> int:
    return ENTRY_BYTES + (TOPIC_BYTES + len(topic) if with_name else 0)


def _fits(own: int, of_all: int, more: int, most: int) -> bool:
    """A host may add so much when what is free after it is no less than what the host has."""
    return own <= most - of_all - more
