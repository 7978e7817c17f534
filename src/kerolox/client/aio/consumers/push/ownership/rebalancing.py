"""The rebalance of a push consumer: what it owns is compared with what is its share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.ownership.broker_shares import BrokerShares, Share
from kerolox.client.aio.consumers.sharing import share_of
from kerolox.client.core.consuming.rebalance import AllocationStrategy, queue_changes
from kerolox.client.core.failures import note_failure
from kerolox.client.core.routes import subscribe_queues
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.ownership.ownership import Ownership
    from kerolox.client.aio.consumers.push.ownership.subscriptions import Subscriptions
    from kerolox.client.aio.consumers.push.popping import Popping
    from kerolox.client.aio.consumers.queue_events import QueueEvents
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.message import MessageQueue

PULL_EXPIRED_MS = 120_000
"""A queue that was not pulled for so long is taken anew (``pullMaxIdleTime``)."""

_log = logging.getLogger(__name__)


class Rebalancing:
    """The rebalances of one consumer; whoever calls lets one end before the next."""

    def __init__(
        self,
        group: str,
        cluster: Cluster,
        subscriptions: Subscriptions,
        assignments: dict[MessageQueue, Assignment],
        ownership: Ownership,
        events: QueueEvents,
        *,
        strategy: AllocationStrategy | None,
        broker_strategy: str | None,
        popping: Popping,
        send_heartbeat: Callable[[], Awaitable[None]],
        leave_topics: Callable[[set[str]], Awaitable[None]],
        is_suspended: Callable[[], bool],
    ) -> None:
        """Nothing is shared yet. ``group``: as brokers know it. ``events``: who wants to be told.
        ``strategy``: how the group shares; None: each member reads all (broadcasting).
        ``broker_strategy``: its name, for brokers that share queues; None: members do.
        ``popping`` pops what a broker wants popped.
        ``send_heartbeat`` tells the brokers of all topics what we read, ``leave_topics`` that we
        read some no longer. ``is_suspended``: whether nothing is pulled for now.
        """
        self._group = group
        self._cluster = cluster
        self._send_heartbeat = send_heartbeat
        self._leave_topics = leave_topics
        self._is_suspended = is_suspended
        self._subscriptions = subscriptions
        self._assignments = assignments
        self._ownership = ownership
        self._events = events
        self._strategy = strategy
        self._popping = popping
        self._broker_shares: BrokerShares | None = None
        if broker_strategy is not None:
            self._broker_shares = BrokerShares(
                group, cluster, broker_strategy, send_heartbeat, self._own_share
            )
        self._is_incomplete = False
        """The last rebalance failed for a topic or a queue."""

    def is_behind(self) -> bool:
        """The last rebalance failed for something, or a topic has no route yet."""
        routes = self._cluster.routes
        return self._is_incomplete or any(t not in routes for t in self._subscriptions.table)

    async def run(self) -> None:
        """Compare what is owned with what is our share, now."""
        subscriptions = self._subscriptions
        self._is_incomplete = False
        retaken, subscriptions.retaken = subscriptions.retaken, set()
        await self.give_up([q for q in self._assignments if self._is_off(q, retaken)])
        if subscriptions.changed:
            # Brokers filter by what they know of us.
            subscriptions.changed.clear()
            await self._send_heartbeat()
        for topic in list(subscriptions.table):
            try:
                await self._run_topic(topic)
            except KeroloxError as error:
                self._is_incomplete = True
                what = f"rebalance of topic {topic} failed"
                note_failure(self._cluster.on_failure, _log, what, error)
        await self.give_up([q for q in self._assignments if q.topic not in subscriptions.table])
        self._popping.share_only(subscriptions.table)
        left = subscriptions.left - subscriptions.table.keys()
        subscriptions.left.clear()
        if left:
            await self._leave_topics(left)

    async def give_up(
        self, queues: Iterable[MessageQueue], *, wait: bool = False, store: bool = True
    ) -> None:
        """See :meth:`Ownership.give_up`; what could not go yet is tried again soon."""
        if not await self._ownership.give_up(queues, wait=wait, store=store):
            self._is_incomplete = True

    async def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets of queues that are ours.

        The broker is not asked for them again: it may still hold one-way reports of the old
        offsets, and a Java broker applies what it has in any order.
        """
        await self.give_up(offsets, wait=True)
        if not await self._ownership.take(offsets, offsets):
            self._is_incomplete = True

    def _is_off(self, queue: MessageQueue, retaken: set[str]) -> bool:
        """A queue is read in another way than its topic is to be now."""
        is_ordered = self._assignments[queue].orderly is not None
        return queue.topic in retaken or is_ordered != self._subscriptions.is_ordered(queue.topic)

    async def _run_topic(self, topic: str) -> None:
        found = await self._share(topic)
        if found is None:
            return
        share, popped = found
        stale_ms = clock.steady_ms() - PULL_EXPIRED_MS
        held = {queue: each for queue, each in self._assignments.items() if queue.topic == topic}
        owned = [
            queue
            for queue, each in held.items()
            if (each.orderly is None or not each.orderly.is_leaving)
            and (self._is_suspended() or each.process_queue.last_pull_ms >= stale_ms)
        ]
        lost, gained = queue_changes(owned, share)
        # Whoever pops, or pulls again, goes on at the offsets of now.
        await self.give_up({*lost, *(held.keys() - set(owned))}, wait=bool(popped))
        is_changed = self._popping.share(topic, popped)
        if gained and self._popping.is_leaving(topic):
            self._is_incomplete = True
            return
        if not lost and not gained and not is_changed:
            return
        _log.info("group %s: %s lost %s gained %s", self._group, topic, lost, gained)
        # The broker must know the newer version before pulls refer to it.
        if self._subscriptions.touch(topic):
            await self._send_heartbeat()
        if not await self._ownership.take(gained):
            self._is_incomplete = True
        route = self._cluster.routes.get(topic)
        everything = share if route is None else subscribe_queues(topic, route)
        await self._events.changed(topic, everything, [*share, *popped])

    async def _share(self, topic: str) -> Share | None:
        """What to read of a topic. Ordered queues are shared by members, as in RocketMQ."""
        if self._broker_shares is not None and not self._subscriptions.is_ordered(topic):
            return await self._broker_shares.of(topic)
        queues = await self._own_share(topic)
        return None if queues is None else Share(queues, [])

    async def _own_share(self, topic: str) -> list[MessageQueue] | None:
        return await share_of(
            self._cluster, self._group, topic, self._strategy, self._send_heartbeat
        )
