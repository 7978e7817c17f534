"""The client instance: what producers and consumers share (``MQClientInstance``).

It owns the connections, the routes, and one heartbeat that names all groups. It hands requests of
brokers to the member that they are for. A client that stands alone has an instance of its own;
those that a connection made, and those with the same client id, share one. It is open while someone
holds it.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kerolox import owners
from kerolox.client.aio.network.addressing import ADDRESS_FIRST_MS, ADDRESS_INTERVAL_MS
from kerolox.client.aio.network.background import PeriodicTasks
from kerolox.client.aio.network.cluster import Cluster, RouteListener
from kerolox.client.aio.network.filter_classes import upload_filter_classes
from kerolox.client.core.addressees import addressees
from kerolox.client.core.heartbeat import ConsumerFacts, heartbeat_body
from kerolox.errors import ClientError, KeroloxError
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.client import RequestHandler

if TYPE_CHECKING:
    from kerolox.client.aio.network.addressing import AddressServer
    from kerolox.client.aio.settings import ClientSettings
    from kerolox.client.core.routes import TopicRoute
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

UNREGISTER_SECONDS_MAX = 1.0
"""How long a client that closes waits for the brokers to take note."""

LOST_POLLS_MS = (300, 1_000, 2_500)
"""When after the connection to a master closed its topics are looked up: a controller may have
elected another one. All clients lose theirs together, so each waits up to twice as long."""

HEARTBEAT_FIRST_MS = 1_000
"""When after its start brokers hear of a member that does not send them heartbeats itself."""


class Member(NamedTuple):
    """A producer or consumer, as its instance sees it."""

    group: str
    topics: Callable[[], Iterable[str]]
    """Those in use: their routes are polled, their brokers get heartbeats."""
    on_request: RequestHandler
    on_route: RouteListener | None = None
    consumer: Callable[[], ConsumerFacts] | None = None
    """What brokers hear of a consumer; None: it is a producer."""
    on_gone: Callable[[str], object] | None = None
    """Told of a topic in use that is gone."""
    holds: Callable[[str], bool] = lambda topic: False
    """Whether it goes on with a topic that is gone: it has queues of it."""
    waits_for: Callable[[str], bool] = lambda correlation_id: False
    """Whether it waits for the reply to a request with this id."""

    @property
    def is_consumer(self) -> bool:
        """A producer otherwise."""
        return self.consumer is not None


class ClientInstance:
    """Connections, routes, heartbeats and requests of brokers, for all members."""

    def __init__(
        self,
        client_id: str,
        name_servers: tuple[str, ...],
        address_server: AddressServer | None,
        settings: ClientSettings,
    ) -> None:
        """Nothing is opened yet. ``client_id``: who all members are to brokers. ``address_server``
        reports name servers when none are given. ``settings``: of whoever made it.
        """
        self.client_id = client_id
        self.settings = settings
        self._name_servers = name_servers
        self._address_server = address_server
        self._made_in = owners.generation()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._holders: dict[object, None] = {}
        self._closing: dict[object, Cluster] = {}
        """By the last holder, which closes it."""
        self._claims: dict[object, Member] = {}
        """By holder, from its start on: no other member may take the group."""
        self._members: list[Member] = []
        """Those that brokers hear of."""
        self._background = self._new_background()
        self._finding: asyncio.Task[None] | None = None
        self._lost: set[str] = set()
        """Addresses of masters whose successors are searched for."""

    # -- open and close ---------------------------------------------------------------------------
    @property
    def holders(self) -> list[object]:
        """Who uses it now."""
        return list(self._holders)

    def open(self, holder: object, member: Member | None = None) -> Cluster:
        """Use it until :meth:`drop`; the first opens it. ``member``: the holder's, if it has one:
        no other gets the group. ClientError: it is open in another event loop, or another member
        has the group.
        """
        if self._cluster is not None and self._loop is not asyncio.get_running_loop():
            if self._loop is not None and not self._loop.is_closed():
                raise ClientError(owners.in_other_loop("the connection"))
            self.abandon()
        if member is not None:
            self._claim(holder, member)
        self._holders[holder] = None
        if self._cluster is None:
            self._cluster = self._opened()
        return self._cluster

    def _opened(self) -> Cluster:
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        cluster = Cluster(
            self._name_servers,
            client_id=self.client_id,
            api_timeout_ms=settings.api_timeout_ms,
            on_request=self._asked,
            rpc_hook=settings.rpc_hook,
            address_server=self._address_server,
            credentials=settings.credentials,
            tls=settings.tls,
            serialize_type=settings.header_encoding,
            on_route=self._learned,
            on_failure=settings.on_failure,
            on_disconnect=self._disconnected,
        )
        every = self._background.every
        every(settings.route_poll_interval_ms, self.poll, "route poll")
        every(settings.heartbeat_interval_ms, self.send_heartbeat, "heartbeat")
        if self._address_server is not None:
            find = cluster.find_name_servers
            every(ADDRESS_INTERVAL_MS, find, "looking for name servers", first_ms=ADDRESS_FIRST_MS)
            self._finding = self._background.start(find())
        known = _open_here().get(self.client_id)
        if known is None or known._cluster is None:
            _open_here()[self.client_id] = self
        return cluster

    async def ready(self) -> None:
        """Wait until the name servers are known, or can't be found out."""
        if self._finding is not None:
            await asyncio.wait([self._finding])

    async def leave(self, holder: object) -> None:
        """One holder ends; with the last one all is closed. :meth:`drop` follows."""
        self._holders.pop(holder, None)
        self._remove(holder)
        if not self._holders and self._cluster is not None:
            self._closing[holder] = cluster = self._cluster
            stopped = self._detach()
            await asyncio.gather(*stopped, return_exceptions=True)
            await cluster.close()

    def drop(self, holder: object) -> None:
        """A holder has ended, cleanly or not; what only it had open is closed at once."""
        self._holders.pop(holder, None)
        self._remove(holder)
        cluster = self._closing.pop(holder, None)
        if cluster is None and not self._holders and self._cluster is not None:
            cluster = self._cluster
            self._detach()
        if cluster is not None:
            cluster.abort()

    def abandon(self) -> None:
        """Its loop has ended, and all that ran there with it."""
        self._holders.clear()
        self._closing.clear()
        self._claims.clear()
        self._members.clear()
        self._cluster = self._finding = None
        self._background = self._new_background()

    def is_last(self, holder: object) -> bool:
        """Nobody but this one uses it."""
        return self._holders.keys() <= {holder}

    def _new_background(self) -> PeriodicTasks:
        return PeriodicTasks(self.settings.on_failure)

    def _detach(self) -> list[asyncio.Task[None]]:
        """Whoever opens it from now on gets connections of its own; the tasks that end."""
        background, self._background = self._background, self._new_background()
        self._cluster = self._finding = None
        return background.cancel()

    # -- members ----------------------------------------------------------------------------------
    def shared(self, member: Member | None = None) -> ClientInstance:
        """The one that is open here under the same client id, if the member may use it too; else
        this one (``getOrCreateMQClientInstance``)."""
        found = _open_here().get(self.client_id)
        if (
            found is None
            or found._made_in != owners.generation()
            or found._cluster is None
            or found._sources() != self._sources()
            or (member is not None and found._has(member))
        ):
            return self
        return found

    def _sources(self) -> tuple[object, ...]:
        """What members must agree on."""
        url = None if self._address_server is None else self._address_server.url
        return self._name_servers, url, self.settings.of_instance()

    def _has(self, member: Member) -> bool:
        return any(
            each.group == member.group and each.is_consumer == member.is_consumer
            for each in self._claims.values()
        )

    def _claim(self, holder: object, member: Member) -> None:
        if self._has(member):
            kind = "consumer" if member.is_consumer else "producer"
            raise ClientError(
                f"the connection has a {kind} of group {member.group!r} already; use that one, or"
                " close it first"
            )
        self._claims[holder] = member

    def join(self, holder: object) -> None:
        """The holder's member works: brokers hear of it with the next heartbeat."""
        self._members.append(self._claims[holder])

    def _remove(self, holder: object) -> None:
        member = self._claims.pop(holder, None)
        if member in self._members:
            self._members.remove(member)

    def topics(self) -> list[str]:
        """Those of all members."""
        return list(dict.fromkeys(topic for member in self._members for topic in member.topics()))

    def is_used(self, topic: str) -> bool:
        """A member has it in use."""
        return topic in self.topics()

    # -- brokers ----------------------------------------------------------------------------------
    async def poll(self, topics: Iterable[str] | None = None) -> None:
        """Ask for the routes of some topics, or of all in use. Members hear of what comes, and of
        topics that are gone: these are polled on, and their brokers forgotten."""
        cluster = self._cluster
        for topic in list(self.topics() if topics is None else topics):
            if cluster is not None:
                route = await cluster.refresh(topic)
                if route is None and topics is None and await cluster.is_gone(topic):
                    self._forget(cluster, topic)

    def _disconnected(self, address: str) -> None:
        """A connection closed. Where a master was, another broker may have its place soon."""
        cluster = self._cluster
        if cluster is None or address in self._lost or not cluster.mastered_at(address):
            return
        self._lost.add(address)
        self._background.start(self._find_successor(cluster, address))

    async def _find_successor(self, cluster: Cluster, address: str) -> None:
        before_ms = 0
        share = 1 + random.random()
        try:
            for at_ms in LOST_POLLS_MS:
                await asyncio.sleep((at_ms - before_ms) * share / 1000)
                before_ms = at_ms
                topics = cluster.mastered_at(address)
                if not topics:
                    return
                with suppress(KeroloxError):
                    await self.poll(topics)
        finally:
            self._lost.discard(address)

    def _forget(self, cluster: Cluster, topic: str) -> None:
        if any(member.holds(topic) for member in self._members):
            return
        cluster.drop(topic)
        for member in self._members:
            if member.on_gone is not None:
                member.on_gone(topic)

    async def send_heartbeat(self, topics: Iterable[str] | None = None) -> None:
        """Tell the brokers of some topics, or of all in use, of all members."""
        cluster = self._cluster
        if cluster is None or not self._members:
            return
        consumers = [member.consumer() for member in self._members if member.consumer is not None]
        producers = [member.group for member in self._members if member.consumer is None]
        body = heartbeat_body(self.client_id, producer_groups=producers, consumers=consumers)
        await cluster.send_to_all(
            RequestCode.HEART_BEAT,
            body=body,
            topics=self.topics() if topics is None else topics,
            masters_only=not consumers,
        )
        await upload_filter_classes(cluster, consumers)

    async def unregister_client(self, holder: object, cluster: Cluster) -> None:
        """Tell the brokers that a holder's member leaves its group: the rest takes over at once."""
        member = self._claims.get(holder)
        if member in self._members:
            topics = dict.fromkeys([*member.topics(), *self.topics()])
            self._members.remove(member)  # no heartbeat names it any more
            await self._unregister(cluster, member, topics)

    async def leave_topics(self, holder: object, cluster: Cluster, topics: Iterable[str]) -> None:
        """Have brokers forget the holder's member that have none of our topics but these."""
        left = set(topics)
        await self._unregister(cluster, self._claims[holder], left, but_not=self.topics())
        for topic in left.difference(self.topics()):
            cluster.forget(topic)

    async def _unregister(
        self, cluster: Cluster, member: Member, topics: Iterable[str], but_not: Iterable[str] = ()
    ) -> None:
        group = "consumerGroup" if member.is_consumer else "producerGroup"
        await cluster.send_to_all(
            RequestCode.UNREGISTER_CLIENT,
            {"clientID": self.client_id, group: member.group},
            topics=topics,
            but_not=but_not,
            masters_only=False,
            timeout_seconds=UNREGISTER_SECONDS_MAX,
        )

    def _learned(self, topic: str, route: TopicRoute, is_new: bool) -> None:
        for member in self._members:
            if member.on_route is not None:
                member.on_route(topic, route, is_new)

    async def _asked(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        """Hand a request of a broker to those that it is for."""
        response = None
        for member in addressees(command, self._members):
            response = await member.on_request(command, connection)
        return response


_open_by_loop: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, ClientInstance]
] = weakref.WeakKeyDictionary()


def _open_here() -> weakref.WeakValueDictionary[str, ClientInstance]:
    """The instances that were opened in this event loop, by client id."""
    return _open_by_loop.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
