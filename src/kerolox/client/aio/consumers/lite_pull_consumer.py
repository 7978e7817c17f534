"""The asyncio lite pull consumer: the caller asks for messages, and decides when it has them.

It pulls ahead in the background, as a push consumer does, and ``poll`` returns what is there.
Queues are shared with the other members of the group (``subscribe``), or are those that the caller
names (``assign``).

What a poll returned counts as consumed when the caller polls again, or commits. So nothing is lost
when it stops in between: the next reader of the queue gets those messages again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.consumer_settings import LitePullConsumerSettings
from kerolox.client.aio.consumers.broker_requests import ConsumerView, answer_broker
from kerolox.client.aio.consumers.consume_tracing import consume_tracing
from kerolox.client.aio.consumers.lite.member import SUBSCRIBE, LiteMember
from kerolox.client.aio.consumers.lite.topic_watch import TopicWatch
from kerolox.client.aio.consumers.offset_store import BrokerOffsets
from kerolox.client.aio.consumers.queue_events import QueuesCallback
from kerolox.client.aio.consumers.sharing import keep_balanced
from kerolox.client.aio.network.instance import Member
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.hooks import ConsumeContext, run_around_pull
from kerolox.client.core.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from kerolox.client.core.validate import check_consumer_group, check_topic
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from kerolox.message import ALL_TAGS, MessageExt, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import CONSUME_ACTIVELY

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

PARTING_SECONDS_MAX = 1.0
"""How long a close waits for the callbacks of revoked queues."""


@checked()
class LitePullConsumer(Client):
    """Reads topics as a member of a group, or queues of the caller's choice, by polling.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        consumer = LitePullConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("Orders", "paid || shipped")
        async with consumer:
            while True:
                for message in await consumer.poll():
                    print(message.body)
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        settings: LitePullConsumerSettings | None = None,
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
        self.settings: LitePullConsumerSettings = settings or LitePullConsumerSettings()
        keep_default = self.settings.message_model is MessageModel.BROADCASTING
        ip = self._introduce(group, name_server, check_consumer_group, keep_default=keep_default)
        self._reading_group = self.group
        self._arrived = asyncio.Event()
        self._group_member = LiteMember(
            self.group,
            self._namespace,
            self.settings,
            self,
            self._background,
            has_arrived=self._arrived.set,
        )
        self._machine = self._group_member.machine
        self._watch = TopicWatch(self._namespace)
        self._commit_due = 0.0
        self._tracing, self._hooks = consume_tracing(group, self._name_servers, ip, self.settings)

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that are ours now, sorted."""
        return sorted(map(self._shown, self._machine.queues))

    # -- what to read -----------------------------------------------------------------------------
    def subscribe(
        self, topic: str, expression: str = ALL_TAGS, *, expression_type: str | None = None
    ) -> None:
        """Read a topic: this member's share of its queues, or all when broadcasting.

        May be called before or after the start; a second call for a topic replaces the first.

        Args:
            topic: what to read.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties;
                for those the brokers need ``enablePropertyFilter=true``.
            expression_type: ``TAG`` or ``SQL92``; None: what the expression looks like.

        Raises:
            MessageRejectedError: the topic's name is illegal.
            ConfigError: the expression names no tag, or is no condition.
            ClientError: queues were assigned; subscribe and assign exclude each other.
        """
        wire_topic = with_namespace(self._namespace, topic)
        check_topic(wire_topic)
        self._group_member.subscribe(wanted(wire_topic, expression, expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer: nothing more of it is returned. Its queues go to other members
        with the next rebalance."""
        self._group_member.unsubscribe(with_namespace(self._namespace, topic))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whoever else reads them.

        May be called before or after the start, and again: queues that stay go on where they are.

        Args:
            queues: at least one.

        Raises:
            ConfigError: there is none.
            ClientError: a topic was subscribed; subscribe and assign exclude each other.
        """
        named = [self._named(queue) for queue in queues]
        if not named:
            raise ConfigError("no queue is assigned; name at least one")
        if self._cluster is not None:
            self._open_cluster()
        self._group_member.assign(named)

    # -- callbacks --------------------------------------------------------------------------------
    def on_assigned(self, callback: QueuesCallback) -> None:
        """Have a function called with the queues that a rebalance brings to this consumer, before
        it pulls them.

        Args:
            callback: an async function of a list of queues; it may seek them. A rebalance waits for
                it, up to five seconds.
        """
        self._group_member.events.on_assigned.append(callback)

    def on_revoked(self, callback: QueuesCallback) -> None:
        """Have a function called with the queues that this consumer is about to lose, before their
        offsets are stored; also when it closes.

        Nothing of them is returned any more.

        Args:
            callback: as for :meth:`on_assigned`; it may commit them. A close waits for it for a
                second.
        """
        self._group_member.events.on_revoked.append(callback)

    def register_topic_queue_listener(self, topic: str, callback: QueuesCallback) -> None:
        """Have a function called when the queues of a topic change
        (``registerTopicMessageQueueChangeListener``).

        Args:
            topic: any topic; it need not be read here. A second call for it replaces the first.
            callback: an async function of a list of all queues that the topic has now.

        Raises:
            MessageRejectedError: the topic's name is illegal.
        """
        wire_topic = with_namespace(self._namespace, topic)
        check_topic(wire_topic)
        self._watch.callbacks[wire_topic] = callback
        if self._cluster is not None:
            self._background.start(self._watch.poll_topic(self._open_cluster(), wire_topic))

    # -- life -------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Join the group, and start to pull what is subscribed or assigned.

        Raises:
            ClientClosedError: it was closed before; make a new one.
            ConnectError: no name server answers.
            BrokerError: a broker does not serve a condition (SQL92), or can't read it.
        """
        await self._start(self._join)

    async def _join(self) -> None:
        settings, every, member = self.settings, self._background.every, self._group_member
        cluster = self._open()
        self._commit_due = self._now() + settings.auto_commit_interval_ms / 1000
        await self._instance.ready()
        if self._tracing is not None:
            await self._tracing.start()
        await self._watch.poll_all(cluster)
        await member.join(cluster, self._instance, self._own.client_id)
        every(settings.persist_interval_ms, member.persist, "storing offsets")
        every(settings.topic_check_interval_ms, self._poll_topics, "examine topics")
        self._background.start(
            keep_balanced(
                self.group,
                member.rebalance_wanted,
                settings.rebalance_interval_ms,
                member.rebalance,
                member.is_behind,
                settings.on_failure,
            )
        )

    def _member(self) -> Member:
        member = self._group_member
        return Member(
            self.group,
            lambda: member.topics,
            self._on_request,
            member.has_route,
            consumer=member.facts,
            holds=lambda topic: any(queue.topic == topic for queue in member.machine.queues),
        )

    async def _poll_topics(self) -> None:
        await self._watch.poll_all(self._open_cluster())

    async def rebalance(self) -> None:
        """Compare what we own with what is our share, now. Happens by itself in the background."""
        self._open_cluster()
        await self._group_member.rebalance()

    async def close(self) -> None:
        """Leave the group cleanly, within five seconds. Idempotent.

        With ``auto_commit`` it first stores what counts as consumed: all but what the last poll
        returned. Call :meth:`commit` before, if that is done too. Without ``auto_commit`` only what
        was committed counts. A poll that waits ends with an error.

        Whoever calls it meanwhile waits for the same end, which goes on when a caller is cancelled.
        """
        await super().close()

    async def _close(self) -> None:
        if self._cluster is not None and self._starting is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING_SECONDS_MAX):
                    await self._group_member.part()
        await super()._close()

    async def _leave(self, cluster: Cluster) -> None:
        self._arrived.set()  # a poll that waits must hear of it
        await self._background.stop()
        tracing = () if self._tracing is None else (self._tracing.close(),)
        leaving = self._group_member.leave(cluster, for_ever=self._closed)
        await asyncio.gather(leaving, *tracing)

    # -- messages ---------------------------------------------------------------------------------
    async def poll(
        self, timeout_ms: int | None = None, *, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Messages of one queue, in order; empty when none came in time.

        It gives what one pull of a queue found, and buffers nothing from several. That is never
        more than ``pull_batch_size`` (10 by default), so set that for larger lists.

        What earlier polls returned counts as consumed from now on. Messages of queues that are
        paused, or were taken away, are not returned. A message whose body can't be inflated has
        ``body_error`` set. Poll in one task at a time, or switch ``auto_commit`` off and commit.

        Args:
            timeout_ms: how long to wait; None: ``poll_timeout_ms``; 0: not at all.
            max_messages: at most so many of these; None: all.

        Raises:
            ClientClosedError: not started, or closed, also while this waits.
            ConfigError: an argument is out of range.
        """
        timeout_ms = self._come_back(timeout_ms, max_messages)
        taken = self._machine.take(max_messages)
        if taken is None and timeout_ms:
            await self._wait_for(1, timeout_ms)
            taken = self._machine.take(max_messages)
        return [] if taken is None else self._for_user(*taken)

    async def poll_many(
        self, timeout_ms: int | None = None, *, max_messages: int = 1_000
    ) -> dict[MessageQueue, list[MessageExt]]:
        """Messages of all queues, by queue, each list in order; empty when none came in time.

        It waits until so many are there, or the time is over, and gives what there is then. No more
        are there than the settings let a consumer pull ahead (``cached_messages_max`` of a queue).
        All else is as of :meth:`poll`.

        Args:
            timeout_ms: how long to gather; None: ``poll_timeout_ms``; 0: not at all.
            max_messages: at most so many in all.

        Raises:
            ClientClosedError: not started, or closed, also while this waits; nothing is lost.
            ConfigError: an argument is out of range.
        """
        timeout_ms = self._come_back(timeout_ms, max_messages)
        if timeout_ms:
            await self._wait_for(max_messages, timeout_ms)
        taken = self._machine.take_many(max_messages)
        return {
            self._shown(queue): self._for_user(queue, messages) for queue, messages in taken.items()
        }

    async def _wait_for(self, count: int, timeout_ms: int) -> None:
        """Until so many messages are there, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while self._machine.ready_count < count:
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._open_cluster()

    def _come_back(self, timeout_ms: int | None, max_messages: int | None) -> int:
        """The user wants more: what was returned counts as consumed; the time to wait."""
        timeout_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        if timeout_ms < 0:
            raise ConfigError(f"timeout_ms is {timeout_ms}; it must be 0 or more")
        if max_messages is not None and max_messages < 1:
            raise ConfigError(f"max_messages is {max_messages}; it must be 1 or more")
        self._open_cluster()
        self._machine.count_returned()
        now = self._now()
        if now >= self._commit_due:
            self._commit_due = now + self.settings.auto_commit_interval_ms / 1000
            self._group_member.note_consumed()
        return timeout_ms

    def _for_user(self, queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Messages as the user knows them, after the hooks have seen them."""
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(self._namespace, message.topic)
        self._machine.queues[queue].process_queue.last_consume_ms = clock.steady_ms()
        if self._hooks:
            context = ConsumeContext(self.group, self._namespace, self._shown(queue), messages)
            run_around_pull(self._hooks, context, self.settings.on_failure)
        return messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        """The next message; the one before counts as consumed. Ends when the consumer is closed."""
        while True:
            try:
                messages = await self.poll(max_messages=1)
            except ClientClosedError:
                if self._closed:
                    raise StopAsyncIteration from None
                raise
            if messages:
                return messages[0]

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pull these queues nor return what was pulled of them; others are ignored."""
        self._machine.pause(map(self._named, queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """The end of :meth:`pause`."""
        self._machine.resume(map(self._named, queues))
        self._arrived.set()

    # -- offsets ----------------------------------------------------------------------------------
    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset: nothing that was pulled before is returned any more.

        What was returned before does not count as consumed; this offset is what a commit stores.

        Args:
            queue: one that is ours.
            offset: from that of the oldest message that is stored to that of the next one.

        Raises:
            ClientError: the queue is not ours, or the offset is out of range.
            BrokerError: the broker refused to tell the range.
            RemotingError: no answer.
        """
        self._check_ours(queue)
        least, most = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not least <= offset <= most:
            raise ClientError(f"offset {offset} of {queue} is not from {least} to {most}")
        self._check_ours(queue)  # it may have gone meanwhile
        self._group_member.seek(self._named(queue), offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message that is stored. Errors: as of :meth:`seek`."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on after the newest message. Errors: as of :meth:`seek`."""
        await self.seek(queue, await self.max_offset(queue))

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Count as consumed what was returned, and tell the brokers without waiting for an answer.

        Args:
            offsets: None: all that was returned; queues: what was returned of these; a mapping:
                the next offset to consume, by queue.

        Raises:
            ClientError: a queue is not ours.
            ConfigError: an offset is negative.
        """
        self._open_cluster()
        noted = self._commit(offsets)
        await self._group_member.offsets.persist(noted)

    async def commit_sync(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """As :meth:`commit`, and wait until it is stored.

        Args:
            offsets: as of :meth:`commit`.

        Raises:
            ClientError: a queue is not ours.
            ConfigError: an offset is negative.
            BrokerError: a broker refused; the offsets of others may be stored.
            RemotingError: no answer.
        """
        self._open_cluster()
        noted = self._commit(offsets)
        await self._group_member.offsets.store(noted)

    async def committed(self, queue: MessageQueue) -> int:
        """The group's committed offset of a queue; -1 when it has none.

        Of a queue that is ours it is the one that was committed here last, be it stored or not.
        """
        cluster, queue, member = self._open_cluster(), self._named(queue), self._group_member
        known = member.offsets.table.read(queue) if queue in self._machine.queues else -1
        if known >= 0:
            return known
        if member.is_broadcasting:
            return await member.offsets.load(queue)
        return await BrokerOffsets(cluster, self.group).load(queue)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See :meth:`offset_by_time`."""
        return await self.offset_by_time(queue, timestamp_ms)

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read, sorted; whoever reads them.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
        """
        return await self.queues(topic)

    def _check_ours(self, queue: MessageQueue) -> None:
        self._open_cluster()
        item = self._machine.queues.get(self._named(queue))
        if item is None or item.is_withheld:
            is_shared = self._group_member.kind == SUBSCRIBE
            why = "; a rebalance may have taken it away" if is_shared else ""
            raise ClientError(f"{queue} is not assigned to this consumer{why}")

    def _commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None
    ) -> dict[MessageQueue, int]:
        """Count queues as consumed; what to store."""
        if isinstance(offsets, Mapping):
            noted = {self._named(queue): offset for queue, offset in offsets.items()}
            for queue, offset in offsets.items():
                if offset < 0:
                    raise ConfigError(f"the offset of {queue} is {offset}; it must be 0 or more")
            self._check_may_commit(noted)
            self._machine.commit(noted)
        else:
            queues = None if offsets is None else [self._named(queue) for queue in offsets]
            self._check_may_commit(queues or ())
            noted = self._machine.commit_returned(queues)
        self._group_member.note(noted)
        return noted

    def _check_may_commit(self, queues: Iterable[MessageQueue]) -> None:
        """Those that are about to be taken away may still be committed."""
        for queue in queues:
            if queue not in self._machine.queues:
                raise ClientError(f"{self._shown(queue)} is not assigned to this consumer any more")

    async def _on_request(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        member = self._group_member
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            member.rebalance_wanted.set()
            return None
        view = ConsumerView(
            self.group,
            CONSUME_ACTIVELY,
            member.start_ms,
            self._open_cluster().name_servers,
            self.settings.pull_concurrency,
            list(member.subscriptions.values()),
            {queue: item.process_queue for queue, item in self._machine.queues.items()},
            {},
            member.offsets,
            member.reset_offsets,
        )
        return await answer_broker(view, command)

    # -- names ------------------------------------------------------------------------------------
    def _named(self, queue: MessageQueue) -> MessageQueue:
        """As brokers know it."""
        return queue_with_namespace(self._namespace, queue)

    def _shown(self, queue: MessageQueue) -> MessageQueue:
        """As the user knows it."""
        return queue_without_namespace(self._namespace, queue)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
