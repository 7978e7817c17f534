"""The asyncio pull consumer: the caller decides which queue to read, where, and what to commit.

It takes no part in the sharing of queues. Like RocketMQ's it polls the routes of the topics that it
has pulled, and makes itself known to their brokers as a member of its group: give it a group of its
own, since push consumers of the same group would leave it a share of the queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.consumers.offset_store import BrokerOffsets, store_offset
from kerolox.client.aio.network.instance import HEARTBEAT_FIRST_MS, Member
from kerolox.client.aio.settings import PullConsumerSettings
from kerolox.client.core.consuming.pull import PullResult, pull_request, pull_result
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.heartbeat import (
    ACTIVELY,
    ConsumerFacts,
    running_info_body,
    running_properties,
)
from kerolox.client.core.hooks import ConsumeContext, run_hooks
from kerolox.client.core.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    without_namespace,
)
from kerolox.client.core.validate import check_consumer_group
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageModel
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageQueue
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection


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
        self._introduce(group, name_server, check_consumer_group)
        self._start_ms = 0
        self._subscriptions: dict[str, Subscription] = {}
        """The topics that were pulled, as brokers know them."""

    async def start(self) -> None:
        """Make ready; nothing is asked of a broker before the first pull.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        await self._start(self._start_background)

    async def _start_background(self) -> None:
        self._start_ms = clock.now_ms()
        self._open()
        await self._instance.ready()
        self._instance.join(self)
        self._background.once(HEARTBEAT_FIRST_MS, self._heartbeat, "heartbeat")

    async def _leave(self, cluster: Cluster) -> None:
        """Tell the brokers."""
        await self._background.stop()
        await self._instance.say_farewell(self, cluster)

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
            run_hooks((hook.before_consume for hook in hooks), context)
            context.is_success = True
            run_hooks((hook.after_consume for hook in hooks), context)
        return result

    async def committed(self, queue: MessageQueue) -> int:
        """The group's committed offset of a queue; -1 when it has none."""
        queue = queue_with_namespace(self._namespace, queue)
        return await BrokerOffsets(self._open_cluster(), self.group).load(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset of a queue: the next one that it will consume."""
        queue = queue_with_namespace(self._namespace, queue)
        await store_offset(self._open_cluster(), self.group, queue, offset)

    # -- background -----------------------------------------------------------------------------
    def _member(self) -> Member:
        return Member(self.group, self._topics, self._on_request, consumer=self._facts)

    def _topics(self) -> list[str]:
        return list(self._subscriptions)

    async def _heartbeat(self) -> None:
        await self._instance.greet(self._subscriptions)

    def _facts(self) -> ConsumerFacts:
        return ConsumerFacts(
            self.group,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            tuple(self._subscriptions.values()),
            self.settings.unit_mode,
            ACTIVELY,
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
            ACTIVELY, self._start_ms, self._open_cluster().name_servers, threads=0
        )
        return command.response(
            body=running_info_body(
                properties=properties,
                subscriptions=self._subscriptions.values(),
                queues={},
                stats={},
                now_ms=clock.now_ms(),
            )
        )
