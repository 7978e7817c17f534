"""A lite pull consumer as a member of its group: what it reads, and what of that is its own now."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.lite.pulling import LitePulling
from kerolox.client.aio.consumers.membership import check_subscription
from kerolox.client.aio.consumers.offset_store import StoredOffsets, start_offset, stored_offsets
from kerolox.client.aio.consumers.queue_events import QueueEvents
from kerolox.client.aio.consumers.sharing import share_of
from kerolox.client.core.consuming.flow import FlowLimits
from kerolox.client.core.consuming.lite_pull import LitePull, LiteQueue
from kerolox.client.core.consuming.rebalance import queue_changes, strategy_of
from kerolox.client.core.consuming.subscribing import Versions, wanted
from kerolox.client.core.failures import note_failure
from kerolox.client.core.heartbeat import ConsumerFacts
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.errors import ClientError, KeroloxError
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageModel
from kerolox.protocol.names import CONSUME_ACTIVELY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kerolox.client.aio.consumer_settings import LitePullConsumerSettings
    from kerolox.client.aio.network.background import PeriodicTasks
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.network.instance import ClientInstance
    from kerolox.client.aio.query import ClusterQueries
    from kerolox.client.core.routes import TopicRoute
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageQueue

SUBSCRIBE, ASSIGN = "subscribe", "assign"
"""How a consumer comes to its queues."""

_log = logging.getLogger(__name__)


class LiteMember:
    """The member; all its names are those of the wire."""

    def __init__(
        self,
        group: str,
        namespace: str,
        settings: LitePullConsumerSettings,
        client: ClusterQueries,
        background: PeriodicTasks,
        *,
        has_arrived: Callable[[], None],
    ) -> None:
        """It reads nothing yet. ``group``: as brokers know it. ``client``: whose member it is; asks
        for offsets. ``background`` runs the pulls. ``has_arrived`` is called when messages have
        come.
        """
        self._group = group
        self._settings = settings
        self._client = client
        self._background = background
        self._has_arrived = has_arrived
        self.is_broadcasting = settings.message_model is MessageModel.BROADCASTING
        limits = FlowLimits(
            settings.cached_messages_max,
            settings.cached_mib_max,
            settings.cached_span_max,
            topic_count=-1,
            topic_mib=-1,
            all_count=settings.cached_messages_in_all_max,
            all_mib=settings.cached_mib_in_all_max,
        )
        self.machine = LitePull(limits, self._wake)
        self.kind = ""
        self.subscriptions: dict[str, Subscription] = {}
        self._versions = Versions()
        self.events = QueueEvents(namespace, settings.on_failure)
        self.rebalance_wanted = asyncio.Event()
        self.start_ms = 0
        self._unsubscribed: set[str] = set()
        """Since the last rebalance; their brokers do not know yet."""
        self._cluster: Cluster | None = None
        """Set while it runs; so are the next three."""
        self._instance: ClientInstance | None = None
        self._pulling: LitePulling | None = None
        self._offsets: StoredOffsets | None = None
        self._rebalancing = asyncio.Lock()
        self._is_unbalanced = False

    @property
    def offsets(self) -> StoredOffsets:
        """Where offsets are kept, while it runs."""
        assert self._offsets is not None
        return self._offsets

    @property
    def topics(self) -> set[str]:
        """The topics whose brokers know us."""
        return {*self.subscriptions, *(queue.topic for queue in self.machine.queues)}

    # -- what to read -----------------------------------------------------------------------------
    def subscribe(self, subscription: Subscription) -> None:
        """Read our share of a topic; ClientError: queues were assigned."""
        self._choose(SUBSCRIBE)
        self.subscriptions[subscription.topic] = self._versions.later(subscription)
        self.rebalance_wanted.set()

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer."""
        if self.subscriptions.pop(topic, None) is not None:
            self._unsubscribed.add(topic)
            self.machine.withhold([q for q in self.machine.queues if q.topic == topic])
        self.rebalance_wanted.set()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues and no others; ClientError: a topic was subscribed."""
        self._choose(ASSIGN)
        lost, gained = queue_changes(self.machine.queues, queues)
        if self._cluster is not None and lost:
            self.note_consumed(lost)
            self._background.start(self._store_lost(lost))
        self._drop(lost)
        for queue in gained:
            self.machine.assign(queue)
        self._pull_all(gained)

    def _choose(self, kind: str) -> None:
        if self.kind not in ("", kind):
            raise ClientError(
                "subscribe and assign exclude each other; make another consumer for the other"
            )
        self.kind = kind

    # -- life -------------------------------------------------------------------------------------
    async def join(self, cluster: Cluster, instance: ClientInstance, own_id: str) -> None:
        """Make ourselves known, find our share and begin to pull. ``instance``: of the client,
        which is its holder. ``own_id`` names the folder of a broadcasting member.
        """
        settings = self._settings
        self._offsets = stored_offsets(settings, cluster, own_id, self._group)
        self._cluster, self._instance = cluster, instance
        self.start_ms = clock.now_ms()
        self._pulling = LitePulling(
            self._group,
            settings,
            cluster,
            self.machine,
            wanted_of=self._wanted_of,
            start_of=self._start_of,
            has_arrived=self._has_arrived,
        )
        await asyncio.gather(*(cluster.refresh(topic) for topic in self.topics))
        for subscription in list(self.subscriptions.values()):
            await check_subscription(cluster, self._group, subscription)
        instance.join(self._client)
        await self.send_heartbeat()
        self._pull_all(self.machine.queues)
        self.rebalance_wanted.clear()  # it comes now
        await self.rebalance()

    async def part(self) -> None:
        """Have the user say its word on what it is about to lose by a close."""
        if self.kind == SUBSCRIBE and not self._rebalancing.locked():
            queues = list(self.machine.queues)
            self.machine.withhold(queues)
            await self.events.revoked(queues)

    async def leave(self, cluster: Cluster, *, for_ever: bool) -> None:
        """Store what counts as consumed, and tell the brokers; ``for_ever``: forget assigned queues
        too.
        """
        owned, instance = list(self.machine.queues), self._instance
        if self._offsets is not None:
            self.note_consumed(owned)
            try:
                async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                    await self._offsets.persist(owned, wait=True)
            except TimeoutError as error:
                what = f"not all offsets of group {self._group} were stored in time"
                note_failure(self._settings.on_failure, _log, what, error, is_expected=True)
        self._cluster = self._instance = self._pulling = None
        if instance is not None:
            await instance.unregister_client(self._client, cluster)
        if for_ever or self.kind == SUBSCRIBE:
            self._drop(owned)

    def facts(self) -> ConsumerFacts:
        """What brokers hear of us."""
        return ConsumerFacts(
            self._group,
            MessageModel(self._settings.message_model),
            ConsumeFromWhere(self._settings.consume_from_where),
            tuple(self.subscriptions.values()),
            self._settings.unit_mode,
            CONSUME_ACTIVELY,
        )

    async def send_heartbeat(self, *more: str) -> None:
        """Send heartbeats to the brokers of our topics, and of some more."""
        if self._instance is not None:
            await self._instance.send_heartbeat([*self.topics, *more])

    def has_route(self, topic: str, route: TopicRoute, is_new: bool) -> None:
        """The route of a topic has come: another one means other queues."""
        if is_new and topic in self.subscriptions:
            self.rebalance_wanted.set()

    async def persist(self) -> None:
        """Send the offsets of our queues to where they are kept."""
        await self.offsets.persist(list(self.machine.queues))

    def _running_cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    # -- offsets ----------------------------------------------------------------------------------
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset; a pull on its way is given up."""
        item = self.machine.seek(queue, offset)
        if self._pulling is not None and self._pulling.is_pulled(item):
            self._pulling.begin(item, self._background)

    def note(self, offsets: dict[MessageQueue, int]) -> None:
        """These are to be stored."""
        for queue, offset in offsets.items():
            self.offsets.table.update(queue, offset, increase_only=False)

    def note_consumed(self, queues: Collection[MessageQueue] | None = None) -> None:
        """With auto commit: what counts as consumed, of these queues or all, is to be stored."""
        if self._settings.auto_commit:
            self.note(self.machine.to_commit(queues))

    async def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """An operator has queues go on at other offsets; those that are not ours are left alone."""
        ours = {queue: n for queue, n in offsets.items() if queue in self.machine.queues}
        for queue, offset in ours.items():
            self.seek(queue, offset)
        self.machine.commit(ours)
        self.note(ours)
        await self.offsets.persist(ours, wait=True)

    # -- queues that come and go ------------------------------------------------------------------
    def is_behind(self) -> bool:
        """The last rebalance failed for something, or a topic has no route yet."""
        routes = self._running_cluster().routes
        return self._is_unbalanced or any(t not in routes for t in self.subscriptions)

    async def rebalance(self) -> None:
        """Compare what we own with what is our share."""
        if self.kind != SUBSCRIBE:
            return
        async with self._rebalancing:
            try:
                await self._compare()
            except BaseException:
                # Queues may be half given up, or half taken on.
                self.rebalance_wanted.set()
                raise

    async def _compare(self) -> None:
        self._is_unbalanced = False
        share = [q for topic in list(self.subscriptions) for q in await self._share(topic)]
        lost, gained = queue_changes(
            self.machine.queues, [q for q in share if q.topic in self.subscriptions]
        )
        if lost or gained:
            _log.info("group %s: lost %s gained %s", self._group, lost, gained)
        self._keep(share)
        await self._revoke(lost)
        await self._take_on(gained)
        left = self._unsubscribed - self.subscriptions.keys()
        if left:
            await self._leave_topics(left)
        self._unsubscribed -= left | self.subscriptions.keys()

    async def _share(self, topic: str) -> list[MessageQueue]:
        """Our share of a topic; what we have when it can't be found out."""
        strategy = None if self.is_broadcasting else strategy_of(self._settings.allocation)
        try:
            cluster = self._running_cluster()
            share = await share_of(cluster, self._group, topic, strategy, self.send_heartbeat)
        except KeroloxError as error:
            self._is_unbalanced = True
            what = f"rebalance of topic {topic} failed"
            note_failure(self._settings.on_failure, _log, what, error)
            share = None
        return [q for q in self.machine.queues if q.topic == topic] if share is None else share

    def _keep(self, share: list[MessageQueue]) -> None:
        """Go on with queues of a topic that was unsubscribed and subscribed again, and with those
        of a rebalance that was cancelled."""
        if self.machine.keep(share):
            self._has_arrived()
        items, pulling = self.machine.queues, self._pulling
        if pulling is not None:
            owned = [queue for queue in share if queue in items]
            self._pull_all(queue for queue in owned if not pulling.is_pulled(items[queue]))

    async def _revoke(self, lost: list[MessageQueue]) -> None:
        """Give up queues, after the user had its word; their offsets are stored."""
        if not lost:
            return
        self.machine.withhold(lost)
        await self.events.revoked(lost)
        self.note_consumed(lost)
        # Still ours meanwhile: taken anew before it is stored, it would start too early.
        await self.offsets.persist(lost, wait=True)
        self._drop(lost)
        for queue in lost:
            self.offsets.table.remove(queue)

    async def _take_on(self, gained: list[MessageQueue]) -> None:
        for queue in gained:
            self.machine.assign(queue)
        await self.events.assigned(gained)
        self._pull_all(gained)

    async def _leave_topics(self, left: set[str]) -> None:
        """Tell the brokers of these that we read them no longer; those of no other topic of ours
        have seen the last of us."""
        cluster = self._running_cluster()
        await self.send_heartbeat(*left)
        if self._instance is not None:
            await self._instance.leave_topics(self._client, cluster, left)

    async def _store_lost(self, lost: list[MessageQueue]) -> None:
        """Store the offsets of queues that an assignment no longer has."""
        await self.offsets.persist(lost, wait=True)
        for queue in lost:
            if queue not in self.machine.queues:
                self.offsets.table.remove(queue)

    def _drop(self, queues: list[MessageQueue]) -> None:
        items = [self.machine.queues[queue] for queue in queues if queue in self.machine.queues]
        self.machine.drop(queues)
        for item in items:
            if self._pulling is not None:
                self._pulling.end(item)

    # -- pulling ----------------------------------------------------------------------------------
    def _pull_all(self, queues: Iterable[MessageQueue]) -> None:
        """Begin to pull queues, if we run."""
        for queue in queues:
            item = self.machine.queues.get(queue)
            if item is not None and self._pulling is not None:
                self._pulling.begin(item, self._background)

    def _wanted_of(self, queue: MessageQueue) -> Subscription | None:
        if self.kind == ASSIGN:
            return wanted(queue.topic, ALL_TAGS)
        return self.subscriptions.get(queue.topic)

    async def _start_of(self, queue: MessageQueue) -> tuple[int, bool]:
        """Where a queue starts, and whether that is the group's committed offset."""
        known = self.offsets.table.read(queue)
        if known >= 0:  # lost and gained within a moment
            return known, False
        settings, offsets = self._settings, self.offsets
        offset = await start_offset(self._client, offsets, queue, settings, self.start_ms)
        return offset, offsets.table.read(queue) == offset

    def _wake(self, item: LiteQueue) -> None:
        if self._pulling is not None:
            self._pulling.wake(item)
