"""Name servers: their addresses, their order, and requests for a route. No I/O.

Clients and tools (:class:`kerolox.client.aio.network.access.Access`) and the Spark source
(:mod:`kerolox.spark.network.routes`) ask this way. The one that answered last comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.protocol.routing.routes import route_of, route_request

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NameServers", "route_of", "route_request", "time_shares"]


class NameServers:
    """Addresses of name servers, in the order of asking."""

    def __init__(self, addresses: Iterable[str], *, first: int = 0) -> None:
        """``first``: the position, modulo their number, of the one that is asked first."""
        self.addresses = tuple(addresses)
        """``host:port`` of each, as given; may be replaced at any time."""
        self._first = first

    def in_order(self) -> tuple[str, ...]:
        """All of them once round, for one request."""
        first = self._first % max(len(self.addresses), 1)
        return self.addresses[first:] + self.addresses[:first]

    def prefer(self, address: str) -> None:
        """Ask this one first from now on: it has answered."""
        if address in self.addresses:
            self._first = self.addresses.index(address)


def time_shares(seconds: float, count: int) -> list[float]:
    """The time limits of ``count`` name servers, of the limit of one request. Each gets a part of
    it, so that silent ones leave time for the others; the last one gets all of it."""
    return [seconds / count] * (count - 1) + [seconds]
