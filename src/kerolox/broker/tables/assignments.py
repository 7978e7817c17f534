"""Which queues of a topic a member of a group reads, for members that ask (QUERY_ASSIGNMENT).

Clients of 5.x with ``clientRebalance=false`` leave it to the broker, which does what other clients
do for themselves. It takes the queues of all brokers from the name servers, and the members from
their heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kerolox.message import MessageQueue
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import LMQ_PREFIX
from kerolox.protocol.routing.allocation import (
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_for_pop,
    sort_as_java,
)
from kerolox.protocol.routing.routes import subscribe_queues

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerSettings
    from kerolox.broker.tables.clients import ClientTable
    from kerolox.broker.tables.routes import TopicRoutes
    from kerolox.broker.tables.topics import TopicTable
    from kerolox.protocol.routing.routes import TopicRoute

STRATEGIES: dict[str, AllocationStrategy] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
}
"""Those of RocketMQ 5; the work of others grows with queues times members."""

TOPICS_MAX = 4_096
"""Topics whose sorted queues are remembered; beyond it the memory starts anew."""


class Assignments:
    """Answers members of groups; remembers what follows from routes."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: TopicTable,
        clients: ClientTable,
        routes: TopicRoutes,
    ) -> None:
        """``topics``: all there are where the broker has no name server."""
        self._settings = settings
        self._topics = topics
        self._clients = clients
        self._routes = routes
        self._queues: dict[str, tuple[TopicRoute, Sequence[MessageQueue]]] = {}
        """Topic → its route when it was last asked for, and the queues that follow from it."""

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues that consumers may read, sorted; None: nobody knows the topic."""
        if topic.startswith(LMQ_PREFIX):
            return [MessageQueue(topic, self._settings.current.broker_name, 0)]
        if not self._routes.has_name_server:
            return self._own_queues(topic)
        route = await self._routes.of(topic)
        if route is None:
            self._queues.pop(topic, None)
            return None
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            if len(self._queues) >= TOPICS_MAX:
                self._queues.clear()
            known = self._queues[topic] = route, sorted(set(subscribe_queues(topic, route)))
        return known[1]

    async def share(
        self,
        topic: str,
        group: str,
        client_id: str,
        strategy: AllocationStrategy,
        *,
        pop_share: int | None = None,
    ) -> Sequence[MessageQueue] | None:
        """The queues of one member; None: its group, or the member, or the topic is not known, and
        it is to keep what it has. ``pop_share``: it pops them, and helps so many others; see
        :func:`allocate_for_pop`."""
        queues = await self.queues(topic)
        known = self._clients.group(group)
        if queues is None or known is None or known.member(client_id) is None:
            return None
        members = sort_as_java(known.client_ids)
        if pop_share is not None:
            return allocate_for_pop(client_id, queues, members, strategy, pop_share)
        return strategy(client_id, queues, members)

    def _own_queues(self, topic: str) -> Sequence[MessageQueue] | None:
        own = self._topics.get(topic)
        if own is None:
            return None
        count = own.read_queue_nums if own.perm & Perm.READ else 0
        return [
            MessageQueue(topic, self._settings.current.broker_name, number)
            for number in range(count)
        ]
