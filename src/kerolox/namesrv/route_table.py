"""Which broker has which topic: the five tables of a name server (``RouteInfoManager``).

Pure: it does no I/O and reads no clock; the time comes with each call, in milliseconds since the
epoch. A connection is whatever identifies one for the caller (an int here).

The rules, as RocketMQ has them:

- A registration puts ``broker id → address`` under the broker's name; the same address under
  another id is removed first (a slave that became master). Only a master's topics count, and only
  when its data version differs from the last one or that id was not there before. Topics that are
  missing in a later registration stay: only an unregistration, an expiry or a
  DELETE_TOPIC_IN_NAMESRV removes them.
- A broker is gone when it unregisters, when the connection that it registered on closes, or when it
  was silent for ``BROKER_EXPIRY_MS``. Its name leaves its cluster and all topics only with the last
  of its addresses.
- A route needs both queues and at least one broker that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.protocol.codes import Perm

if TYPE_CHECKING:
    from kerolox.protocol.bodies import DataVersion, TopicConfig

__all__ = [
    "BROKER_EXPIRY_MS",
    "MASTER_ID",
    "BrokerData",
    "LiveBroker",
    "QueueData",
    "RegisterResult",
    "RouteTable",
    "TopicRoute",
]

BROKER_EXPIRY_MS = 120_000
"""A broker that did not register for so long is gone."""

MASTER_ID = 0

_UNIT = 1
_UNIT_SUBSCRIPTION = 2

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueData:
    """The queues of one topic on one broker name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int


@dataclass(slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class LiveBroker:
    """When and how a broker address was last heard of."""

    last_update_ms: int
    data_version: DataVersion
    connection: int
    ha_address: str


@dataclass(slots=True)
class TopicRoute:
    """The answer to a route request."""

    queues: list[QueueData]
    brokers: list[BrokerData]
    filter_servers: dict[str, list[str]]


@dataclass(slots=True)
class RegisterResult:
    """What a slave is told of its master; both None for a master or when there is none."""

    ha_address: str | None = None
    master_address: str | None = None


class RouteTable:
    """Brokers, clusters and topics, as brokers registered them."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        """topic → broker name → its queues."""
        self.brokers: dict[str, BrokerData] = {}
        """broker name → its addresses."""
        self.clusters: dict[str, set[str]] = {}
        """cluster → broker names."""
        self.live: dict[str, LiveBroker] = {}
        """broker address → when it was last heard of."""
        self.filter_servers: dict[str, list[str]] = {}
        """broker address → filter servers; legacy."""

    # -- registration -------------------------------------------------------------------------
    def register(
        self,
        *,
        cluster: str,
        address: str,
        broker_name: str,
        broker_id: int,
        ha_address: str,
        data_version: DataVersion,
        topics: Iterable[TopicConfig],
        filter_servers: list[str] | None,
        connection: int,
        now_ms: int,
    ) -> RegisterResult:
        """Take a registration in.

        Args:
            filter_servers: None (a broker before 3.0.11): what is known stays.
            connection: the connection that it came on; the broker goes when that closes.
            now_ms: when it came.
            cluster: the broker's cluster.
            address: ``ip:port`` that clients connect to.
            broker_name: shared by a master and its slaves.
            broker_id: 0 for a master.
            ha_address: ``ip:port`` for replication.
            data_version: version of ``topics``.
            topics: all topics of the broker, or the changed ones.
        """
        self.clusters.setdefault(cluster, set()).add(broker_name)
        broker = self.brokers.get(broker_name)
        if broker is None:
            broker = self.brokers[broker_name] = BrokerData(cluster, broker_name)
        for other_id in [i for i, a in broker.addresses.items() if a == address and i != broker_id]:
            del broker.addresses[other_id]
        first = broker_id not in broker.addresses
        if broker_id == MASTER_ID and broker.addresses.get(MASTER_ID) != address:
            old = broker.addresses.get(MASTER_ID)
            _log.info("master of %s in %s is now %s, was %s", broker_name, cluster, address, old)
        broker.addresses[broker_id] = address
        if broker_id == MASTER_ID and (first or self.is_changed(address, data_version)):
            for topic in topics:
                self._put_queues(broker_name, topic)
        if address not in self.live:
            _log.info("broker %s (%s) registered", address, broker_name)
        self.live[address] = LiveBroker(now_ms, data_version, connection, ha_address)
        if filter_servers:
            self.filter_servers[address] = filter_servers
        elif filter_servers is not None:
            self.filter_servers.pop(address, None)
        return self._result_for(broker, broker_id)

    def is_changed(self, address: str, data_version: DataVersion) -> bool:
        """The broker's topics have another version than the one it registered last."""
        live = self.live.get(address)
        return live is None or live.data_version != data_version

    def data_version(self, address: str) -> DataVersion | None:
        """The version that a broker registered last."""
        live = self.live.get(address)
        return None if live is None else live.data_version

    def touch(self, address: str, now_ms: int) -> None:
        """A broker was heard of."""
        live = self.live.get(address)
        if live is not None:
            live.last_update_ms = now_ms

    # -- removal ------------------------------------------------------------------------------
    def unregister(self, *, cluster: str, address: str, broker_name: str, broker_id: int) -> None:
        """A broker says that it leaves. Takes it out by its id; unknown ones are ignored."""
        self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        broker = self.brokers.get(broker_name)
        if broker is None:
            return
        broker.addresses.pop(broker_id, None)
        _log.info("broker %s (%s) unregistered", address, broker_name)
        if not broker.addresses:
            self._remove_broker(broker_name, cluster)

    def connection_closed(self, connection: int, remote_address: str) -> list[str]:
        """The brokers that registered on this connection are gone; their addresses.

        When there is none, a broker whose address is the connection's own remote one is.
        """
        addresses = [a for a, live in self.live.items() if live.connection == connection]
        for address in addresses or [remote_address]:
            self._remove_address(address, "its connection closed")
        return addresses

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Take out the brokers that were silent too long; their addresses and connections."""
        expired = [
            (address, live.connection)
            for address, live in self.live.items()
            if live.last_update_ms + BROKER_EXPIRY_MS < now_ms
        ]
        for address, _connection in expired:
            self._remove_address(address, f"it was silent for {BROKER_EXPIRY_MS} ms")
        return expired

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic; with a cluster only on the brokers of that."""
        if not cluster:
            self.topics.pop(topic, None)
            return
        queues = self.topics.get(topic)
        if queues is None:
            return
        for broker_name in self.clusters.get(cluster, ()):
            queues.pop(broker_name, None)
        if not queues:
            del self.topics[topic]

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the write bit off all topics of a broker; how many."""
        return self._change_permission(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker readable and writable; how many."""
        return self._change_permission(broker_name, lambda _: Perm.READ | Perm.WRITE)

    # -- queries ------------------------------------------------------------------------------
    def route(self, topic: str) -> TopicRoute | None:
        """Queues and brokers of a topic; None unless there are both."""
        queues = self.topics.get(topic)
        if queues is None:
            return None
        brokers = [self.brokers[name] for name in queues if name in self.brokers]
        if not brokers:
            return None
        addresses = (address for broker in brokers for address in broker.addresses.values())
        filters = {a: self.filter_servers[a] for a in addresses if a in self.filter_servers}
        return TopicRoute(list(queues.values()), brokers, filters)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on any broker of a cluster; none for an unknown one."""
        names = self.clusters.get(cluster, set())
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers (each is a topic too), and the address of some broker."""
        names: dict[str, None] = {}
        for cluster, broker_names in self.clusters.items():
            names[cluster] = None
            names.update(dict.fromkeys(sorted(broker_names)))
        address = next((a for b in self.brokers.values() for a in b.addresses.values()), None)
        return list(names), address

    def unit_topics(self) -> list[str]:
        """Topics of a unit."""
        return self._topics_by_flag(lambda flag: flag & _UNIT != 0)

    def unit_subscribed_topics(self) -> list[str]:
        """Topics that a unit subscribes to."""
        return self._topics_by_flag(lambda flag: flag & _UNIT_SUBSCRIPTION != 0)

    def unit_subscribed_topics_of_no_unit(self) -> list[str]:
        """Topics that a unit subscribes to and that are of no unit."""
        return self._topics_by_flag(lambda flag: flag & (_UNIT | _UNIT_SUBSCRIPTION) == 2)

    # -- inside -------------------------------------------------------------------------------
    def _put_queues(self, broker_name: str, topic: TopicConfig) -> None:
        queues = QueueData(
            broker_name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
            topic.topic_sys_flag,
        )
        of_topic = self.topics.setdefault(topic.topic_name, {})
        if of_topic.get(broker_name) != queues:
            _log.debug("topic %s: %s", topic.topic_name, queues)
        of_topic[broker_name] = queues

    def _result_for(self, broker: BrokerData, broker_id: int) -> RegisterResult:
        master = broker.addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None or master not in self.live:
            return RegisterResult()
        return RegisterResult(self.live[master].ha_address, master)

    def _remove_address(self, address: str, reason: str) -> None:
        self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        for name, broker in list(self.brokers.items()):
            for broker_id in [i for i, a in broker.addresses.items() if a == address]:
                del broker.addresses[broker_id]
                _log.info("broker %s (%s, id %d) removed: %s", address, name, broker_id, reason)
            if not broker.addresses:
                self._remove_broker(name, broker.cluster)

    def _remove_broker(self, broker_name: str, cluster: str) -> None:
        """The last address of a name is gone: so is the name, in its cluster and all topics."""
        self.brokers.pop(broker_name, None)
        names = self.clusters.get(cluster)
        if names is not None:
            names.discard(broker_name)
            if not names:
                del self.clusters[cluster]
        for topic, queues in list(self.topics.items()):
            queues.pop(broker_name, None)
            if not queues:
                del self.topics[topic]

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            data = queues.get(broker_name)
            if data is not None:
                data.perm = int(change(data.perm))
                count += 1
        return count

    def _topics_by_flag(self, matches: Callable[[int], bool]) -> list[str]:
        """By the flag of each topic's first broker, as RocketMQ does."""
        return [
            topic
            for topic, queues in self.topics.items()
            if matches(next(iter(queues.values())).topic_sys_flag)
        ]
