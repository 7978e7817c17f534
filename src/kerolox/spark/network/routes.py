"""Routes for planning and for tasks: asked of all name servers, without an event loop.

A name server that has just started knows no topic until brokers register with it again. So "no such
topic" is believed when no name server is silent and one of those that say so knows brokers at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.client.aio.network.identity import checked_addresses
from kerolox.client.core.name_servers import (
    NameServers,
    route_of,
    route_request,
)
from kerolox.client.core.routes import MASTER_ID, TopicRoute
from kerolox.errors import (
    BrokerError,
    RemoteProtocolError,
    RemotingError,
)
from kerolox.protocol import fastjson
from kerolox.protocol.codes import Perm, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.routing.name_servers import raise_for_name_server
from kerolox.spark.network.connecting import Asker, Connector

TOPICS_LISTED_MAX = 1_000_000
"""Most topics that a name server may list."""

ANSWER_SECONDS_MAX = 3.0

Masters = dict[str, tuple[str, int]]
"""Of one topic, by broker name: the master's address and how many queues may be read there."""


@dataclass(slots=True)
class Lookup:
    """What the name servers said of some topics."""

    found: dict[str, Masters] = field(default_factory=dict)
    unreadable: dict[str, set[str]] = field(default_factory=dict)
    """Brokers by topic that the route has, but without a master or a queue that may be read."""
    unknown: set[str] = field(default_factory=set)
    certain: bool = False
    """Whether ``unknown`` can be believed."""
    failure: BrokerError | RemotingError | None = None
    """Why a name server gave no answer."""


class TopicNames(NamedTuple):
    """What the name servers list."""

    topics: frozenset[str]
    system: frozenset[str]
    """Names of clusters and brokers, which are topics too."""


class RouteFinder:
    """Asks name servers for routes, the one that answered last first. Belongs to one thread."""

    def __init__(
        self,
        addresses: Iterable[str],
        connector: Connector,
        *,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self.name_servers = NameServers(checked_addresses(tuple(addresses)))
        self._asker = Asker(connector, answer_seconds_max)

    def find(self, topics: Iterable[str]) -> Lookup:
        """The routes of ``topics``; what goes wrong is told in the result. RemoteProtocolError: a
        route is not readable.
        """
        lookup = Lookup(unknown=set(topics))
        knows_brokers = False
        for address in self.name_servers.in_order():
            if not lookup.unknown:
                break
            asked = sorted(lookup.unknown)
            try:
                self._ask(address, asked, lookup)
                if lookup.unknown:
                    knows_brokers |= self._knows_brokers(address)
            except RemoteProtocolError:
                raise
            except (BrokerError, RemotingError) as error:
                lookup.failure = error
                continue
            if len(lookup.unknown) < len(asked):
                self.name_servers.prefer(address)
        lookup.certain = knows_brokers and lookup.failure is None
        return lookup

    def addresses(self, topic: str, broker_name: str) -> dict[int, str]:
        """The addresses of a broker by broker id, master and slaves; empty: nobody knows now."""
        for address in self.name_servers.in_order():
            try:
                answer = self._asker.ask(address, [route_request(topic)])[0]
                route = route_of(answer, address)
            except (BrokerError, RemotingError):
                continue
            broker = route.broker(broker_name) if route else None
            if broker is not None:
                self.name_servers.prefer(address)
                return broker.addresses
        return {}

    def topics(self) -> TopicNames:
        """The names of all topics; an error: no name server answered, or one is not readable."""
        failure: BrokerError | RemotingError | None = None
        listed: set[str] = set()
        system: set[str] = set()
        answered = False
        for address in self.name_servers.in_order():
            try:
                listed |= self._names(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                system |= self._names(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
                answered = True
            except RemoteProtocolError:
                raise
            except (BrokerError, RemotingError) as error:
                failure = error
            if listed:
                # One that has just started knows none until brokers register with it again.
                break
        if failure is not None and not answered:
            raise failure
        return TopicNames(frozenset(listed), frozenset(system))

    def close(self) -> None:
        """Close the connections. Idempotent; the object can be used again."""
        self._asker.close()

    def _ask(self, address: str, topics: list[str], lookup: Lookup) -> None:
        answers = self._asker.ask(address, [route_request(topic) for topic in topics])
        for topic, answer in zip(topics, answers, strict=True):
            route = route_of(answer, address)
            if route is None:
                continue
            masters = _masters(route)
            lookup.found[topic] = masters
            lookup.unreadable[topic] = {b.broker_name for b in route.brokers} - masters.keys()
            lookup.unknown.discard(topic)

    def _knows_brokers(self, address: str) -> bool:
        command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = self._asker.ask(address, [command])[0]
        raise_for_name_server(answer, address)
        try:
            return bool(fastjson.members_of(fastjson.loads(answer.body)).get("brokerAddrTable"))
        except fastjson.FastjsonError as error:
            raise RemoteProtocolError(f"{address} sent no list of brokers: {error}") from error

    def _names(self, address: str, code: int) -> set[str]:
        answer = self._asker.ask(address, [RemotingCommand.request(code)])[0]
        raise_for_name_server(answer, address)
        try:
            listed = fastjson.items_of(
                fastjson.members_of(fastjson.loads(answer.body))["topicList"]
            )
        except (fastjson.FastjsonError, KeyError) as error:
            raise RemoteProtocolError(f"{address} sent no list of topics: {error!r}") from error
        names = {str(each) for each in listed}
        if len(names) > TOPICS_LISTED_MAX:
            raise RemoteProtocolError(f"{address} lists {len(names)} topics, over the limit")
        return names


def _masters(route: TopicRoute) -> Masters:
    addresses = {broker.broker_name: broker.addresses.get(MASTER_ID) for broker in route.brokers}
    return {
        queue.broker_name: (address, queue.read_queues)
        for queue in route.queues
        if queue.perm & Perm.READ and queue.read_queues
        if (address := addresses.get(queue.broker_name)) is not None
    }
