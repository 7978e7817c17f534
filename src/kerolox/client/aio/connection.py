"""One client for a process: what owns connections, routes and heartbeats for all that it makes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeVar

from kerolox import owners
from kerolox.addresses import local_address
from kerolox.client.aio.client import Client, Maker, is_made_by, share
from kerolox.client.aio.consumer_settings import (
    LitePullConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from kerolox.client.aio.consumers.lite_pull_consumer import LitePullConsumer
from kerolox.client.aio.consumers.pull_consumer import PullConsumer
from kerolox.client.aio.consumers.push_consumer import PushConsumer
from kerolox.client.aio.consumers.simple_consumer import SimpleConsumer
from kerolox.client.aio.life import LifeCycle
from kerolox.client.aio.network.addressing import sources_of
from kerolox.client.aio.network.identity import client_id_of, namespace_of
from kerolox.client.aio.network.instance import ClientInstance
from kerolox.client.aio.producers.producer import Producer
from kerolox.client.aio.producers.transaction import TransactionProducer
from kerolox.client.aio.settings import ClientSettings, ProducerSettings
from kerolox.client.core.arguments import name_server_text
from kerolox.client.core.checking import checked
from kerolox.client.core.life import CLOSE_SECONDS_MAX, SENDS_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from kerolox.client.aio.network.access import Access
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.transaction import TransactionCheck

_Client = TypeVar("_Client", bound=Client)


@checked()
class Connection(LifeCycle):
    """Owns connections, routes and heartbeats; what is made from it shares them.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async with connect("127.0.0.1:9876") as connection:
            async with connection.producer("orders") as producer:
                await producer.send(Message("Orders", b"hello", keys="42"))

    Brokers know all of it as one client (``MQClientInstance``), with one heartbeat. A group has at
    most one producer and one consumer of it at a time. Closing it closes what was made from it;
    closing one of these leaves its group and keeps the rest.
    """

    def __init__(
        self, name_server: str | Iterable[str] = "", *, settings: ClientSettings | None = None
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            settings: what all that is made from it has in common.

        Raises:
            ConfigError: the name server is illegal.
        """
        self.settings: ClientSettings = settings or ClientSettings()
        self._given = name_server_text(name_server)
        self._made_in = owners.generation()
        self._namespace = namespace_of(self.settings.namespace, self._given)
        name_servers, address_server = sources_of(self._given, self.settings)
        client_id = client_id_of(
            self.settings.client_ip or local_address(),
            self.settings.instance_name,
            keep_default=False,
            unit_name=self.settings.unit_name,
        )
        self._instance = ClientInstance(client_id, name_servers, address_server, self.settings)
        self._maker = Maker(self.start, self._open_instance)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started" if self._cluster is None else "open"
        return f"<{type(self).__name__} {self.client_id}, {state}>"

    def __await__(self) -> Generator[object, None, Self]:
        """``await connect(...)`` is started."""
        return self.__aenter__().__await__()

    async def start(self) -> None:
        """Make ready. The first request to a broker opens its connection.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        await self._start(self._ready)

    async def _ready(self) -> None:
        self._hold(self._instance.shared())
        await self._instance.ready()

    async def close(self) -> None:
        """Close all that was made from it, consumers first, then all connections. Idempotent.

        It takes five seconds at most, or as long as the listeners of its consumers may.

        Whoever calls it meanwhile waits for the same end, which goes on when a caller is cancelled.
        """
        await super().close()

    @property
    def access(self) -> Access:
        """For requests of one's own over these connections, while it is open.

        Raises:
            ClientClosedError: it is not started, or closed.
        """
        return self._open_cluster()

    # -- what is made from it ---------------------------------------------------------------------
    def producer(self, group: str, *, settings: ProducerSettings | None = None) -> Producer:
        """A producer that shares the connections; start it, or use it in a with statement.

        Args:
            group: producer group.
            settings: all else; what it leaves at its default is as the connection has it.

        Raises:
            ConfigError: the group is illegal, or a setting is one that the connection has.
        """
        given = (settings or ProducerSettings()).within(self.settings)
        return self._joined(Producer(group, self._given, settings=given))

    def transaction_producer(
        self, group: str, *, check: TransactionCheck, settings: ProducerSettings | None = None
    ) -> TransactionProducer:
        """A producer of transactions that shares the connections.

        Args:
            group: producer group; all its members must be able to answer ``check``.
            check: says how a transaction ended.
            settings: as of :meth:`producer`.

        Raises:
            ConfigError: as :meth:`producer`.
        """
        given = (settings or ProducerSettings()).within(self.settings)
        return self._joined(TransactionProducer(group, self._given, check=check, settings=given))

    def push_consumer(
        self, group: str, *, settings: PushConsumerSettings | None = None
    ) -> PushConsumer:
        """A push consumer that shares the connections; subscribe, then start it.

        Args:
            group: consumer group; all its members must have the same subscriptions.
            settings: as of :meth:`producer`.

        Raises:
            ConfigError: as :meth:`producer`.
        """
        given = (settings or PushConsumerSettings()).within(self.settings)
        return self._joined(PushConsumer(group, self._given, settings=given))

    def pull_consumer(
        self, group: str, *, settings: PullConsumerSettings | None = None
    ) -> PullConsumer:
        """A pull consumer that shares the connections.

        Args:
            group: consumer group.
            settings: as of :meth:`producer`.

        Raises:
            ConfigError: as :meth:`producer`.
        """
        given = (settings or PullConsumerSettings()).within(self.settings)
        return self._joined(PullConsumer(group, self._given, settings=given))

    def lite_pull_consumer(
        self, group: str, *, settings: LitePullConsumerSettings | None = None
    ) -> LitePullConsumer:
        """A lite pull consumer that shares the connections; subscribe or assign, then start it.

        Args:
            group: consumer group; all its members must have the same subscriptions.
            settings: as of :meth:`producer`.

        Raises:
            ConfigError: as :meth:`producer`.
        """
        given = (settings or LitePullConsumerSettings()).within(self.settings)
        return self._joined(LitePullConsumer(group, self._given, settings=given))

    def simple_consumer(
        self, group: str, *, settings: SimpleConsumerSettings | None = None
    ) -> SimpleConsumer:
        """A simple consumer that shares the connections; subscribe, then start it.

        Args:
            group: consumer group; all its members must have the same subscriptions.
            settings: as of :meth:`producer`.

        Raises:
            ConfigError: as :meth:`producer`.
        """
        given = (settings or SimpleConsumerSettings()).within(self.settings)
        return self._joined(SimpleConsumer(group, self._given, settings=given))

    def _joined(self, client: _Client) -> _Client:
        return share(client, self._maker, self._instance)

    def _open_instance(self) -> ClientInstance:
        self._open_cluster()
        return self._instance

    # -- end --------------------------------------------------------------------------------------
    def _made(self) -> list[Client]:
        """What was made from it and is open."""
        return [each for each in self._instance.holders if is_made_by(each, self._maker)]

    def _waits_for_close(self) -> None:
        for client in self._made():
            client._waits_for_close()

    @property
    def _close_seconds(self) -> float:
        return max([CLOSE_SECONDS_MAX, *(client._close_seconds for client in self._made())])

    async def _leave(self, cluster: Cluster) -> None:
        seconds = self._close_seconds
        clients = self._made()
        try:
            # Listeners may send until they are done; but producers too need time to end.
            consumers = [each for each in clients if not isinstance(each, Producer)]
            closing = [asyncio.ensure_future(client.close()) for client in consumers]
            if closing:
                await asyncio.wait(closing, timeout=max(seconds - SENDS_SECONDS_MAX, 0.0))
            others = [each for each in clients if isinstance(each, Producer)]
            closing += [asyncio.ensure_future(client.close()) for client in others]
            if closing:
                await asyncio.wait(closing)
        finally:
            left = [each for each in self._instance.holders if each is not self]
            if left and left == self._made():
                cluster.abort()  # so that what takes too long ends with us


def connect(
    name_server: str | Iterable[str] = "", *, settings: ClientSettings | None = None
) -> Connection:
    """One client for a process, of which producers and consumers are made.

    ``async with connect(...) as connection`` and ``connection = await connect(...)`` start it.

    Args:
        name_server: ``host:port``, several joined by ``;`` or in a list; empty: ``$NAMESRV_ADDR``.
        settings: what all that is made from it has in common.

    Raises:
        ConfigError: the name server is illegal.
    """
    return Connection(name_server, settings=settings)
