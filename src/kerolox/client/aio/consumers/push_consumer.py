"""The asyncio push consumer.

It subscribes and shares the topics' queues with the other members of its group. It pulls its queues
and calls listeners. "Push" is RocketMQ's word: underneath every message is pulled by a request that
the broker holds until there is something.

Rebalance happens at start, every ``rebalance_interval_ms`` and when a broker says that the group
changed. A queue that goes to another member is dropped at once and its offset stored; one that
comes to us starts where the group stopped
(:func:`kerolox.client.core.consuming.offsets.start_position`).
Delivery is at least once: what a listener had not finished is delivered again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.consumer_settings import PushConsumerSettings
from kerolox.client.aio.consumers.broker_requests import ConsumerView, answer_broker
from kerolox.client.aio.consumers.consume_tracing import consume_tracing
from kerolox.client.aio.consumers.membership import check_subscription
from kerolox.client.aio.consumers.offset_store import CustomOffsets, OffsetStore, stored_offsets
from kerolox.client.aio.consumers.popping.pops import Pops
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.consuming import Consuming
from kerolox.client.aio.consumers.push.listening import (
    EachMessage,
    Listeners,
    MessageListener,
    OneMessageListener,
)
from kerolox.client.aio.consumers.push.orderly import Orderly
from kerolox.client.aio.consumers.push.ownership.ownership import Ownership
from kerolox.client.aio.consumers.push.ownership.queue_locks import QueueLocks
from kerolox.client.aio.consumers.push.ownership.rebalancing import Rebalancing
from kerolox.client.aio.consumers.push.ownership.subscriptions import Subscriptions
from kerolox.client.aio.consumers.push.popping import Popping
from kerolox.client.aio.consumers.push.pulling import Pulling
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.aio.consumers.push.stream import MessageStream
from kerolox.client.aio.consumers.queue_events import (
    QueueChangeCallback,
    QueueEvents,
    QueuesCallback,
)
from kerolox.client.aio.consumers.sharing import keep_balanced
from kerolox.client.aio.network.instance import Member
from kerolox.client.core.arguments import received_messages
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.consuming.rebalance import strategy_of
from kerolox.client.core.heartbeat import ConsumerFacts
from kerolox.client.core.life import close_seconds
from kerolox.client.core.namespaces import queue_with_namespace, queue_without_namespace
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import ConfigError
from kerolox.filter.filter_class import FilterClass
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageExt, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import CONSUME_PASSIVELY, RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.routes import TopicRoute
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

HEARTBEAT_RESEND_MS = 1_000
"""A broker that does not know us hears of us at most so often."""

LOCK_FIRST_MS = 1_000
"""The first renewal of locks is so long after the start."""

_log = logging.getLogger(__name__)


class ConsumerParts(NamedTuple):
    """The parts that work while a consumer runs."""

    consuming: Consuming
    orderly: Orderly
    offsets: OffsetStore
    pulling: Pulling
    ownership: Ownership
    rebalancing: Rebalancing
    popping: Popping


@checked("ack")
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
        self._reading_group = self.group
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._events = QueueEvents(self._namespace, self.settings.on_failure)
        self._stream = MessageStream(60 * self.settings.consume_timeout_minutes)
        self._rebalance_wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        """Held by whoever takes queues on or gives them up."""
        self._parts: ConsumerParts | None = None
        self._heartbeat_ms = 0
        self._is_suspended = False
        self._start_ms = 0
        self._tracing, hooks = consume_tracing(group, self._name_servers, ip, self.settings)
        self._listeners = Listeners(
            self.group, self.settings, namespace=self._namespace, hooks=hooks
        )
        if hooks:
            self._stream.hooks = self._listeners
        retry_topic = f"{RETRY_PREFIX}{self.group}"
        self._subscriptions = Subscriptions(
            self._namespace, retry_topic, self._listeners, self._stream
        )

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that are ours now, retry topics included, sorted; and those that we pop, of
        which -1 is all of a broker."""
        popped = () if self._parts is None else self._parts.popping.assignments
        return sorted(
            queue_without_namespace(self._namespace, queue)
            for queue in (*self._assignments, *popped)
        )

    # -- subscriptions ------------------------------------------------------------------------
    def subscribe(
        self,
        topic: str,
        expression: str | FilterClass = ALL_TAGS,
        listener: MessageListener | None = None,
        *,
        ordered: bool = False,
        expression_type: str | None = None,
    ) -> None:
        """Have messages of a topic brought to a listener, or to a loop over the consumer.

        May be called before or after the start; a second call for a topic replaces the first.

        Args:
            topic: what to read.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties.
                The last needs brokers with ``enablePropertyFilter=true``. Or a
                :class:`FilterClass`, for clusters that have filter servers.
            listener: an async function of a list of messages (of one, unless
                ``consume_batch_max`` is larger), all of one queue. Returning None or
                CONSUME_SUCCESS finishes them; returning RECONSUME_LATER or raising has them
                delivered again later. An :class:`Outcome` says more, a list with one of these for
                each message says it for each. None: the messages are those of a loop over the
                consumer, see :meth:`ack`.
            ordered: read each queue in order, one call at a time, under the broker's lock
                (``MessageListenerOrderly``). A message that fails is tried again after
                ``suspend_current_queue_ms``, and none behind it is read before. All members of the
                group must do the same.
            expression_type: ``TAG`` or ``SQL92``; None: what the expression looks like.

        Raises:
            MessageRejectedError: the topic's name is illegal.
            ConfigError: the expression names no tag, or is no condition.
        """
        self._subscriptions.add(topic, expression, expression_type, listener, ordered=ordered)
        self._rebalance_wanted.set()

    def subscribe_each(
        self,
        topic: str,
        expression: str | FilterClass,
        listener: OneMessageListener,
        *,
        ordered: bool = False,
        expression_type: str | None = None,
    ) -> None:
        """As :meth:`subscribe`, with a listener of one message at a time.

        Args:
            topic: what to read.
            expression: as for :meth:`subscribe`.
            listener: an async function of one message. A message that fails comes again alone.
            ordered: as for :meth:`subscribe`; behind one that fails all come again.
            expression_type: as for :meth:`subscribe`.
        """
        one_by_one = EachMessage(listener, self.settings.on_failure)
        self.subscribe(
            topic, expression, one_by_one, ordered=ordered, expression_type=expression_type
        )

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer. Its queues go to other members with the next rebalance."""
        self._subscriptions.remove(topic)
        self._rebalance_wanted.set()

    def suspend(self) -> None:
        """Pull no more until :meth:`resume`; what was pulled is still brought to listeners."""
        self._is_suspended = True

    def resume(self) -> None:
        """Pull again."""
        self._is_suspended = False
        self._rebalance_wanted.set()

    def on_assigned(self, callback: QueuesCallback) -> None:
        """Have a function called with the queues of a broker that come to this consumer, before it
        pulls them.

        Args:
            callback: an async function of a list of queues. A rebalance waits for it, up to five
                seconds.
        """
        self._events.on_assigned.append(callback)

    def on_revoked(self, callback: QueuesCallback) -> None:
        """Have a function called with the queues that this consumer is about to lose, before their
        offsets are stored; also when it closes.

        No listener gets more of their messages. Listeners of queues that are read in order have
        ended; others may still run, and what they finish does not count.

        Args:
            callback: as for :meth:`on_assigned`.
        """
        self._events.on_revoked.append(callback)

    def on_queues_changed(self, callback: QueueChangeCallback) -> None:
        """Have a function called after the queues of a topic were shared anew
        (``MessageQueueListener``).

        Args:
            callback: an async function of a :class:`QueueChange`. A rebalance waits for it, up to
                five seconds.
        """
        self._events.on_change.append(callback)

    # -- messages without listener --------------------------------------------------------------
    def __aiter__(self) -> Self:
        """Messages of the topics without listener, until the consumer closes; see :meth:`ack`."""
        return self

    async def __anext__(self) -> MessageExt:
        """The next message of the topics without listener.

        Several loops may run at the same time; each message is in one of them.
        """
        stream = self._stream
        if not stream.is_over:
            self._open_cluster()
            message = stream.take()
            if message is not None:
                return message
        if not stream.topics:
            raise ConfigError("every topic has a listener; subscribe to one without, to loop over")
        return await stream.next()

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> bool:
        """Say that a message of a loop over the consumer is done with, or that several are.

        Until then its queue's stored offset does not pass it, whatever becomes of the loop. After a
        ``break`` the message may still be settled, and another loop goes on behind it. The group
        gets it again when the consumer closes or its queue goes to another member. So it does with
        what was read of that queue behind it. One that is not settled within
        ``consume_timeout_minutes`` is sent back and retried. Of a queue that is read in order the
        next message comes when this one is settled.

        Args:
            messages: one that was not settled before, or several.

        Returns:
            False: of one it did not count: it was settled before, or is not ours any more.
        """
        some = received_messages(messages)
        self._open_cluster()
        return self._stream.done(some, self._running.consuming)

    async def nack(
        self,
        message: MessageExt,
        *,
        delay: float | timedelta | None = None,
        delay_level: int | None = None,
    ) -> bool:
        """Have a message of a loop over the consumer delivered again later.

        Args:
            message: one that was not settled before.
            delay: see :meth:`Outcome.nack`.
            delay_level: see :meth:`Outcome.nack`.

        Returns:
            As :meth:`ack`.

        Raises:
            ConfigError: the delay is out of range.
        """
        return await self._settle(message, Outcome.nack(delay=delay, delay_level=delay_level))

    async def dead_letter(self, message: MessageExt, reason: str = "") -> bool:
        """Put a message of a loop over the consumer among the group's dead letters.

        Args:
            message: one that was not settled before.
            reason: see :meth:`Outcome.dead_letter`.

        Returns:
            As :meth:`ack`.
        """
        return await self._settle(message, Outcome.dead_letter(reason))

    async def _settle(self, message: MessageExt, outcome: Outcome) -> bool:
        self._open_cluster()
        return await self._stream.settle(message, outcome, self._running.consuming)

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
        subscriptions = self._subscriptions.table
        if not subscriptions:
            raise ConfigError(f"group {self.group!r} has no subscription; call subscribe first")
        cluster = self._open()
        if not self._is_broadcasting:
            self._subscriptions.add_retries()
        self._start_ms = clock.now_ms()
        parts = self._parts = self._make_parts(cluster)
        await self._instance.ready()
        await asyncio.gather(*(cluster.refresh(topic) for topic in subscriptions))
        for subscription in list(subscriptions.values()):
            await check_subscription(cluster, self.group, subscription)
        if self._tracing is not None:
            await self._tracing.start()
        parts.consuming.start()
        self._instance.join(self)
        await self._heartbeat()
        await self.rebalance()
        self._start_background()

    def _make_parts(self, cluster: Cluster) -> ConsumerParts:
        """Put together what works while the consumer runs; nothing runs yet."""
        group, settings, subscriptions = self.group, self.settings, self._subscriptions
        offsets = self._stored_offsets(cluster)
        send_backs = SendBacks(group, self._namespace, settings, cluster)
        consuming = Consuming(settings, self._listeners, send_backs, offsets, self._stream)
        orderly = Orderly(settings, consuming, send_backs)
        pulling = Pulling(
            group,
            settings,
            cluster,
            offsets,
            subscriptions.table,
            consuming,
            orderly,
            is_suspended=lambda: self._is_suspended,
            resend_heartbeat=self._resend_heartbeat,
            start_anew=self._start_anew,
        )
        ownership = Ownership(
            self._assignments,
            self,
            settings,
            offsets,
            pulling=pulling,
            orderly=orderly,
            locks=None if self._is_broadcasting else QueueLocks(group, cluster),
            events=self._events,
            background=self._background,
            is_ordered=subscriptions.is_ordered,
            start_ms=self._start_ms,
        )
        popping = Popping(
            settings,
            Pops(group, self._namespace, cluster),
            subscriptions.table,
            consuming,
            send_backs,
            pulling.flow,
            is_suspended=lambda: self._is_suspended,
        )
        is_shared = not self._is_broadcasting
        rebalancing = Rebalancing(
            group,
            cluster,
            subscriptions,
            self._assignments,
            ownership,
            self._events,
            strategy=strategy_of(settings.allocation) if is_shared else None,
            broker_strategy=settings.broker_strategy if is_shared else None,
            popping=popping,
            send_heartbeat=self._heartbeat,
            leave_topics=self._leave_topics,
            is_suspended=lambda: self._is_suspended,
        )
        return ConsumerParts(consuming, orderly, offsets, pulling, ownership, rebalancing, popping)

    def _stored_offsets(self, cluster: Cluster) -> OffsetStore:
        if self.settings.offset_store is not None:
            return CustomOffsets(
                self.settings.offset_store, self._namespace, self.settings.on_failure
            )
        return stored_offsets(self.settings, cluster, self._own.client_id, self.group)

    @property
    def _running(self) -> ConsumerParts:
        assert self._parts is not None
        return self._parts

    def _start_background(self) -> None:
        settings, every = self.settings, self._background.every
        every(settings.persist_interval_ms, self._persist, "storing offsets")
        every(settings.consume_timeout_minutes * 60_000, self._clean_expired, "overdue check")
        every(settings.lock_interval_ms, self._renew_locks, "locks", first_ms=LOCK_FIRST_MS)
        self._background.start(
            keep_balanced(
                self.group,
                self._rebalance_wanted,
                settings.rebalance_interval_ms,
                self.rebalance,
                self._running.rebalancing.is_behind,
                settings.on_failure,
            )
        )

    async def close(self) -> None:
        """Leave the group cleanly, within five seconds. Idempotent.

        Pulling stops, and running listeners get ``close_timeout_ms`` to finish (the close two
        seconds more). Then it stores offsets and notifies the brokers, so that the other members
        take over at once. A listener may close its own consumer: it is not waited for.

        Whoever calls it meanwhile waits for the same end, which goes on when a caller is cancelled.
        """
        await super().close()

    @property
    def _close_seconds(self) -> float:
        return close_seconds(self.settings.close_timeout_ms / 1000)

    def _waits_for_close(self) -> None:
        if self._parts is not None:
            self._parts.consuming.running.caller_waits()

    async def _leave(self, cluster: Cluster) -> None:
        parts = self._running
        self._stream.end()
        parts.ownership.end()
        await self._background.stop()
        parts.orderly.stop()
        await parts.consuming.close(self.settings.close_timeout_ms / 1000)
        await parts.orderly.close()
        await parts.popping.close()
        tracing = () if self._tracing is None else (self._tracing.close(),)
        await asyncio.gather(self._leave_group(cluster, parts), *tracing)

    async def _leave_group(self, cluster: Cluster, parts: ConsumerParts) -> None:
        await parts.ownership.close()
        for assignment in self._assignments.values():
            assignment.process_queue.drop()
        self._assignments.clear()
        await self._instance.unregister_client(self, cluster)

    # -- rebalance ----------------------------------------------------------------------------
    async def rebalance(self) -> None:
        """Compare what we own with what is our share, now. Happens by itself in the background."""
        async with self._rebalancing:
            await self._running.rebalancing.run()
            self._stream.forget_lost()

    async def _leave_topics(self, left: set[str]) -> None:
        """Tell the brokers of these that we read them no longer; those of no other topic of ours
        have seen the last of us."""
        cluster = self._open_cluster()
        await self._heartbeat(*left)
        await self._instance.leave_topics(self, cluster, left)

    async def _resend_heartbeat(self) -> None:
        """The broker has forgotten us or never heard of us, by its restart for example."""
        if clock.steady_ms() - self._heartbeat_ms >= HEARTBEAT_RESEND_MS:
            self._heartbeat_ms = clock.steady_ms()
            await self._heartbeat()
            self._rebalance_wanted.set()

    async def _start_anew(self, assignment: Assignment) -> None:
        """The queue ends before our offset: rest, store the right one, start anew there.

        What was pulled and not consumed is pulled again, as far as the queue still has it. The
        Java client skips it.
        """
        queue, process_queue = assignment.queue, assignment.process_queue
        unconsumed = process_queue.first_offset
        offset = assignment.next_offset
        if unconsumed is not None:
            offset = min(offset, unconsumed)
        process_queue.drop()
        await asyncio.sleep(self.settings.illegal_offset_delay_ms / 1000)
        if self._assignments.get(queue) is assignment:
            parts = self._running
            parts.offsets.table.update(queue, offset, increase_only=False)
            await parts.rebalancing.give_up([queue], wait=True)
            self._rebalance_wanted.set()

    async def _renew_locks(self) -> None:
        lost = await self._running.ownership.renew_locks()
        if lost:
            async with self._rebalancing:
                # Whoever has them now has stored newer offsets, or is about to.
                await self._running.rebalancing.give_up(lost, store=False)
            self._rebalance_wanted.set()

    # -- background -----------------------------------------------------------------------------
    def _member(self) -> Member:
        return Member(
            self.group,
            lambda: list(self._subscriptions.table),
            self._on_request,
            self._has_route,
            consumer=self._facts,
            holds=self._holds,
        )

    def _holds(self, topic: str) -> bool:
        popped = () if self._parts is None else self._parts.popping.assignments
        return any(queue.topic == topic for queue in (*self._assignments, *popped))

    def _has_route(self, topic: str, route: TopicRoute, is_new: bool) -> None:
        """The route of a topic has come: another one means other queues."""
        if is_new and topic in self._subscriptions.table:
            self._rebalance_wanted.set()

    def _facts(self) -> ConsumerFacts:
        return ConsumerFacts(
            self.group,
            MessageModel(self.settings.message_model),
            ConsumeFromWhere(self.settings.consume_from_where),
            tuple(self._subscriptions.table.values()),
            self.settings.unit_mode,
        )

    async def _heartbeat(self, *more: str) -> None:
        """Send heartbeats to the brokers of our topics, and of some more."""
        await self._instance.send_heartbeat([*self._subscriptions.table, *more])

    async def _persist(self) -> None:
        ordered = {queue for queue, each in self._assignments.items() if each.orderly}
        await self._running.offsets.persist(self._assignments.keys() - ordered)
        await self._running.offsets.persist(ordered, wait=True)

    async def _clean_expired(self) -> None:
        await self._running.consuming.clean_expired(list(self._assignments.values()))

    async def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at other offsets; what was pulled and is unfinished is forgotten.

        Args:
            offsets: by queue; queues that are not ours are left alone.
        """
        async with self._rebalancing:
            named = {queue_with_namespace(self._namespace, q): n for q, n in offsets.items()}
            ours = {queue: n for queue, n in named.items() if queue in self._assignments}
            for queue, offset in ours.items():
                self._assignments[queue].process_queue.drop()
                self._running.offsets.table.update(queue, offset, increase_only=False)
            await self._running.rebalancing.move(ours)
        self._rebalance_wanted.set()

    async def _on_request(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_wanted.set()
            return None
        # From here on handlers may use timeouts and locks, which need a task around them.
        await asyncio.sleep(0)
        parts = self._running
        view = ConsumerView(
            self.group,
            CONSUME_PASSIVELY,
            self._start_ms,
            self._open_cluster().name_servers,
            self.settings.consume_concurrency,
            self._subscriptions.table.values(),
            {queue: each.process_queue for queue, each in self._assignments.items()},
            parts.consuming.stats,
            parts.offsets,
            self.reset_offsets,
            self._listeners.consume_directly,
            self._subscriptions.is_ordered,
            parts.ownership.locks,
        )
        return await answer_broker(view, command)
