"""QueryRoute and QueryAssignment: the queues of all brokers of a topic, and where clients reach
them (``RouteActivity``).

A client of gRPC talks to each broker of its topics itself. Brokers tell name servers where they
take gRPC (:mod:`kerolox.protocol.extensions.grpc_addresses`), and a broker knows the others from
there.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from kerolox.addresses import split_address
from kerolox.broker.context import Context
from kerolox.broker.grpc import checks
from kerolox.broker.grpc.answers import AnswerError, ok
from kerolox.broker.grpc.asking import Caller
from kerolox.protocol.attributes import TopicMessageType, types_taken
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import MASTER_ID, Perm
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.routing.routes import QueueData, TopicRoute
from kerolox.remoting.time_slices import TimeSlices
from kerolox.text import printable

ALL_QUEUES = -1

ENDPOINTS_BYTES_MAX = 4 * 1024
"""Of the endpoints of a request, which its answer repeats for each queue."""

ROUTE_BYTES_MAX = 8 * 1024 * 1024
"""Of all queues of one answer."""

LEFT_OUT_MAX = 1_024
"""Brokers without a port for gRPC that are remembered, since each is logged once."""

_NUMBERS: dict[TopicMessageType, int] = {
    TopicMessageType.NORMAL: pb.NORMAL,
    TopicMessageType.FIFO: pb.FIFO,
    TopicMessageType.DELAY: pb.DELAY,
    TopicMessageType.TRANSACTION: pb.TRANSACTION,
}

_log = logging.getLogger(__name__)


class _Share(NamedTuple):
    """The queues of a topic on one broker."""

    broker: pb.Broker
    perm: int
    reads: int
    writes: int


def types_of(topic: TopicConfig | None) -> tuple[int, ...]:
    """The types of messages that a topic takes, as gRPC numbers them; None: all, since the broker
    that has the topic checks each message."""
    attributes = None if topic is None else topic.attributes
    return tuple(_NUMBERS[each] for each in types_taken(attributes))


def unknown_topic(name: str) -> AnswerError:
    """TOPIC_NOT_FOUND."""
    return AnswerError(
        pb.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}"
    )


def known_topic(broker: Context, name: str) -> TopicConfig:
    """A topic of this broker; AnswerError TOPIC_NOT_FOUND."""
    topic = broker.tables.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def is_fifo(broker: Context, group: str) -> bool:
    """Whether a group consumes in order (``consumeMessageOrderly``)."""
    found = broker.tables.groups.get(group)
    return found is not None and found.consume_message_orderly is True


class RouteCalls:
    """Answers where queues are, for the clients of one broker."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._left_out: set[str] = set()
        """Brokers of which it was logged that they have no port for gRPC."""

    async def query_route(
        self, caller: Caller, request: pb.QueryRouteRequest
    ) -> pb.QueryRouteResponse:
        """All queues of a topic, one of each broker after the other: some clients try the next one
        when a send fails, and shall not meet the same broker again. Those of a broker without a
        master are at a slave, with its id: clients keep their stream to it, and send nothing."""
        name = checks.topic_name(request.topic)
        caller.check_shown(self._broker, name)
        _check_endpoints(request.endpoints)
        shares = await self._shares(name, request.endpoints, is_assignment=False)
        types = types_of(self._broker.tables.topics.get(name))
        model = pb.MessageQueue(topic=request.topic, accept_message_types=types)
        response = pb.QueryRouteResponse(status=ok())
        queues = _Queues(model, response.message_queues.add)
        by_broker = [
            [(share.broker, *each) for each in enumerate(_permissions(share))] for share in shares
        ]
        for row in zip_longest(*by_broker):
            for each in row:
                if each is not None:
                    await queues.add(*each)
        return response

    async def query_assignment(
        self, caller: Caller, request: pb.QueryAssignmentRequest
    ) -> pb.QueryAssignmentResponse:
        """What a member of a group receives from: all queues of a broker at once, or each one where
        the group consumes in order."""
        name = checks.topic_name(request.topic)
        group = checks.group_name(request.group)
        caller.check_read(self._broker, name, group)
        _check_endpoints(request.endpoints)
        shares = await self._shares(name, request.endpoints, is_assignment=True)
        model = pb.MessageQueue(topic=request.topic)
        response = pb.QueryAssignmentResponse(status=ok())
        queues = _Queues(model, lambda: response.assignments.add().message_queue)
        is_ordered = is_fifo(self._broker, group)
        for share in shares:
            if share.perm & Perm.READ and share.reads and share.broker.id == MASTER_ID:
                for number in range(share.reads) if is_ordered else (ALL_QUEUES,):
                    await queues.add(share.broker, number, pb.READ_WRITE)
        if not response.assignments:
            raise AnswerError(pb.FORBIDDEN, f"no readable queue of topic {name}")
        return response

    async def _shares(
        self, name: str, endpoints: pb.Endpoints, *, is_assignment: bool
    ) -> list[_Share]:
        """What each broker has of a topic, by broker name: the same order from whichever broker,
        since clients choose the queue of a message group by its place. AnswerError
        TOPIC_NOT_FOUND.
        """
        broker, own_name = self._broker, self._broker.config.broker_name
        topic = broker.tables.topics.get(name)
        route = await broker.routes.of(name)
        data = {} if route is None else {each.broker_name: each for each in route.queues}
        if topic is None and not data:
            raise unknown_topic(name)
        shares = {}
        if route is not None:
            for each in data:
                place = self._place(route, each)
                if place is not None:
                    shares[each] = _share(place, data[each])
        is_at_master = own_name in shares and shares[own_name].broker.id == MASTER_ID
        if topic is not None and not (broker.role.current.is_slave and is_at_master):
            own = await self._own_endpoints(route, endpoints, is_assignment=is_assignment)
            shares[own_name] = self._own_share(topic, own, data.get(own_name))
        if not shares:
            raise AnswerError(
                pb.TOPIC_NOT_FOUND,
                f"no broker of topic {name} has a port for gRPC: set grpcServerPort of "
                f"{', '.join(sorted(data))[:1_000]}",
            )
        return [shares[each] for each in sorted(shares)]

    def _place(self, route: TopicRoute, name: str) -> pb.Broker | None:
        """A broker that a route names, where its master, or else a slave of it, takes gRPC."""
        found = route.broker(name)
        addresses = {} if found is None else found.addresses
        for broker_id in (MASTER_ID,) if MASTER_ID in addresses else sorted(addresses):
            endpoints = _endpoints_of(route.grpc_addresses.get(addresses[broker_id], ""))
            if endpoints is not None:
                self._left_out.discard(name)
                return pb.Broker(name=name, id=broker_id, endpoints=endpoints)
        if name not in self._left_out and name != self._broker.config.broker_name:
            if len(self._left_out) >= LEFT_OUT_MAX:
                self._left_out.clear()
            self._left_out.add(name)
            _log.warning(
                "broker %s has no port for gRPC that a name server knows, so clients of RocketMQ 5 "
                "do not see its queues",
                printable(name),
            )
        return None

    def _own_share(
        self, topic: TopicConfig, endpoints: pb.Endpoints, registered: QueueData | None
    ) -> _Share:
        broker = self._broker
        perm = topic.perm & broker.config.broker_permission
        if registered is not None:
            # An operator may have taken it off at the name server (WIPE_WRITE_PERM_OF_BROKER).
            perm &= registered.perm
        place = pb.Broker(
            name=broker.config.broker_name,
            id=broker.role.current.broker_id,
            endpoints=endpoints,
        )
        return _Share(place, perm, topic.read_queue_nums, topic.write_queue_nums)

    async def _own_endpoints(
        self, route: TopicRoute | None, endpoints: pb.Endpoints, *, is_assignment: bool
    ) -> pb.Endpoints:
        """Where clients reach this broker. A broker that no other stands beside: as the request
        says, which works behind any mapped port. Beside others that is true of a route alone, which
        a client asks its access point for: it asks any broker for assignments, and all of them
        have to give the same.
        """
        broker = self._broker
        registered = _endpoints_of(broker.identity.grpc_address)
        if registered is None:
            return endpoints
        is_access_point = (
            not is_assignment
            and len(endpoints.addresses) == 1
            and not broker.config.grpc_advertised_address
        )
        if is_access_point or not broker.routes.has_name_server:
            return endpoints
        # Each broker registers a topic of its cluster's name.
        cluster = await broker.routes.of(broker.config.broker_cluster_name)
        seen = {
            each for known in (route, cluster) if known for each in known.grpc_addresses.values()
        }
        return endpoints if seen <= {broker.identity.grpc_address} else registered


class _Queues:
    """The queues of an answer, as they are added."""

    def __init__(self, model: pb.MessageQueue, new: Callable[[], pb.MessageQueue]) -> None:
        """``model``: what all have. ``new``: makes one in the answer."""
        self._model, self._model_bytes = model, model.ByteSize()
        self._new = new
        self._bytes = 0
        self._slices = TimeSlices()

    async def add(self, broker: pb.Broker, number: int, permission: int) -> None:
        """Add one of a broker; AnswerError: there are too many."""
        await self._slices.checkpoint()
        self._bytes += self._model_bytes + broker.ByteSize()
        if self._bytes > ROUTE_BYTES_MAX:
            raise AnswerError(
                pb.ILLEGAL_ACCESS_POINT,
                f"the queues of topic {self._model.topic.name} take more than {ROUTE_BYTES_MAX} "
                f"bytes; {broker.endpoints.ByteSize()} of each are endpoints of broker "
                f"{broker.name}",
            )
        queue = self._new()
        queue.CopyFrom(self._model)
        queue.broker.CopyFrom(broker)
        queue.id, queue.permission = number, permission


def _share(place: pb.Broker, data: QueueData) -> _Share:
    return _Share(place, data.perm, data.read_queues, data.write_queues)


def _permissions(share: _Share) -> list[int]:
    """Of each queue: those that are only read, only written, then both
    (``genMessageQueueFromQueueData``)."""
    may_read, may_write = bool(share.perm & Perm.READ), bool(share.perm & Perm.WRITE)
    reads, writes = share.reads, share.writes
    if may_read and may_write:
        both = min(reads, writes)
        return [pb.READ] * (reads - both) + [pb.WRITE] * (writes - both) + [pb.READ_WRITE] * both
    if may_read:
        return [pb.READ] * reads
    if may_write:
        return [pb.WRITE] * writes
    return [pb.NONE] * max(1, reads, writes)


def _check_endpoints(endpoints: pb.Endpoints) -> None:
    if not endpoints.addresses:
        raise AnswerError(pb.ILLEGAL_ACCESS_POINT, "endpoint list is empty")
    size = endpoints.ByteSize()
    if size > ENDPOINTS_BYTES_MAX:
        raise AnswerError(
            pb.ILLEGAL_ACCESS_POINT,
            f"endpoints of {size} bytes; at most {ENDPOINTS_BYTES_MAX} are taken",
        )


def _endpoints_of(address: str) -> pb.Endpoints | None:
    """Those of ``host:port``; None: it is no address."""
    try:
        host, port = split_address(address)
    except ValueError:
        return None
    try:
        scheme = pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        scheme = pb.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])
