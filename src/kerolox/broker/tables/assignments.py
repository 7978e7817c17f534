"""Which queues of a topic a member of a group reads, for members that ask (QUERY_ASSIGNMENT).

Clients of 5.x with ``clientRebalance=false`` leave it to the broker, which does what other clients
do for themselves. It takes the queues of all brokers from the name servers, and the members from
their heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError
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
    from kerolox.broker.tables.topics import TopicTable
    from kerolox.protocol.routing.routes import TopicRoute

STRATEGIES: dict[str, AllocationStrategy] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
}
"""Those of RocketMQ 5; the work of others grows with queues times members."""

FRESH_SECONDS = 5.0
"""How long queues are taken from memory: members of a group ask together, and again."""

TOPICS_MAX = 4_096
"""Topics whose queues are remembered; beyond it the memory starts anew."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Snapshot:
    """The queues of a topic as they were last."""

    queues: Sequence[MessageQueue] | None = None
    fresh_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who waits for it finds the answer of who asked."""


class Assignments:
    """Answers members of groups; remembers what name servers say of topics."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: TopicTable,
        clients: ClientTable,
        route: Callable[[str], Awaitable[TopicRoute | None]],
    ) -> None:
        """Nobody was asked yet. ``topics``: all there are where the broker has no name server.
        ``route`` asks the name servers; None: they know no such topic.
        """
        self._settings = settings
        self._topics = topics
        self._clients = clients
        self._route = route
        self._snapshots: dict[str, _Snapshot] = {}

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues that consumers may read, sorted; None: nobody knows the topic."""
        if topic.startswith(LMQ_PREFIX):
            return [MessageQueue(topic, self._settings.current.broker_name, 0)]
        if not self._settings.current.name_servers:
            return self._own_queues(topic)
        loop = asyncio.get_running_loop()
        snapshot = self._snapshots.get(topic)
        if snapshot is None:
            if len(self._snapshots) >= TOPICS_MAX:
                self._snapshots.clear()
            snapshot = self._snapshots[topic] = _Snapshot()
        async with snapshot.lock:
            if loop.time() >= snapshot.fresh_until:
                snapshot.queues = await self._asked(topic, snapshot.queues)
                snapshot.fresh_until = loop.time() + FRESH_SECONDS
            return snapshot.queues

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

    async def _asked(
        self, topic: str, known: Sequence[MessageQueue] | None
    ) -> Sequence[MessageQueue] | None:
        try:
            route = await self._route(topic)
        except KeroloxError as error:
            _log.warning("the queues of %s stay as they were last known: %s", topic, error)
            return known
        return None if route is None else sorted(set(subscribe_queues(topic, route)))
