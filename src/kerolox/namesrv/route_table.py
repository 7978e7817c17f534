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

And those of our own: a claim on what a live broker has is refused (``namesrv/claims.py``). A name
is in one cluster at a time (its master's). The tables are bounded in entries and in bytes
(``namesrv/memory_limiter.py``).

What takes long is done in steps, so that others are served in between. Topics come in pieces
(:meth:`RouteTable.put_topics`). Those of a broker that is gone are out of all answers at once, and
out of memory after :meth:`RouteTable.sweep`.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from kerolox.namesrv.claims import (
    Claim,
    ContradictionError,
    LiveBroker,
    check_address,
    check_epoch,
    check_holder,
)
from kerolox.namesrv.memory_limiter import MemoryLimiter
from kerolox.protocol.bodies import DataVersion, TopicConfig
from kerolox.protocol.codes import MASTER_ID, Perm
from kerolox.text import printable

BROKER_EXPIRY_MS = 120_000
"""A broker that did not register for so long is gone."""

SWEPT_AT_ONCE = 64
"""A broker of more topics leaves memory in steps."""

PIECE = 512
"""Entries per step."""

KINDS_MAX = 1_024
"""Different queue numbers of a broker whose objects its topics share."""

_log = logging.getLogger(__name__)


class QueueData(msgspec.Struct, frozen=True, gc=False):
    """The queues of one topic on one broker name. Shared by its topics of the same numbers."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int
    life: int
    """The ``life`` of its :class:`BrokerData`; it does not count when that is another."""


@dataclass(slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    life: int = 0
    """No other broker that ever had this name has the same."""
    host: str = ""
    """Where it first came from; what its topics cost counts there."""
    epoch: int = 0
    """The highest that a master of this name said."""
    newest: str = ""
    """The address of that one."""
    topics: set[str] = field(default_factory=set)
    kinds: dict[tuple[int, int, int, int], QueueData] = field(default_factory=dict)

    def queues(self, read: int, write: int, perm: int, flag: int) -> QueueData:
        """The object for these numbers."""
        key = (read, write, perm, flag)
        found = self.kinds.get(key)
        if found is None:
            found = QueueData(self.broker_name, read, write, perm, flag, self.life)
            if len(self.kinds) < KINDS_MAX:
                self.kinds[key] = found
        return found


@dataclass(slots=True)
class TopicRoute:
    """The answer to a route request."""

    queues: list[QueueData]
    brokers: list[BrokerData]
    filter_servers: dict[str, list[str]]


@dataclass(slots=True)
class RegisterResult:
    """What a slave learns of its master, both None for a master or when there is none. And who
    claimed the broker's place since its last registration."""

    ha_address: str | None = None
    master_address: str | None = None
    challenger: str | None = None


class RouteTable:
    """Brokers, clusters and topics, as brokers registered them."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        """topic → broker name → its queues; perhaps of a broker that is gone."""
        self.brokers: dict[str, BrokerData] = {}
        """broker name → its addresses."""
        self.clusters: dict[str, set[str]] = {}
        """cluster → broker names."""
        self.live: dict[str, LiveBroker] = {}
        """broker address → when it was last seen."""
        self.filter_servers: dict[str, list[str]] = {}
        """broker address → filter servers; legacy."""
        self.limiter = MemoryLimiter()
        self._of_connection: dict[int, set[str]] = {}
        self._lives = itertools.count(1)
        self._gone: deque[tuple[BrokerData, Iterator[str]]] = deque()

    # -- registration -------------------------------------------------------------------------
    def start_registration(self, claim: Claim, now_ms: int) -> LiveBroker:
        """A broker registers: it is alive from here on, and goes with the connection of its claim.

        ContradictionError: a live broker has its place, or its address. TablesFullError: there are
        too many brokers.
        """
        address = claim.address
        live = self.live.get(address)
        broker = self.brokers.get(claim.broker_name)
        holder = (
            None if broker is None else self.live.get(broker.addresses.get(claim.broker_id, ""))
        )
        check_address(live, claim, now_ms)
        check_holder(holder, 0 if broker is None else broker.epoch, claim, now_ms)
        if broker is not None:
            check_epoch(broker.epoch, broker.newest, claim)
        if live is None:
            of_connection = len(self._of_connection.get(claim.connection, ()))
            self.limiter.check_address(claim.host, of_connection, claim.text)
        if holder is not None and holder.address != address:
            _log.warning(
                "broker %s takes the place of %s, which %s",
                claim.text,
                printable(holder.address),
                holder.silence(claim.connection, now_ms),
            )
            self._forget_live(holder.address)
        if live is not None and live.broker_name != claim.broker_name:
            self._remove_address(address, f"it is {claim.text} now")
            live = None
        broker = self._placed(claim)
        _log.debug("broker %s registers", claim.text)
        if live is None:
            _log.info("broker %s registered", claim.text)
            live = self.live[address] = LiveBroker(address, counted_at=claim.host)
            self.limiter.add_address(claim.host)
        elif claim.connection not in live.connections and live.others(claim.connection, now_ms):
            _log.warning(
                "broker %s registered on a further connection from %s, and an earlier one is open; "
                "if it did not lose that one, something else uses its name and address",
                claim.text,
                claim.host,
            )
        self._of_connection.setdefault(claim.connection, set()).add(address)
        for dropped in live.renew(claim, now_ms):
            self._drop_claim(dropped, address)
        return live

    def wants_topics(self, live: LiveBroker, data_version: DataVersion) -> bool:
        """The topics of that registration are news: only a master's ever are."""
        return live.broker_id == MASTER_ID and live.data_version != data_version

    def put_topics(self, live: LiveBroker, topics: Iterable[TopicConfig]) -> bool:
        """Take some topics of a registration in; False when its broker is gone meanwhile.
        TablesFullError: there are too many topics; those that came before stay.
        """
        broker = self.brokers.get(live.broker_name)
        if broker is None or self.live.get(live.address) is not live:
            return False
        for topic in topics:
            self._put_queues(broker, topic)
        return True

    def finish_registration(
        self, live: LiveBroker, data_version: DataVersion, filter_servers: list[str] | None
    ) -> RegisterResult:
        """All of a registration, which :meth:`start_registration` began, was taken in.
        ``data_version``: of the topics. ``filter_servers`` of None (a broker before 3.0.11): what
        is known stays.
        """
        if self.live.get(live.address) is not live:
            return RegisterResult()
        live.data_version = data_version
        if filter_servers:
            self.filter_servers[live.address] = filter_servers
        elif filter_servers is not None:
            self.filter_servers.pop(live.address, None)
        challenger, live.challenger = live.challenger, None
        broker = self.brokers[live.broker_name]
        master = broker.addresses.get(MASTER_ID)
        if live.broker_id == MASTER_ID or master is None or master not in self.live:
            return RegisterResult(challenger=challenger)
        return RegisterResult(self.live[master].ha_address, master, challenger)

    def place(self, broker_name: str, broker_id: int) -> dict[str, str] | None:
        """Address and cluster of a broker; None when there is none of that name and id."""
        broker = self.brokers.get(broker_name)
        address = None if broker is None else broker.addresses.get(broker_id)
        if broker is None or address is None:
            return None
        return {"address": address, "cluster": broker.cluster}

    def is_changed(self, address: str, data_version: DataVersion) -> bool:
        """The broker's topics have another version than the one it registered last."""
        live = self.live.get(address)
        return live is None or live.data_version != data_version

    def data_version(self, address: str) -> DataVersion | None:
        """The version that a broker registered last."""
        live = self.live.get(address)
        return None if live is None else live.data_version

    def touch(self, address: str, connection: int, now_ms: int) -> bool:
        """A broker was seen; False when it did not register on that connection."""
        live = self.live.get(address)
        if live is None or connection not in live.connections:
            return False
        live.connections[connection] = live.last_update_ms = now_ms
        return True

    # -- removal ------------------------------------------------------------------------------
    def unregister(
        self, *, address: str, broker_name: str, broker_id: int, connection: int, now_ms: int
    ) -> None:
        """A broker says that it leaves; one that is not known is ignored. ContradictionError: it
        registered on another connection, which is there and not silent.
        """
        live = self.live.get(address)
        if live is None or (live.broker_name, live.broker_id) != (broker_name, broker_id):
            return
        if connection not in live.connections or live.others(connection, now_ms):
            raise ContradictionError(
                f"{live.text} registered on another connection, from {live.host}; only that one "
                "may unregister it"
            )
        self._remove_address(address, "it unregistered")

    def connection_closed(self, connection: int) -> list[str]:
        """The brokers that registered on this connection are gone; their addresses. One that has
        registered on another connection lately stays."""
        gone = []
        for address in self._of_connection.pop(connection, ()):
            live = self.live[address]
            if live.closed(connection):
                self._remove_address(address, "its connection closed")
                gone.append(address)
        return gone

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Take out the brokers that were silent too long; their addresses and connections."""
        expired = [
            (address, connection)
            for address, live in self.live.items()
            if live.last_update_ms + BROKER_EXPIRY_MS < now_ms
            for connection in live.connections
        ]
        for address in dict(expired):
            self._remove_address(address, f"it was silent for {BROKER_EXPIRY_MS} ms")
        return expired

    def sweep(self) -> Iterator[None]:
        """Take the topics of brokers that are gone out of memory, step by step."""
        while self._gone:
            broker, topics = self._gone[0]
            count = 0
            for topic in itertools.islice(topics, PIECE):
                self._drop_entry(topic, broker)
                count += 1
            if count < PIECE:
                self._gone.popleft()
            yield

    @property
    def is_swept(self) -> bool:
        """Nothing is left to :meth:`sweep`."""
        return not self._gone

    def delete_topic(self, topic: str, cluster: str = "") -> list[str]:
        """Forget a topic; with a cluster only on the brokers of that. The names of the brokers that
        had it."""
        deleted = []
        for broker_name, queues in list(self.topics.get(topic, {}).items()):
            broker = self.brokers.get(broker_name)
            # What a broker that is gone had leaves with the sweep.
            is_there = broker is not None and broker.life == queues.life
            if broker is not None and is_there and cluster in ("", broker.cluster):
                broker.topics.discard(topic)
                self._drop_entry(topic, broker)
                # One that has it still, since it was away, brings it back, whatever its version.
                for address in broker.addresses.values():
                    if (live := self.live.get(address)) is not None:
                        live.data_version = None
                deleted.append(broker_name)
        return deleted

    def wipe_write_permission(self, broker_name: str) -> Iterator[int]:
        """Take the write bit off all topics of a broker, step by step; of how many in each."""
        return self._change_permission(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> Iterator[int]:
        """Make all topics of a broker readable and writable; as :meth:`wipe_write_permission`."""
        return self._change_permission(broker_name, lambda _: Perm.READ | Perm.WRITE)

    # -- queries ------------------------------------------------------------------------------
    def route(self, topic: str) -> TopicRoute | None:
        """Queues and brokers of a topic; None unless there are both."""
        queues = self._living(self.topics.get(topic, {}))
        if not queues:
            return None
        brokers = [self.brokers[each.broker_name] for each in queues]
        addresses = (address for broker in brokers for address in broker.addresses.values())
        filters = {a: self.filter_servers[a] for a in addresses if a in self.filter_servers}
        return TopicRoute(queues, brokers, filters)

    def topic_names(
        self, matches: Callable[[list[QueueData]], bool] | None = None
    ) -> Iterator[list[str]]:
        """Topics that a broker has, some at a time. ``matches`` sees its queues on each broker."""
        names = iter(list(self.topics))
        while piece := list(itertools.islice(names, PIECE)):
            found = []
            for name in piece:
                queues = self._living(self.topics.get(name, {}))
                if queues and (matches is None or matches(queues)):
                    found.append(name)
            yield found

    # -- inside -------------------------------------------------------------------------------
    def _placed(self, claim: Claim) -> BrokerData:
        """Put a broker into its name and its cluster."""
        name, cluster, address = claim.broker_name, claim.cluster, claim.address
        broker = self.brokers.get(name)
        if broker is None:
            broker = BrokerData(cluster, name, life=next(self._lives), host=claim.host)
            self.brokers[name] = broker
            self.clusters.setdefault(cluster, set()).add(name)
        elif broker.cluster != cluster:
            self._move(broker, claim)
        addresses = broker.addresses
        for other_id in [i for i, a in addresses.items() if a == address and i != claim.broker_id]:
            del addresses[other_id]
        if claim.broker_id == MASTER_ID and addresses.get(MASTER_ID) != address:
            old = addresses.get(MASTER_ID)
            before = f"it was at {printable(old)}" if old else "there was none"
            _log.info("master is now %s; %s", claim.text, before)
        if claim.broker_id == MASTER_ID and claim.epoch is not None:
            broker.epoch, broker.newest = claim.epoch, address
        if claim.broker_id not in addresses and address in self.live:
            # As RocketMQ: its topics count whatever their version.
            self.live[address].data_version = None
        addresses[claim.broker_id] = address
        return broker

    def _move(self, broker: BrokerData, claim: Claim) -> None:
        """A name is in its master's cluster; a slave that says another one is taken nevertheless,
        since a cluster may be renamed broker by broker."""
        is_master = claim.broker_id == MASTER_ID
        _log.warning(
            "broker %s: others of its name are in cluster %s; the name is in %s now",
            claim.text,
            printable(broker.cluster),
            printable(claim.cluster if is_master else broker.cluster),
        )
        if is_master:
            self._leave_cluster(broker)
            broker.cluster = claim.cluster
            self.clusters.setdefault(claim.cluster, set()).add(broker.broker_name)

    def _put_queues(self, broker: BrokerData, topic: TopicConfig) -> None:
        name = topic.topic_name
        queues = broker.queues(
            topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
        )
        of_topic = self.topics.get(name)
        if of_topic is None or broker.broker_name not in of_topic:
            is_new = of_topic is None
            self.limiter.add_entry(
                broker.host, name, broker.broker_name, len(broker.topics), is_new
            )
            if of_topic is None:
                of_topic = self.topics[name] = {}
        broker.topics.add(name)
        of_topic[broker.broker_name] = queues

    def _living(self, of_topic: dict[str, QueueData]) -> list[QueueData]:
        """The queues on brokers that are there."""
        brokers = self.brokers
        return [
            queues
            for name, queues in of_topic.items()
            if (broker := brokers.get(name)) is not None and broker.life == queues.life
        ]

    def _remove_address(self, address: str, reason: str) -> None:
        live = self._forget_live(address)
        broker = self.brokers.get(live.broker_name) if live is not None else None
        if live is None or broker is None:
            return
        _log.info("broker %s removed: %s", live.text, reason)
        for broker_id in [i for i, a in broker.addresses.items() if a == address]:
            del broker.addresses[broker_id]
        if not broker.addresses:
            self._remove_broker(broker)

    def _forget_live(self, address: str) -> LiveBroker | None:
        live = self.live.pop(address, None)
        self.filter_servers.pop(address, None)
        if live is not None:
            self.limiter.drop_address(live.counted_at)
            for connection in live.connections:
                self._drop_claim(connection, address)
        return live

    def _drop_claim(self, connection: int, address: str) -> None:
        addresses = self._of_connection.get(connection)
        if addresses is not None:
            addresses.discard(address)
            if not addresses:
                del self._of_connection[connection]

    def _remove_broker(self, broker: BrokerData) -> None:
        """The last address of a name is gone: so is the name, in its cluster and all topics."""
        del self.brokers[broker.broker_name]
        self._leave_cluster(broker)
        if len(broker.topics) <= SWEPT_AT_ONCE:
            for topic in broker.topics:
                self._drop_entry(topic, broker)
        else:
            self._gone.append((broker, iter(broker.topics)))

    def _leave_cluster(self, broker: BrokerData) -> None:
        names = self.clusters.get(broker.cluster)
        if names is not None:
            names.discard(broker.broker_name)
            if not names:
                del self.clusters[broker.cluster]

    def _drop_entry(self, topic: str, broker: BrokerData) -> None:
        of_topic = self.topics.get(topic)
        queues = None if of_topic is None else of_topic.get(broker.broker_name)
        if of_topic is None or queues is None or queues.life != broker.life:
            return
        del of_topic[broker.broker_name]
        if not of_topic:
            del self.topics[topic]
        self.limiter.drop_entry(broker.host, topic, not of_topic)

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> Iterator[int]:
        broker = self.brokers.get(broker_name)
        names = iter(list(broker.topics) if broker is not None else [])
        while piece := list(itertools.islice(names, PIECE)):
            count = 0
            for name in piece:
                of_topic = self.topics.get(name, {})
                data = of_topic.get(broker_name)
                if broker is not None and data is not None and data.life == broker.life:
                    of_topic[broker_name] = broker.queues(
                        data.read_queue_nums,
                        data.write_queue_nums,
                        int(change(data.perm)),
                        data.topic_sys_flag,
                    )
                    count += 1
            yield count
