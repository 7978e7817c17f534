"""The asyncio pull consumer: the caller decides which queue to read, where, and what to commit.

It pulls the queues that the caller names. It computes its share of a topic on request only. Like
RocketMQ's it polls the routes of the topics that it has pulled, and its heartbeats make it a member
of its group. Give it a group of its own, since other consumers of the same group leave it a share
of the queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.consumer_settings import PullConsumerSettings, PushConsumerSettings
from kerolox.client.aio.consumers.offset_store import StoredOffsets, stored_offsets
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.aio.consumers.sharing import share_of
from kerolox.client.aio.consumers.stacks import asked_stacks
from kerolox.client.aio.network.instance import HEARTBEAT_FIRST_MS, Member
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.pull import PullResult, pull_request, pull_result
from kerolox.client.core.consuming.rebalance import strategy_of
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.failures import note_failure
from kerolox.client.core.heartbeat import (
    ConsumerFacts,
    running_info_body,
    running_properties,
)
from kerolox.client.core.hooks import ConsumeContext, run_around_pull
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.client.core.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import ClientError, ConfigError
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageExt, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import CONSUME_ACTIVELY, SCHEDULE_QUEUES

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.filter.tags import Subscription
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

_log = logging.getLogger(__name__)


@checked()
class PullConsumer(Client):
    """Reads queues at offsets of the caller's choice.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async with PullConsumer("audit", "127.0.0.1:9876") as consumer:
            for queue in await consumer.queues("Orders"):
                result = await consumer.pull(queue, await consumer.min_offset(queue))
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        settings: PullConsumerSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            group: consumer group.
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            settings: all else.

        Raises:
            ConfigError: the group or the name server is illegal.
        """
        self.settings: PullConsumerSettings = settings or PullConsumerSettings()
        self._is_broadcasting = self.settings.message_model is MessageModel.BROADCASTING
        self._introduce(
            group, name_server, check_consumer_group, keep_default=self._is_broadcasting
        )
        self._reading_group = self.group
        self._start_ms = 0
        self._subscriptions: dict[str, Subscription] = {}
        """The topics that were pulled, as brokers know them."""
        self._noted: StoredOffsets
        """Offsets that the caller had noted; set by the start."""

    async def start(self) -> None:
        """Make ready. No request goes to a broker before the first pull.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        await self._start(self._start_background)

    async def _start_background(self) -> None:
        self._start_ms = clock.now_ms()
        self._open()
        self._noted = self._stored_offsets()
        await self._instance.ready()
        self._instance.join(self)
        self._background.every(self.settings.persist_interval_ms, self._persist, "storing offsets")
        self._background.once(HEARTBEAT_FIRST_MS, self._heartbeat, "heartbeat")

    async def _leave(self, cluster: Cluster) -> None:
        """Store what was noted, and tell the brokers."""
        await self._background.stop()
        try:
            async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                await self._persist(wait=True)
        except TimeoutError as error:
            what = f"not all offsets of group {self.group} were stored in time"
            note_failure(self.settings.on_failure, _log, what, error, is_expected=True)
        await self._instance.unregister_client(self, cluster)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = ALL_TAGS,
        expression_type: str | None = None,
        max_messages: int = 32,
        wait: bool = False,
    ) -> PullResult:
        """Read messages of a queue.

        Args:
            queue: where from.
            offset: the first queue offset.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties;
                for those the broker needs ``enablePropertyFilter=true``.
            expression_type: ``TAG`` or ``SQL92``; None: what the expression looks like.
            max_messages: most messages of the answer (the broker may give fewer).
            wait: when there is nothing, have the broker hold the request until there is, for up
                to ``suspend_timeout_ms``.

        Returns:
            The messages and where to go on; other statuses than FOUND are results, not errors.

        Raises:
            ConfigError: the expression names no tag, or is no condition.
            BrokerError: the broker refused.
            RemotingError: no answer.
        """
        cluster, settings = self._open_cluster(), self.settings
        queue = queue_with_namespace(self._namespace, queue)
        subscription = wanted(queue.topic, expression, expression_type)
        if queue.topic not in self._subscriptions:
            self._subscriptions[queue.topic] = wanted(queue.topic, ALL_TAGS)
        address = await cluster.read_address_of(queue.topic, queue.broker_name)
        request = pull_request(
            self.group,
            queue,
            offset,
            subscription,
            max_messages=max_messages,
            suspend_timeout_ms=settings.suspend_timeout_ms if wait else 0,
            with_subscription=True,
        )
        timeout_ms = settings.suspended_pull_timeout_ms if wait else settings.pull_timeout_ms
        response = await cluster.remoting.invoke(
            address, request, timeout_seconds=timeout_ms / 1000
        )
        result = pull_result(response, queue, subscription, address)
        return self._found(result, queue) if result.messages else result

    def _found(self, result: PullResult, queue: MessageQueue) -> PullResult:
        """Messages as the user knows them, after the hooks have seen them."""
        if self._namespace:
            for message in result.messages:
                message.topic = without_namespace(self._namespace, message.topic)
        hooks = self.settings.consume_hooks
        if hooks:
            shown = queue_without_namespace(self._namespace, queue)
            context = ConsumeContext(self.group, self._namespace, shown, result.messages)
            run_around_pull(hooks, context, self.settings.on_failure)
        return result

    # -- offsets ----------------------------------------------------------------------------------
    async def committed(self, queue: MessageQueue) -> int:
        """The group's committed offset of a queue, as it is stored; -1 when it has none."""
        queue = queue_with_namespace(self._namespace, queue)
        return await self._stored_offsets().load(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset of a queue: the next one that it will consume."""
        queue = queue_with_namespace(self._namespace, queue)
        await self._stored_offsets().store({queue: offset})
        if self._noted.table.read(queue) >= 0:
            self._noted.table.update(queue, offset, increase_only=False)

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Note the group's offset of a queue; it is stored every ``persist_interval_ms``, and at
        close.

        Raises:
            ClientClosedError: not started, or closed.
            ConfigError: the offset is negative.
        """
        self._open_cluster()
        if offset < 0:
            raise ConfigError(f"the offset of {queue} is {offset}; it must be 0 or more")
        queue = queue_with_namespace(self._namespace, queue)
        self._noted.table.update(queue, offset, increase_only=False)

    async def fetch_consume_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int:
        """The offset that was noted here, else the one that is stored; -1: neither.

        Args:
            queue: which one.
            from_store: what was noted here does not count.
        """
        self._open_cluster()
        noted = self._noted.table.read(queue_with_namespace(self._namespace, queue))
        return await self.committed(queue) if from_store or noted < 0 else noted

    def _stored_offsets(self) -> StoredOffsets:
        """Where offsets are kept; with a table of its own, since what others stored is not ours
        to store again."""
        own_id = self._own.client_id
        return stored_offsets(self.settings, self._open_cluster(), own_id, self.group)

    async def _persist(self, *, wait: bool = False) -> None:
        await self._noted.persist([queue for queue, _ in self._noted.table], wait=wait)

    # -- the group --------------------------------------------------------------------------------
    async def fetch_message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """This member's share of a topic's queues now, sorted; all of them when broadcasting.

        It changes as members come and go: ask again from time to time. From the first call on the
        brokers know that this member reads the topic.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError: the broker refused to tell the members.
            RemotingError: no answer.
        """
        cluster, wire_topic = self._open_cluster(), with_namespace(self._namespace, topic)
        await cluster.route(wire_topic)
        self._subscriptions.setdefault(wire_topic, wanted(wire_topic, ALL_TAGS))
        strategy = None if self._is_broadcasting else strategy_of(self.settings.allocation)
        share = await share_of(cluster, self.group, wire_topic, strategy, self._heartbeat)
        return sorted(queue_without_namespace(self._namespace, queue) for queue in share or ())

    async def send_message_back(self, message: MessageExt, *, delay_level: int = 0) -> None:
        """Have a message come again later, in the group's retry topic (``sendMessageBack``).

        Args:
            message: one that was pulled here.
            delay_level: when; 0: the broker decides (3 + retries so far), -1: dead letters.

        Raises:
            ClientError: neither way to do it worked; the log says why.
        """
        settings, level_max = self.settings, SCHEDULE_QUEUES
        if not -1 <= delay_level <= level_max:
            raise ConfigError(f"delay_level is {delay_level}; it must be from -1 to {level_max}")
        given = PushConsumerSettings(
            unit_mode=settings.unit_mode, max_reconsume_times=settings.max_reconsume_times
        )
        back = SendBacks(self.group, self._namespace, given, self._open_cluster())
        if not await back.send_back(message, delay_level, message.broker_name):
            raise ClientError(f"message {message.message_id} could not be given back")

    # -- background -----------------------------------------------------------------------------
    def _member(self) -> Member:
        return Member(self.group, self._topics, self._on_request, consumer=self._facts)

    def _topics(self) -> list[str]:
        return list(self._subscriptions)

    async def _heartbeat(self) -> None:
        await self._instance.send_heartbeat(self._subscriptions)

    def _facts(self) -> ConsumerFacts:
        return ConsumerFacts(
            self.group,
            MessageModel(self.settings.message_model),
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            tuple(self._subscriptions.values()),
            self.settings.unit_mode,
            CONSUME_ACTIVELY,
        )

    async def _on_request(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        """Brokers ask what it does (307), and tell it of members that come and go (40)."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None
        if command.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.not_supported()
        properties = running_properties(
            CONSUME_ACTIVELY, self._start_ms, self._open_cluster().name_servers, threads=0
        )
        return command.response(
            body=running_info_body(
                properties=properties,
                subscriptions=self._subscriptions.values(),
                queues={},
                stats={},
                now_ms=clock.steady_ms(),
                stacks=asked_stacks(command),
            )
        )
