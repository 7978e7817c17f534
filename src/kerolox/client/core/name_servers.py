"""Name servers: their addresses, which is asked next, and what is asked about a route. No I/O.

Clients and tools (:class:`kerolox.client.aio.network.access.Access`) and the Spark source
(:mod:`kerolox.spark.network.routes`) ask this way. The one that answered last comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.core.routes import TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Iterable


class NameServers:
    """Addresses of name servers in the order in which they are asked."""

    def __init__(self, addresses: Iterable[str], *, first: int = 0) -> None:
        """``first``: the position, modulo their number, of the one that is asked first."""
        self.addresses = tuple(addresses)
        """``host:port`` of each, as given; may be replaced at any time."""
        self._first = first

    def in_turn(self) -> tuple[str, ...]:
        """All of them once round, for one request."""
        first = self._first % max(len(self.addresses), 1)
        return self.addresses[first:] + self.addresses[:first]

    def prefer(self, address: str) -> None:
        """Ask this one first from now on: it has answered."""
        if address in self.addresses:
            self._first = self.addresses.index(address)


def time_shares(seconds: float, count: int) -> list[float]:
    """How long each of ``count`` name servers is waited for, of a time limit of one request: a part
    of it, so that silent ones leave time for the others; the last one all of it."""
    return [seconds / count] * (count - 1) + [seconds]


def route_request(topic: str) -> RemotingCommand:
    """Asks for the route of a topic (code 105)."""
    fields = {"topic": topic, "acceptStandardJsonOnly": True}
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def route_of(answer: RemotingCommand, address: str) -> TopicRoute | None:
    """The route in a name server's answer; None: it knows no such topic.

    Raises:
        BrokerError: the name server at ``address`` refuses.
        RemoteProtocolError: the body is no route.
    """
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    answer.raise_for_code(address)
    return TopicRoute.parse(answer.body) if answer.body else None
