"""What one client instance knows of the cluster: name servers, routes, broker addresses.

Each instance has its own ``Cluster`` with its own connections. It asks name servers in turn, from a
random start, and stays with one as long as it answers. Routes are fetched when they are first
needed and again every ``route_poll_interval_ms``; callers that need the same route at the same time
share one request. Broker addresses are those of the routes, so an offline broker vanishes with the
next poll, which comes soon when the connection to a master closes. A route stays when a name server
has none, since a restarted one has none for a while.
The topic is gone after ``GONE_POLLS`` polls without one, when no name server and no broker that is
there has it (:meth:`Cluster.is_gone`). Heartbeats and unregister requests go to the brokers of the
topics in use at once, each bounded by the API time limit.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.aio.network.access import Access, no_address, no_route
from kerolox.client.core.failures import note_failure
from kerolox.client.core.routes import MASTER_ID, TopicRoute
from kerolox.errors import (
    AccessDeniedError,
    BrokerSystemError,
    ClientClosedError,
    ClientError,
    ConnectError,
    KeroloxError,
    TopicNotFoundError,
)
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.fastjson import FastjsonError, items_of, loads, members_of
from kerolox.remoting.client import RemotingClient, RequestHandler, RpcHook
from kerolox.tasks import retrieve_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Mapping

    from kerolox.client.aio.network.addressing import AddressServer
    from kerolox.client.core.failures import FailureCallback
    from kerolox.security.credentials import Credentials
    from kerolox.security.tls import Tls

GONE_POLLS = 3
"""After so many polls in a row in which no name server knew a topic it may be gone."""

RouteListener = Callable[[str, TopicRoute, bool], None]
"""Takes a topic, its route, and whether it differs from what was known."""

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class Cluster(Access):
    """Name servers, routes and brokers of one client instance."""

    def __init__(
        self,
        name_servers: tuple[str, ...],
        *,
        client_id: str,
        api_timeout_ms: int = 3_000,
        on_request: RequestHandler | None = None,
        rpc_hook: RpcHook | None = None,
        address_server: AddressServer | None = None,
        credentials: Credentials | None = None,
        tls: Tls = False,
        serialize_type: SerializeType = SerializeType.JSON,
        on_route: RouteListener | None = None,
        on_failure: FailureCallback | None = None,
        on_disconnect: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_servers: ``host:port`` of each.
            client_id: who we are to brokers.
            api_timeout_ms: time limit of a request that is no send and no pull.
            on_request: answers requests of brokers.
            rpc_hook: sees each request and its response.
            address_server: reports name servers when none are given.
            credentials: what requests are signed with; None: they are not.
            tls: how connections are encrypted; False: they are not.
            serialize_type: of the headers of requests.
            on_route: told of each route that a name server gives.
            on_failure: told of what fails in the background.
            on_disconnect: told of the address when a connection closed.
        """
        super().__init__(
            RemotingClient(
                on_request=on_request,
                on_disconnect=on_disconnect,
                rpc_hook=rpc_hook,
                credentials=credentials,
                tls=tls,
                serialize_type=serialize_type,
            ),
            name_servers,
            api_timeout_ms / 1000,
            first=random.getrandbits(16),
        )
        self.client_id = client_id
        self.routes: dict[str, TopicRoute] = {}
        self.address_server = address_server
        self._on_route = on_route
        self.on_failure = on_failure
        """See ``ClientSettings.on_failure``."""
        self._fetching: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._missed: dict[str, int] = {}
        """Topics with a route that the last polls did not find → in how many polls."""

    # -- name servers --------------------------------------------------------------------------
    async def find_name_servers(self) -> None:
        """Ask the web server for the name servers, if there is one; failures are logged."""
        if self.address_server is None:
            return
        found = await self.address_server.fetch()
        if found and set(found) != set(self.name_servers):
            known = ", ".join(self.name_servers) or "none"
            _log.info("name servers are %s; they were %s", ", ".join(found), known)
            self._name_servers.addresses = found

    async def _in_order(self, ask: Callable[[str, float], Awaitable[_Result]]) -> _Result:
        if not self.name_servers and self.address_server is not None:
            raise ConnectError(f"{self.address_server.url} has told of no name server yet")
        return await super()._in_order(ask)

    # -- routes -------------------------------------------------------------------------------
    async def refresh(self, topic: str) -> TopicRoute | None:
        """Fetch a route and remember it; what was known stays when the topic is unknown now.
        ClientClosedError: the client was closed meanwhile.
        """
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.ensure_future(self.fetch_route(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
            task.add_done_callback(retrieve_error)
        # Others may wait for it too, so that a caller who goes away does not end it.
        await asyncio.wait([task])
        if task.cancelled():
            raise ClientClosedError("the client was closed before the route came")
        route = task.result()
        if route is not None:
            self.learn(topic, route)
        return route

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic. TopicRouteNotFoundError: no name server knows one. ConnectError:
        none answers.
        """
        route = self.routes.get(topic) or await self.refresh(topic)
        if route is None:
            raise no_route(topic, self.name_servers)
        return route

    def learn(self, topic: str, route: TopicRoute) -> None:
        """Remember a route."""
        self._missed.pop(topic, None)
        is_new = self.routes.get(topic) != route
        if is_new or any(
            self._addresses.get(broker.broker_name) != broker.addresses for broker in route.brokers
        ):
            # As the last one, so that its word on a broker's addresses is the one that counts. The
            # word of a route that nobody gives any more counts until then: of a topic that is gone.
            self.routes.pop(topic, None)
            self.routes[topic] = route
            self._collect_addresses()
        if self._on_route is not None:
            self._on_route(topic, route, is_new)

    def forget(self, topic: str) -> None:
        """The topic is in use no longer; brokers that no other topic has go with it."""
        self.routes.pop(topic, None)
        self._missed.pop(topic, None)
        self._collect_addresses()

    def drop(self, topic: str) -> None:
        """The topic is gone: forget it, and close the connections that only it needed."""
        before = {address for _, address in self._nodes(topic)}
        self.forget(topic)
        kept = {each for nodes in self._addresses.values() for each in nodes.values()}
        for address in before - kept - set(self.name_servers):
            self.remoting.disconnect(address)

    async def is_gone(self, topic: str) -> bool:
        """To be called after each poll that found no route of a topic; whether it is gone: its
        brokers get no heartbeats any more, but over connections that are open.

        A name server that was restarted knows no topics for a while, so all have to say so, and
        the brokers that are there must not have it either.
        """
        if topic not in self.routes:
            return False
        missed = self._missed[topic] = min(self._missed.get(topic, 0) + 1, GONE_POLLS + 1)
        if missed > GONE_POLLS:
            return True
        if missed < GONE_POLLS:
            return False
        if await self._is_nowhere(topic):
            _log.info("topic %s is gone: no name server and no broker has it", topic)
            self._missed[topic] = GONE_POLLS + 1
            return True
        if topic in self._missed:
            self._missed[topic] = GONE_POLLS - 1
        return False

    async def _is_nowhere(self, topic: str) -> bool:
        try:
            for server in self.name_servers:
                route = await self.fetch_route_from(server, topic)
                if route is not None:
                    self.learn(topic, route)
                    return False
        except KeroloxError:
            return False
        for _, address in list(self._nodes(topic)):
            if self.remoting.connection(address) is None:
                continue
            try:
                await self.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            except TopicNotFoundError:
                continue
            except KeroloxError:
                if self.remoting.connection(address) is None:
                    continue
            return False
        return True

    def _collect_addresses(self) -> None:
        self._addresses = {
            broker.broker_name: broker.addresses
            for route in self.routes.values()
            for broker in route.brokers
        }

    # -- brokers ------------------------------------------------------------------------------
    def master_address(self, broker_name: str) -> str | None:
        """The address of a broker's master, if a route has one."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def mastered_at(self, address: str) -> list[str]:
        """The topics of the brokers whose master is at an address."""
        return [
            topic
            for topic, route in self.routes.items()
            if any(self.master_address(each.broker_name) == address for each in route.brokers)
        ]

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of a broker's node for reading: the wanted one, else any."""
        addresses = self._addresses.get(broker_name, {})
        return addresses.get(broker_id) or next(iter(addresses.values()), None)

    async def read_address_of(self, topic: str, broker_name: str, broker_id: int = 0) -> str:
        """As :meth:`read_address`; asks for the route when it is not known. ClientError: the
        topic's route does not have the broker.
        """
        address = self.read_address(broker_name, broker_id)
        if address is None:
            await self.refresh(topic)
            address = self.read_address(broker_name, broker_id)
        if address is None:
            raise no_address(topic, broker_name)
        return address

    async def members(self, group: str, topic: str) -> list[str]:
        """The client ids of a consumer group, as any broker of a topic knows them.
        AccessDeniedError: the account may not ask. ClientError: the topic has no broker, or its
        answer is unreadable.
        """
        route = await self.route(topic)
        broker = random.choice(route.brokers) if route.brokers else None
        address = broker.any_address() if broker else None
        if address is None:
            raise ClientError(f"topic {topic!r} has no broker")
        try:
            response = await self.ask(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
            )
        except AccessDeniedError:
            raise
        except BrokerSystemError:
            # The broker knows no member of the group at all.
            return []
        try:
            members = members_of(loads(response.body))["consumerIdList"]
            return [str(item) for item in items_of(members)]
        except (FastjsonError, KeyError) as error:
            raise ClientError(f"consumer list of {address} is unreadable: {error!r}") from None

    def broker_addresses(
        self, topics: Iterable[str], *, masters_only: bool, but_not: Iterable[str] = ()
    ) -> list[str]:
        """Addresses of the brokers of these topics, as far as routes are known, without those of
        the topics ``but_not``."""
        left_out = {address for topic in but_not for _, address in self._nodes(topic)}
        return list(
            dict.fromkeys(
                address
                for topic in topics
                for broker_id, address in self._nodes(topic)
                if (broker_id == MASTER_ID or not masters_only) and address not in left_out
            )
        )

    def _nodes(self, topic: str) -> Iterator[tuple[int, str]]:
        """Id and address of each node of a topic."""
        route = self.routes.get(topic)
        is_gone = self._missed.get(topic, 0) > GONE_POLLS
        for broker in route.brokers if route is not None else ():
            for broker_id, address in self._addresses[broker.broker_name].items():
                if not is_gone or self.remoting.connection(address) is not None:
                    yield broker_id, address

    async def send_to_all(
        self,
        code: int,
        ext_fields: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
        topics: Iterable[str],
        but_not: Iterable[str] = (),
        masters_only: bool,
        timeout_seconds: float | None = None,
    ) -> None:
        """Send the same request to all brokers of some topics; failures are logged.

        It goes ahead of sends that wait for capacity, or a busy client would be taken for a dead
        one.
        """

        async def send(address: str) -> None:
            try:
                await self.ask(
                    address,
                    code,
                    ext_fields,
                    body=body,
                    timeout_seconds=timeout_seconds,
                    ahead=True,
                )
            except KeroloxError as error:
                what = f"request {code} to {address} failed"
                note_failure(self.on_failure, _log, what, error)

        addresses = self.broker_addresses(topics, masters_only=masters_only, but_not=but_not)
        await asyncio.gather(*(send(address) for address in addresses))

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._stop_fetching()
        await self.remoting.close()

    def abort(self) -> None:
        """Close all connections at once. Idempotent."""
        self._stop_fetching()
        self.remoting.abort()

    def _stop_fetching(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()
