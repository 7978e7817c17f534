"""The asyncio push consumer.

It subscribes, shares the topics' queues with the other members of its group, pulls the queues that
are its own, and calls listeners. "Push" is RocketMQ's word: underneath every message is pulled by
a request that the broker holds until there is something.

Rebalance happens at start, every ``rebalance_interval_ms`` and when a broker says that the group
changed. A queue that goes to another member is dropped at once and its offset stored; one that
comes to us starts where the group stopped
(:func:`kerolox.client.core.consuming.offsets.start_position`).
Delivery is at least once: what a listener had not finished is delivered again elsewhere.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.consumers.broker_requests import ConsumerView, answer_broker
from kerolox.client.aio.consumers.consume_tracing import consume_tracing
from kerolox.client.aio.consumers.consuming import Consuming, is_flow_control
from kerolox.client.aio.consumers.membership import check_subscription
from kerolox.client.aio.consumers.offset_store import (
    BrokerOffsets,
    LocalOffsets,
    OffsetStore,
    start_offset,
)
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.listening import (
    Listeners,
    MessageListener,
    OneMessageListener,
    each,
)
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.aio.consumers.sharing import keep_balanced, share_of
from kerolox.client.aio.network.instance import Member
from kerolox.client.aio.settings import PushConsumerSettings
from kerolox.client.core.consuming.pull import PullResult, PullStatus, pull_request, pull_result
from kerolox.client.core.consuming.rebalance import queue_changes, strategy_of
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.heartbeat import PASSIVELY, ConsumerFacts
from kerolox.client.core.life import OFFSETS_SECONDS_MAX, close_seconds
from kerolox.client.core.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from kerolox.client.core.validate import check_consumer_group, check_topic
from kerolox.errors import (
    ConfigError,
    KeroloxError,
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
)
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.routes import TopicRoute
    from kerolox.filter.tags import Subscription
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

ROOM_SECONDS_MAX = 0.05
"""A pull loop that waits for room looks again after so long (flow control of RocketMQ)."""

SUSPENDED_SECONDS = 1.0
FLOW_CONTROL_SECONDS = 0.02

GREET_AGAIN_MS = 1_000
"""A broker that does not know us hears of us at most so often."""

PULL_EXPIRED_MS = 120_000
"""A queue that was not pulled for so long is taken anew (``pullMaxIdleTime``)."""

_log = logging.getLogger(__name__)


class PushConsumer(Client):
    """Consumes topics as a member of a group.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async def on_messages(messages: list[MessageExt]) -> None:
            print(messages[0].body)

        consumer = PushConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("Orders", "paid || shipped", on_messages)
        async with consumer:
            await asyncio.Event().wait()
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        settings: PushConsumerSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            group: consumer group; all its members must have the same subscriptions.
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            settings: all else.

        Raises:
            ConfigError: the group or the name server is illegal.
        """
        self.settings: PushConsumerSettings = settings or PushConsumerSettings()
        self._is_broadcasting = self.settings.message_model is MessageModel.BROADCASTING
        ip = self._introduce(
            group, name_server, check_consumer_group, keep_default=self._is_broadcasting
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._unsubscribed: set[str] = set()
        """Since the last rebalance; their brokers do not know yet."""
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._consuming: Consuming | None = None
        self._offsets: OffsetStore | None = None
        self._rebalance_wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._is_unbalanced = False
        """The last rebalance failed for a topic or a queue."""
        self._greeted_ms = 0
        self._is_suspended = False
        self._start_ms = 0
        self._tracing, hooks = consume_tracing(group, self._name_servers, ip, self.settings)
        self._listeners = Listeners(
            self.group, self.settings, namespace=self._namespace, hooks=hooks
        )

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that are ours now, retry topics included, sorted."""
        return sorted(
            queue_without_namespace(self._namespace, queue) for queue in self._assignments
        )

    # -- subscriptions ------------------------------------------------------------------------
    def subscribe(self, topic: str, expression: str, listener: MessageListener) -> None:
        """Have messages of a topic brought to a listener.

        May be called before or after the start; a second call for a topic replaces the first.

        Args:
            topic: what to read.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties;
                for those the brokers need ``enablePropertyFilter=true``.
            listener: an async function of a list of messages (of one, unless
                ``consume_batch_max`` is larger), all of one queue. Returning None or
                CONSUME_SUCCESS finishes them; returning RECONSUME_LATER or raising has them
                delivered again later; a list with one of these for each message says it for each.

        Raises:
            MessageRejectedError: the topic's name is illegal.
            ConfigError: the expression names no tag, or is no condition.
        """
        wire_topic = with_namespace(self._namespace, topic)
        check_topic(wire_topic)
        self._subscriptions[wire_topic] = wanted(wire_topic, expression)
        self._listeners.by_topic[without_namespace(self._namespace, topic)] = listener
        self._rebalance_wanted.set()

    def subscribe_each(self, topic: str, expression: str, listener: OneMessageListener) -> None:
        """As :meth:`subscribe`, with a listener of one message at a time.

        Args:
            topic: what to read.
            expression: as for :meth:`subscribe`.
            listener: an async function of one message. A message that fails comes again alone.
        """
        self.subscribe(topic, expression, each(listener))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer. Its queues go to other members with the next rebalance."""
        wire_topic = with_namespace(self._namespace, topic)
        if self._subscriptions.pop(wire_topic, None) is not None:
            self._unsubscribed.add(wire_topic)
        self._listeners.by_topic.pop(without_namespace(self._namespace, topic), None)
        self._rebalance_wanted.set()

    def suspend(self) -> None:
        """Pull no more until :meth:`resume`; what was pulled is still brought to listeners."""
        self._is_suspended = True

    def resume(self) -> None:
        """Pull again."""
        self._is_suspended = False
        self._rebalance_wanted.set()

    # -- life ---------------------------------------------------------------------------------
    async def start(self) -> None:
        """Join the group: fetch routes, send a heartbeat, rebalance, start to pull.

        Raises:
            ClientClosedError: it was closed before; make a new one.
            ConfigError: there is no subscription.
            ConnectError: no name server answers.
            BrokerError: a broker does not serve a condition (SQL92), or can't read it.
        """
        await self._start(self._join)

    async def _join(self) -> None:
        if not self._subscriptions:
            raise ConfigError(f"group {self.group!r} has no subscription; call subscribe first")
        settings = self.settings
        cluster = self._open()
        if self._is_broadcasting:
            self._offsets = LocalOffsets(
                settings.local_offset_folder, self._own.client_id, self.group
            )
        else:
            self._offsets = BrokerOffsets(cluster, self.group)
            self._subscriptions[self._retry_topic] = wanted(self._retry_topic, ALL_TAGS)
        self._start_ms = clock.now_ms()
        send_backs = SendBacks(self.group, self._namespace, settings, cluster)
        self._consuming = Consuming(settings, self._listeners, send_backs, self._offsets)
        await self._instance.ready()
        await asyncio.gather(*(cluster.refresh(topic) for topic in self._subscriptions))
        for subscription in list(self._subscriptions.values()):
            await check_subscription(cluster, self.group, subscription)
        if self._tracing is not None:
            await self._tracing.start()
        self._consuming.start()
        self._instance.join(self)
        await self._heartbeat()
        await self.rebalance()
        self._start_background()

    def _start_background(self) -> None:
        settings, every = self.settings, self._background.every
        every(settings.persist_interval_ms, self._persist, "storing offsets")
        every(settings.consume_timeout_minutes * 60_000, self._clean_expired, "overdue check")
        self._background.start(
            keep_balanced(
                self.group,
                self._rebalance_wanted,
                settings.rebalance_interval_ms,
                self.rebalance,
                self._is_behind,
            )
        )

    async def close(self) -> None:
        """Leave the group cleanly, within five seconds. Idempotent.

        Pulling stops, running listeners get ``close_timeout_ms`` to finish (and the close two
        seconds more), offsets are stored, and the brokers are told, so that the other members take
        over at once. A listener may close its own consumer: it is not waited for.

        Whoever calls it meanwhile waits for the same end, which goes on when a caller is cancelled.
        """
        await super().close()

    @property
    def _close_seconds(self) -> float:
        return close_seconds(self.settings.close_timeout_ms / 1000)

    def _waits_for_close(self) -> None:
        if self._consuming is not None:
            self._consuming.running.caller_waits()

    async def _leave(self, cluster: Cluster) -> None:
        assert self._consuming is not None
        assert self._offsets is not None
        await self._background.stop()
        await self._consuming.close(self.settings.close_timeout_ms / 1000)
        tracing = () if self._tracing is None else (self._tracing.close(),)
        await asyncio.gather(self._leave_group(cluster, self._offsets), *tracing)

    async def _leave_group(self, cluster: Cluster, offsets: OffsetStore) -> None:
        owned = list(self._assignments)
        try:
            async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                await offsets.persist(owned, wait=True)
        except TimeoutError:
            _log.warning("not all offsets of group %s were stored in time", self.group)
        for assignment in self._assignments.values():
            assignment.process_queue.drop()
        self._assignments.clear()
        await self._instance.say_farewell(self, cluster)

    @property
    def _retry_topic(self) -> str:
        return f"{RETRY_PREFIX}{self.group}"

    # -- rebalance ----------------------------------------------------------------------------
    def _is_behind(self) -> bool:
        """The last rebalance failed for something, or a topic has no route yet."""
        routes = self._open_cluster().routes
        return self._is_unbalanced or any(t not in routes for t in self._subscriptions)

    async def rebalance(self) -> None:
        """Compare what we own with what is our share, now. Happens by itself in the background."""
        async with self._rebalancing:
            self._is_unbalanced = False
            for topic in list(self._subscriptions):
                try:
                    await self._rebalance_topic(topic)
                except KeroloxError as error:
                    self._is_unbalanced = True
                    _log.warning("rebalance of topic %s failed: %s", topic, error)
            await self._revoke(
                *(q for q in self._assignments if q.topic not in self._subscriptions)
            )
            left = self._unsubscribed - self._subscriptions.keys()
            self._unsubscribed.clear()
            if left:
                await self._leave_topics(left)

    async def _leave_topics(self, left: set[str]) -> None:
        """Tell the brokers of these that we read them no longer; those of no other topic of ours
        have seen the last of us."""
        cluster = self._open_cluster()
        await self._heartbeat(*left)
        await self._instance.leave_topics(self, cluster, left)

    async def _rebalance_topic(self, topic: str) -> None:
        strategy = None if self._is_broadcasting else strategy_of(self.settings.allocation)
        share = await share_of(self._open_cluster(), self.group, topic, strategy, self._heartbeat)
        if share is None:
            return
        stale_ms = clock.now_ms() - PULL_EXPIRED_MS
        owned = [
            queue
            for queue, assignment in self._assignments.items()
            if queue.topic == topic
            and (self._is_suspended or assignment.process_queue.last_pull_ms >= stale_ms)
        ]
        expired = [q for q in self._assignments if q.topic == topic and q not in owned]
        lost, gained = queue_changes(owned, share)
        await self._revoke(*lost, *expired)
        if lost or gained:
            _log.info("group %s: %s lost %s gained %s", self.group, topic, lost, gained)
            # The broker must know the newer version before pulls refer to it.
            await self._touch_subscription(topic)
        # All at once: a broker that does not answer holds up no queue of another.
        await asyncio.gather(*(self._assign(queue) for queue in gained))

    async def _touch_subscription(self, topic: str) -> None:
        subscription = self._subscriptions.get(topic)
        if subscription is not None:
            version = max(clock.now_ms(), subscription.version + 1)
            self._subscriptions[topic] = dataclasses.replace(subscription, version=version)
            await self._heartbeat()

    async def _assign(self, queue: MessageQueue) -> None:
        assert self._offsets is not None
        self._offsets.table.remove(queue)
        try:
            offset = await start_offset(self, self._offsets, queue, self.settings, self._start_ms)
        except KeroloxError as error:
            _log.warning("start of %s is unknown, trying again later: %s", queue, error)
            self._is_unbalanced = True
            return
        assignment = Assignment(queue, offset)
        assignment.process_queue.last_pull_ms = clock.now_ms()
        self._assignments[queue] = assignment
        assignment.task = self._background.start(self._pull_loop(assignment))

    async def _revoke(self, *queues: MessageQueue, wait: bool = False) -> None:
        """Give up queues; their offsets are stored, ``wait``: before this returns."""
        assert self._offsets is not None
        ours = {queue: self._assignments[queue] for queue in queues if queue in self._assignments}
        for assignment in ours.values():
            assignment.process_queue.drop()
            if assignment.task is not None and assignment.task is not asyncio.current_task():
                assignment.task.cancel()
        try:
            # Still ours meanwhile: taken anew before it is stored, it would start too early.
            await self._offsets.persist(ours, wait=wait)
        finally:
            for queue, assignment in ours.items():
                if self._assignments.get(queue) is assignment:
                    del self._assignments[queue]
                    self._offsets.table.remove(queue)

    # -- pulling ------------------------------------------------------------------------------
    async def _pull_loop(self, assignment: Assignment) -> None:
        settings, process_queue = self.settings, assignment.process_queue
        while not process_queue.is_dropped:
            process_queue.last_pull_ms = clock.now_ms()
            try:
                delay = await self._pull_once(assignment)
            except KeroloxError as error:
                _log.warning("pull of %s failed: %s", assignment.queue, error)
                delay = settings.pull_error_delay_ms / 1000
                if is_flow_control(error):
                    delay = FLOW_CONTROL_SECONDS
                elif isinstance(error, (SubscriptionNotFoundError, SubscriptionNotLatestError)):
                    await self._greet_again()
            except Exception:
                _log.exception("pull of %s failed", assignment.queue)
                delay = settings.pull_error_delay_ms / 1000
            if delay:
                await asyncio.sleep(delay)

    async def _greet_again(self) -> None:
        """The broker has forgotten us or never heard of us, by its restart for example."""
        if clock.now_ms() - self._greeted_ms >= GREET_AGAIN_MS:
            self._greeted_ms = clock.now_ms()
            await self._heartbeat()
            self._rebalance_wanted.set()

    async def _pull_once(self, assignment: Assignment) -> float:
        """One pull, or a wait for room; how many seconds to pause after it."""
        settings, queue = self.settings, assignment.queue
        subscription = self._subscriptions.get(queue.topic)
        if self._is_suspended or subscription is None:
            return SUSPENDED_SECONDS
        limit = assignment.process_queue.flow_limit(
            count_max=settings.cached_messages_max,
            mib_max=settings.cached_mib_max,
            span_max=settings.cached_span_max,
        )
        if limit is not None:
            await self._wait_for_room(assignment)
            return 0.0
        assert self._offsets is not None
        commit_offset = -1 if self._is_broadcasting else self._offsets.table.read(queue)
        cluster = self._open_cluster()
        address = await cluster.read_address_of(
            queue.topic, queue.broker_name, assignment.broker_id
        )
        request = pull_request(
            self.group,
            queue,
            assignment.next_offset,
            subscription,
            max_messages=settings.pull_batch_size,
            suspend_timeout_ms=settings.suspend_timeout_ms,
            commit_offset=commit_offset if commit_offset > 0 else -1,
        )
        start_ms = clock.now_ms()
        response = await cluster.remoting.invoke(
            address, request, timeout_seconds=settings.pull_timeout_ms / 1000
        )
        result = pull_result(response, queue, subscription, address)
        return await self._pulled(assignment, result, clock.now_ms() - start_ms)

    async def _wait_for_room(self, assignment: Assignment) -> None:
        assignment.room.clear()
        try:
            async with asyncio.timeout(ROOM_SECONDS_MAX):
                await assignment.room.wait()
        except TimeoutError:
            pass

    async def _pulled(self, assignment: Assignment, result: PullResult, elapsed_ms: int) -> float:
        assert self._consuming is not None
        assert self._offsets is not None
        process_queue, queue = assignment.process_queue, assignment.queue
        if process_queue.is_dropped:
            return 0.0
        assignment.broker_id = result.suggested_broker_id
        assignment.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._correct_offset(assignment)
            return 0.0
        if result.messages:
            now_ms = clock.now_ms()
            stats = self._consuming.stats_of(queue.topic)
            stats.pulls.add(now_ms, 1, elapsed_ms)
            stats.pulled.add(now_ms, len(result.messages))
            self._consuming.submit(assignment, result.messages)
        elif not len(process_queue):
            self._offsets.table.update(queue, result.next_offset, increase_only=True)
        return self.settings.pull_interval_ms / 1000

    async def _correct_offset(self, assignment: Assignment) -> None:
        """The broker refused our offset: rest, store the right one, start anew there."""
        assert self._offsets is not None
        queue, process_queue = assignment.queue, assignment.process_queue
        _log.warning("offset of %s is illegal; going on at %d", queue, assignment.next_offset)
        process_queue.drop()
        await asyncio.sleep(self.settings.illegal_offset_delay_ms / 1000)
        if self._assignments.get(queue) is assignment:
            self._offsets.table.update(queue, assignment.next_offset, increase_only=False)
            await self._revoke(queue, wait=True)
            self._rebalance_wanted.set()

    # -- background -----------------------------------------------------------------------------
    def _member(self) -> Member:
        return Member(
            self.group,
            lambda: list(self._subscriptions),
            self._on_request,
            self._has_route,
            consumer=self._facts,
        )

    def _has_route(self, topic: str, route: TopicRoute, is_new: bool) -> None:
        """The route of a topic has come: another one means other queues."""
        if is_new and topic in self._subscriptions:
            self._rebalance_wanted.set()

    def _facts(self) -> ConsumerFacts:
        return ConsumerFacts(
            self.group,
            MessageModel(self.settings.message_model),
            ConsumeFromWhere(self.settings.consume_from_where),
            tuple(self._subscriptions.values()),
            self.settings.unit_mode,
        )

    async def _heartbeat(self, *more: str) -> None:
        """Greet the brokers of our topics, and of some more."""
        await self._instance.greet([*self._subscriptions, *more])

    async def _persist(self) -> None:
        if self._offsets is not None:
            await self._offsets.persist(list(self._assignments))

    async def _clean_expired(self) -> None:
        if self._consuming is not None:
            await self._consuming.clean_expired(list(self._assignments.values()))

    async def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at other offsets; what was pulled and is unfinished is forgotten.

        Args:
            offsets: by queue; queues that are not ours are left alone.
        """
        assert self._offsets is not None
        async with self._rebalancing:
            named = {queue_with_namespace(self._namespace, q): n for q, n in offsets.items()}
            ours = {queue: n for queue, n in named.items() if queue in self._assignments}
            for queue, offset in ours.items():
                self._assignments[queue].process_queue.drop()
                self._offsets.table.update(queue, offset, increase_only=False)
            await self._revoke(*ours, wait=True)
        self._rebalance_wanted.set()

    async def _on_request(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_wanted.set()
            return None
        # From here on handlers may use timeouts and locks, which need a task around them.
        await asyncio.sleep(0)
        assert self._consuming is not None
        assert self._offsets is not None
        view = ConsumerView(
            self.group,
            PASSIVELY,
            self._start_ms,
            self._open_cluster().name_servers,
            self.settings.consume_concurrency,
            self._subscriptions.values(),
            {queue: each.process_queue for queue, each in self._assignments.items()},
            self._consuming.stats,
            self._offsets,
            self.reset_offsets,
            self._listeners.consume_directly,
        )
        return await answer_broker(view, command)
