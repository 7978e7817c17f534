"""The asyncio simple consumer: receive messages, work on each, acknowledge that one (POP).

No member owns a queue, so a group may have more members than queues, and one that is slow holds up
nobody. What is not acknowledged in its invisible time comes again, to any member. Members send no
heartbeats: they take no part in the sharing of queues by others of their group.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from kerolox.client.aio.client import Client
from kerolox.client.aio.consumer_settings import SimpleConsumerSettings
from kerolox.client.aio.consumers.popping.keeping import Keeper, Keeping
from kerolox.client.aio.consumers.popping.pops import NoMasterError, Pops
from kerolox.client.aio.consumers.popping.receiving import ReceiveLimits, Receiver
from kerolox.client.aio.consumers.push.send_back import send_copy
from kerolox.client.aio.network.instance import Member
from kerolox.client.core.arguments import received_messages
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.leases import Held
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.consuming.popping import invisible_milliseconds
from kerolox.client.core.consuming.process_queue import MIB
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.delays import Duration, seconds_of
from kerolox.client.core.failures import note_failure, notify_failure
from kerolox.client.core.heartbeat import ConsumerFacts
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.sending.send import dead_letter_message
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import ConfigError, RemotingError
from kerolox.message import (
    ALL_TAGS,
    DEAD_LETTER_REASON,
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    PropertyKey,
)
from kerolox.protocol.pop_names import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.consuming.leases import Lease
    from kerolox.client.core.consuming.popping import PoppedMessages
    from kerolox.filter.tags import Subscription
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

AGAIN_SECONDS = 1.0
"""A loop over the consumer waits so long after brokers did not answer."""

_log = logging.getLogger(__name__)


@checked("ack", "keep", "submit_ack")
class SimpleConsumer(Client):
    """Receives messages of its group, each for a time.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        consumer = SimpleConsumer("orders", "127.0.0.1:9876")
        consumer.subscribe("Orders")
        async with consumer:
            async for message in consumer:
                await work(message)
                await consumer.ack(message)

    The brokers must serve pops, as ours do and those of RocketMQ 5.
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        settings: SimpleConsumerSettings | None = None,
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
        self.settings: SimpleConsumerSettings = settings or SimpleConsumerSettings()
        self._introduce(group, name_server, check_consumer_group)
        self._subscriptions: dict[str, Subscription] = {}
        self._held = Held(self.settings.held_messages_max, self.settings.held_mib_max * MIB)
        self._pops: Pops = None  # type: ignore[assignment]  # until the start
        self._receiver: Receiver = None  # type: ignore[assignment]  # until the start
        self._keeper: Keeper = None  # type: ignore[assignment]  # until the start

    def subscribe(
        self, topic: str, expression: str = ALL_TAGS, expression_type: str | None = None
    ) -> None:
        """Receive a topic, also from now on when it runs; again: with another expression.

        Args:
            topic: which one.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties.
            expression_type: ``TAG`` or ``SQL92``; None: what the expression looks like.

        Raises:
            ConfigError: the expression names no tag, or is no condition.
        """
        wire_topic = with_namespace(self._namespace, topic)
        self._subscriptions[wire_topic] = wanted(wire_topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Receive a topic no more; what is out of it may still be acknowledged."""
        self._subscriptions.pop(with_namespace(self._namespace, topic), None)

    async def start(self) -> None:
        """Make ready. No request goes to a broker before the first ``receive``.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        await self._start(self._start_background)

    async def _start_background(self) -> None:
        cluster, settings = self._open(), self.settings
        pops = self._pops = Pops(self.group, self._namespace, cluster)
        self._receiver = Receiver(cluster, pops, settings, self._subscriptions, self._held)
        self._keeper = Keeper(self._renew, settings.on_failure)
        await self._instance.ready()
        self._background.every(
            self.settings.route_poll_interval_ms, self._poll_routes, "route poll"
        )

    async def _poll_routes(self) -> None:
        await self._instance.poll(list(self._subscriptions))

    async def _leave(self, cluster: Cluster) -> None:
        """Send what was acknowledged; give back what was not returned: it comes again at once."""
        await self._background.stop()
        await self._keeper.close()
        for poll in self._receiver.close():
            # A broker that others of the connection use holds it on; what it brings goes back.
            poll.add_done_callback(self._give_back_late)
        await self._pops.acks.close(OFFSETS_SECONDS_MAX)
        self._pops.acks.abort()
        try:
            async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                await self._give_back(self._receiver.left())
        except TimeoutError as error:
            what = "not all messages were given back in time, they come again later"
            note_failure(self.settings.on_failure, _log, what, error)

    async def _give_back(self, messages: list[MessageExt]) -> None:
        """Messages that nobody saw come again at once."""
        for error in await self._pops.give_back(messages):
            what = "a message that nobody saw comes again later"
            _log.info("%s: %s", what, error)
            notify_failure(self.settings.on_failure, what, error)

    def _give_back_late(self, poll: asyncio.Task[PoppedMessages]) -> None:
        if poll.cancelled() or poll.exception() is not None:
            return
        if messages := poll.result().pulled.messages:
            self._background.start(self._give_back(messages))

    # -- messages -------------------------------------------------------------------------------
    async def receive(
        self,
        max_messages: int | None = None,
        *,
        wait: Duration | None = None,
        invisible: Duration | None = None,
    ) -> list[MessageExt]:
        """Receive messages, as soon as there are some.

        Each is to be acknowledged within its invisible time. One that a cancelled call had on its
        way is given to the next call.

        Args:
            max_messages: most messages, 1 to 32; None: ``receive_batch_size``.
            wait: seconds or a ``timedelta`` to wait for the first one; None: ``wait_ms``.
            invisible: how long nobody else gets them; None: ``invisible_ms``.

        Returns:
            Empty when none came in that time.

        Raises:
            ConfigError: no topic is subscribed, or an argument is out of range.
            ClientError: a broker is too old to serve pops.
            TopicRouteNotFoundError: no name server knows any of the topics. One that is unknown
                beside others is noted (``on_failure``).
            BrokerError: a broker refused.
            RemotingError: no broker answers.
        """
        self._open_cluster()
        settings = self.settings
        count = settings.receive_batch_size if max_messages is None else max_messages
        if not 1 <= count <= POP_MESSAGES_MAX:
            raise ConfigError(f"max_messages is {count}; it must be from 1 to {POP_MESSAGES_MAX}")
        invisible_ms = settings.invisible_ms
        if invisible is not None:
            invisible_ms = invisible_milliseconds(seconds_of(invisible), "invisible")
        seconds = settings.wait_ms / 1000 if wait is None else seconds_of(wait)
        deadline = asyncio.get_running_loop().time() + seconds
        return await self._receiver.receive(ReceiveLimits(count, invisible_ms, deadline))

    def __aiter__(self) -> Self:
        """All messages, one after the other, for ever. While brokers do not answer it waits."""
        return self

    async def __anext__(self) -> MessageExt:
        settings, receiver = self.settings, self._receiver
        self._open_cluster()
        while True:
            if receiver.wants_more(taking=1):
                receiver.ask_ahead(self._next_limits())
                await asyncio.sleep(0)  # so that it leaves, though the loop may not wait
            message = receiver.take_one()
            if message is not None:
                return message
            try:
                await receiver.arrived(self._next_limits())
            except (RemotingError, NoMasterError) as error:
                what = f"receiving for group {self.group} failed, trying again"
                note_failure(settings.on_failure, _log, what, error)
                await asyncio.sleep(AGAIN_SECONDS)

    def _next_limits(self) -> ReceiveLimits:
        settings = self.settings
        deadline = asyncio.get_running_loop().time() + settings.wait_ms / 1000
        return ReceiveLimits(self._receiver.batch_size, settings.invisible_ms, deadline)

    # -- what becomes of them -------------------------------------------------------------------
    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """A message is done, or several are: they do not come again.

        Those of many callers at once travel in one request for each broker. One whose
        time was over, and that came again, is not done by it: the later delivery counts.

        Args:
            messages: one that was received here, or by another member of the group; or several.

        Raises:
            ConfigError: one was not received by a simple consumer.
            BrokerError: a broker refused.
            RemotingError: no answer.
        """
        await self.submit_ack(messages)

    def submit_ack(self, messages: MessageExt | Iterable[MessageExt]) -> Future[None]:
        """As :meth:`ack`, without waiting for it; arguments and errors are the same.

        Returns:
            A future that ends when the brokers know; nobody has to wait for it.
        """
        self._open_cluster()
        some = received_messages(messages)
        done = self._pops.done(some)
        for lease, offsets in done.items():
            self._held.remove_all(lease, offsets)
        self._receiver.capacity_freed()
        if self._keeper.is_renewing(some):
            return asyncio.ensure_future(self._ack_renewed(some))
        return self._pops.acks.add(done)

    async def _ack_renewed(self, messages: list[MessageExt]) -> None:
        """Acknowledge by the receipts that come with renewals that are on their way."""
        await self._keeper.settled(*messages)
        await self._pops.acks.add(self._pops.done(messages))

    async def extend(self, message: MessageExt, invisible: Duration) -> None:
        """Keep a message for longer: its invisible time begins anew now.

        Args:
            message: one that was received, and is not done.
            invisible: seconds or a ``timedelta``, up to three days.

        Raises:
            ConfigError: the time is out of range, or the message was not received by a pop.
            BrokerError: the broker refused; code 208: the message is done, or came again.
            RemotingError: no answer.
        """
        milliseconds = invisible_milliseconds(seconds_of(invisible), "invisible")
        self._open_cluster()
        await self._keeper.settled(message)
        await self._renew(message, *self._pops.leased(message), milliseconds)

    def keep(
        self, messages: MessageExt | Iterable[MessageExt], *, up_to: Duration = 3600
    ) -> Keeping:
        """Keep messages while somebody works on them: before the invisible time of one ends, it
        begins anew, by itself.

        It ends with ``ack`` and ``nack`` of a message, with the block, however that ends, with the
        consumer, and after ``up_to``::

            with consumer.keep(message, up_to=timedelta(minutes=30)):
                await work(message)
                await consumer.ack(message)

        Args:
            messages: one that was received and is not done, or several.
            up_to: seconds or a ``timedelta``, from now on.

        Returns:
            What ends it; its ``lost`` names messages that others may get all the same.

        Raises:
            ConfigError: one was not received by a pop, or the time is out of range.
        """
        self._open_cluster()
        seconds = invisible_milliseconds(seconds_of(up_to), "up_to") / 1000
        some = received_messages(messages)
        leases = []
        for message in some:
            lease, offset = self._pops.leased(message)
            lease.out.setdefault(offset, message)
            leases.append((lease, (offset,)))
        keeping = Keeping()
        self._keeper.keep(leases, asyncio.get_running_loop().time() + seconds, keeping)
        return keeping

    async def _renew(
        self, message: MessageExt, lease: Lease, offset: int, milliseconds: int
    ) -> Lease:
        """Have the time of a message begin anew; it is out of the new lease then, if it still was
        out of the old one."""
        new = await self._pops.change(message, lease, offset, milliseconds)
        self._held.renewed(message, lease, offset, new, asyncio.get_running_loop().time())
        return new

    async def nack(self, message: MessageExt, *, after: Duration = 0) -> None:
        """A message is not done: it comes again, to any member, with one more of
        ``reconsume_times``. At the group's maximum it goes to the dead letters.

        Args:
            message: one that was received, and is not done.
            after: seconds or a ``timedelta`` until then.

        Raises:
            BrokerError: as :meth:`extend`.
        """
        milliseconds = invisible_milliseconds(seconds_of(after), "after", least=0)
        self._open_cluster()
        lease, offset = self._pops.leased(message)
        self._held.remove(lease, offset)
        self._receiver.capacity_freed()
        if self._keeper.is_renewing([message]):
            await self._keeper.settled(message)
            lease, offset = self._pops.leased(message)
        await self._pops.change(message, lease, offset, milliseconds)

    async def dead_letter(self, message: MessageExt, reason: str = "") -> None:
        """A message goes to the group's dead letters at once, and is done.

        Args:
            message: one that was received, and is not done.
            reason: kept in the dead letter's property ``DEAD_LETTER_REASON``, up to 500
                characters.

        Raises:
            ConfigError: it was not received by a pop, or the reason is no text.
            BrokerError: a broker refused. The message comes again.
            RemotingError: no answer. The message comes again, and may be a dead letter too.
        """
        kept = Outcome.dead_letter(reason).reason
        cluster = self._open_cluster()
        lease, _ = self._pops.leased(message)
        properties = {DEAD_LETTER_REASON: kept} if kept else {}
        # By this who sends it again knows where the group reads its retries.
        first = message.properties.get(PropertyKey.FIRST_POP_TIME, str(lease.times.pop_time))
        properties[PropertyKey.FIRST_POP_TIME] = first
        copy = dead_letter_message(
            message,
            self.group,
            properties=properties,
            topic=with_namespace(self._namespace, message.topic),
        )
        await send_copy(cluster, copy, lease.broker_name, unit_mode=self.settings.unit_mode)
        await self.ack(message)

    # -- as a client ----------------------------------------------------------------------------
    def _member(self) -> Member:
        return Member(self.group, self._topics, self._on_request, consumer=self._facts)

    def _topics(self) -> list[str]:
        return list(self._subscriptions)

    def _facts(self) -> ConsumerFacts:
        return ConsumerFacts(
            self.group,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            tuple(self._subscriptions.values()),
        )

    async def _on_request(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        return command.not_supported()
