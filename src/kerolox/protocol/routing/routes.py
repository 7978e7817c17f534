"""Routes: what a name server says about a topic, and the queues that follow from it.

``TopicRoute`` is RocketMQ's ``TopicRouteData``. It comes as standard JSON from 4.9.4 on and with
bare number keys (``{0:"ip:port"}``) before; both are read. A producer's queues come from the
ordered-topic setting when there is one, else from the writable queues of brokers that have a
master; a consumer's from the readable queues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import Perm, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.grpc_addresses import grpc_address, is_grpc_entry
from kerolox.protocol.fastjson import FastjsonError, items_of, loads, members_of
from kerolox.protocol.routing.name_servers import raise_for_name_server

ROOM_END = "@"
"""Behind the machine room in a broker's name, as in ``room1@broker-a``."""

MASTER_ID = 0
"""The broker id of a master."""

QUEUES_MAX = 65_535
"""Most queues of one topic on one broker that a route may claim."""


class QueueData(NamedTuple):
    """How many queues of the topic a broker has, and what may be done with them."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    topic_sys_flag: int = 0


class BrokerAddresses(NamedTuple):
    """The addresses ("ip:port") of a broker by broker id; id 0 is the master."""

    broker_name: str
    cluster: str
    addresses: dict[int, str]

    def any_address(self) -> str | None:
        """The master's address, else any; None when there is none."""
        master = self.addresses.get(MASTER_ID)
        return master or next(iter(self.addresses.values()), None)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of a topic are; brokers and queues sorted by broker name."""

    brokers: tuple[BrokerAddresses, ...] = ()
    queues: tuple[QueueData, ...] = ()
    order_topic_conf: str = ""
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Addresses of filter servers by that of their broker (``filterServerTable``)."""
    grpc_addresses: Mapping[str, str] = field(default_factory=dict)
    """Where brokers take clients of RocketMQ 5, by their address; unchecked."""

    @classmethod
    def parse(cls, data: bytes) -> TopicRoute:
        """Read the body of a GET_ROUTEINFO_BY_TOPIC response; RemoteProtocolError: no route in
        either form of JSON.
        """
        try:
            loaded = loads(data)
        except FastjsonError as error:
            raise RemoteProtocolError(f"route is no JSON: {error}") from None
        try:
            value = members_of(loaded)
            brokers = [
                _broker(members_of(item)) for item in items_of(value.get("brokerDatas") or [])
            ]
            queues = [_queue(members_of(q)) for q in items_of(value.get("queueDatas") or [])]
            order_topic_conf = str(value.get("orderTopicConf") or "")
            listed = {
                str(broker): tuple(map(str, items_of([] if servers is None else servers)))
                for broker, servers in members_of(value.get("filterServerTable") or {}).items()
            }
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"route has an unknown shape: {error!r}") from None
        brokers.sort(key=lambda broker: broker.broker_name)
        queues.sort(key=lambda queue: queue.broker_name)
        return cls(
            tuple(brokers),
            tuple(queues),
            order_topic_conf,
            {
                broker: servers
                for broker, entries in listed.items()
                if (servers := tuple(each for each in entries if not is_grpc_entry(each)))
            },
            {
                broker: address
                for broker, entries in listed.items()
                if (address := grpc_address(entries)) is not None
            },
        )

    @property
    def masters(self) -> dict[str, str]:
        """The address of each broker's master, by broker name; those without one are left out."""
        return {
            each.broker_name: each.addresses[MASTER_ID]
            for each in self.brokers
            if MASTER_ID in each.addresses
        }

    def broker(self, broker_name: str) -> BrokerAddresses | None:
        """The addresses of a broker; None when the route does not have it."""
        return next((item for item in self.brokers if item.broker_name == broker_name), None)


def _broker(item: Mapping[object, object]) -> BrokerAddresses:
    given = members_of(item.get("brokerAddrs") or {})
    addresses = {int(str(key)): str(address) for key, address in given.items()}
    return BrokerAddresses(
        str(item["brokerName"]), str(item.get("cluster") or ""), dict(sorted(addresses.items()))
    )


def _queue(item: Mapping[object, object]) -> QueueData:
    # The member was misspelt before 4.9; both spellings are in use.
    sys_flag = item.get("topicSysFlag", item.get("topicSynFlag", 0))
    return QueueData(
        str(item["brokerName"]),
        _count(item.get("readQueueNums", 0)),
        _count(item.get("writeQueueNums", 0)),
        _count(item.get("perm", 0)),
        _count(sys_flag),
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= QUEUES_MAX:
        raise ValueError(f"{value!r} is not between 0 and {QUEUES_MAX}")
    return value


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues that a producer may send to."""
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    with_master = {item.broker_name for item in route.brokers if MASTER_ID in item.addresses}
    return [
        MessageQueue(topic, queue.broker_name, queue_id)
        for queue in route.queues
        if queue.perm & Perm.WRITE and queue.broker_name in with_master
        for queue_id in range(queue.write_queues)
    ]


def _ordered_queues(topic: str, order_topic_conf: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for item in order_topic_conf.split(";"):
        broker_name, separator, count = item.partition(":")
        if not separator:
            continue
        if not count.strip().isdigit() or int(count) > QUEUES_MAX:
            raise RemoteProtocolError(f"ordered-topic setting {order_topic_conf!r} has no count")
        queues += (MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count)))
    return queues


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues that a consumer may read."""
    return [
        MessageQueue(topic, queue.broker_name, queue_id)
        for queue in route.queues
        if queue.perm & Perm.READ
        for queue_id in range(queue.read_queues)
    ]


def route_from_template(template: TopicRoute, *, queues: int) -> TopicRoute:
    """The route of a topic that does not exist yet, from that of TBW102.

    The broker creates the topic with the first message; it gets ``queues`` queues or as many as
    the template has, whichever is less.
    """
    shrunk = tuple(
        item._replace(
            read_queues=min(queues, item.read_queues), write_queues=min(queues, item.read_queues)
        )
        for item in template.queues
    )
    return dataclasses.replace(template, queues=shrunk)


def route_request(topic: str) -> RemotingCommand:
    """Asks for the route of a topic (code 105)."""
    fields = {"topic": topic, "acceptStandardJsonOnly": True}
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def route_of(answer: RemotingCommand, address: str) -> TopicRoute | None:
    """The route in a name server's answer; None: it knows no such topic. BrokerError: the one at
    ``address`` refuses; RemoteProtocolError: the body is no route.
    """
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    raise_for_name_server(answer, address)
    return TopicRoute.parse(answer.body) if answer.body else None
