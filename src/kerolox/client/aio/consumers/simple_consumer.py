"""The asyncio simple consumer: receive messages, work on each, acknowledge that one (POP).

No member owns a queue, so a group may have more members than queues, and one that is slow holds up
nobody. What is not acknowledged in its invisible time comes again, to any member. Members send no
heartbeats: they take no part in the sharing of queues by others of their group.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Self

from kerolox.client.aio.client import Client
from kerolox.client.aio.consumer_settings import SimpleConsumerSettings
from kerolox.client.aio.network.instance import Member
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.popping import (
    Popped,
    ack_request,
    batch_ack_request,
    change_request,
    changed_receipt,
    invisible_milliseconds,
    is_batchable,
    pop_request,
    popped_messages,
    popped_of,
)
from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.delays import Duration, seconds_of
from kerolox.client.core.failures import notify_failure
from kerolox.client.core.heartbeat import ConsumerFacts
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import (
    ClientError,
    ConfigError,
    KeroloxError,
    RequestCodeNotSupportedError,
)
from kerolox.message import ALL_TAGS, ConsumeFromWhere, MessageExt, MessageModel, PropertyKey
from kerolox.protocol.codes import Perm
from kerolox.protocol.pop import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.filter.tags import Subscription
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

ACKS_OF_REQUEST_MAX = 256
"""Acknowledgements that one request gathers."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 1.0
"""Between two requests to a broker that has nothing and does not hold them; the pause doubles."""

_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker_name: str


_Visible = tuple[float, MessageExt]
"""When others may get a message, by the event loop's clock."""


@checked("ack")
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
        self._polls: dict[_Place, asyncio.Task[list[_Visible]]] = {}
        """Requests on their way; whoever receives next takes what they bring."""
        self._ready: deque[_Visible] = deque()
        """Messages that came and were not returned, with the time when they are visible again."""
        self._acks: dict[str, list[tuple[Popped, asyncio.Future[None]]]] = {}
        """By broker name; gathered in one iteration of the event loop."""
        self._acking: set[asyncio.Task[None]] = set()
        self._turn = 0

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
        self._open()
        await self._instance.ready()
        self._background.every(
            self.settings.route_poll_interval_ms, self._poll_routes, "route poll"
        )

    async def _poll_routes(self) -> None:
        await self._instance.poll(list(self._subscriptions))

    async def _leave(self, cluster: Cluster) -> None:
        """Send what was acknowledged; give back what was not returned: it comes again at once."""
        await self._background.stop()
        for task in self._polls.values():
            task.cancel()
        self._send_acks(cluster)
        if self._acking:
            await asyncio.wait(self._acking, timeout=OFFSETS_SECONDS_MAX)
        left = [message for _, message in self._ready]
        self._ready.clear()
        for message in left:
            try:
                await self._change(cluster, message, 0)
            except KeroloxError as error:
                what = f"message {message.message_id} comes again later"
                _log.info("%s: %s", what, error)
                notify_failure(self.settings.on_failure, what, error)

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
            TopicRouteNotFoundError: no name server knows a topic.
            BrokerError: a broker refused.
            RemotingError: no broker answers.
        """
        cluster, settings = self._open_cluster(), self.settings
        count = settings.receive_batch_size if max_messages is None else max_messages
        if not 1 <= count <= POP_MESSAGES_MAX:
            raise ConfigError(f"max_messages is {count}; it must be from 1 to {POP_MESSAGES_MAX}")
        invisible_ms = settings.invisible_ms
        if invisible is not None:
            invisible_ms = invisible_milliseconds(seconds_of(invisible), "invisible")
        seconds = settings.wait_ms / 1000 if wait is None else seconds_of(wait)
        return await _Receiving(self, cluster, count, invisible_ms, seconds).messages()

    def __aiter__(self) -> Self:
        """All messages, one after the other, for ever."""
        return self

    async def __anext__(self) -> MessageExt:
        while True:
            if found := self._take(1) or await self.receive():
                # Those behind it are for the next call.
                now = asyncio.get_running_loop().time()
                left = now + self.settings.invisible_ms / 1000
                self._ready.extendleft((left, each) for each in reversed(found[1:]))
                return found[0]

    def _take(self, count: int) -> list[MessageExt]:
        """What came before, as far as its time is not over."""
        now = asyncio.get_running_loop().time()
        found: list[MessageExt] = []
        while self._ready and len(found) < count:
            visible_at, message = self._ready.popleft()
            if visible_at > now:
                found.append(message)
        return found

    async def _places(self, cluster: Cluster) -> list[_Place]:
        """The topics and brokers to ask, from another one on each time."""
        if not self._subscriptions:
            raise ConfigError("no topic is subscribed; call subscribe before receive")
        places: list[_Place] = []
        for topic in self._subscriptions:
            route = await cluster.route(topic)
            readable = (each.broker_name for each in route.queues if each.perm & Perm.READ)
            places += [_Place(topic, name) for name in dict.fromkeys(readable)]
        if not places:
            raise ClientError(f"no broker lets {', '.join(self._subscriptions)} be read")
        self._turn += 1
        at = self._turn % len(places)
        return places[at:] + places[:at]

    async def _pop(
        self, cluster: Cluster, place: _Place, count: int, invisible_ms: int, seconds: float
    ) -> list[_Visible]:
        """Messages of one topic at one broker, with the time when others may get them."""
        subscription = self._subscriptions[place.topic]
        address = await self._address(cluster, place)
        request = pop_request(
            self.group,
            subscription,
            max_messages=count,
            invisible_ms=invisible_ms,
            poll_ms=round(seconds * 1000),
            from_first=self.settings.from_first,
            is_ordered=self.settings.is_ordered,
            attempt_id=uuid.uuid4().hex if self.settings.is_ordered else None,
        )
        response = await cluster.remoting.invoke(
            address, request, timeout_seconds=seconds + cluster.timeout_seconds
        )
        visible_at = asyncio.get_running_loop().time() + invisible_ms / 1000
        messages = popped_messages(
            response, subscription, broker_name=place.broker_name, address=address
        )
        wanted_ones = [each for each in messages if self._is_wanted(cluster, each, subscription)]
        return [(visible_at, each) for each in wanted_ones]

    def _is_wanted(self, cluster: Cluster, message: MessageExt, subscription: Subscription) -> bool:
        """A broker compares hashes of tags; a message that has the hash alone is done."""
        tags = subscription.tags
        if tags and message.properties.get(PropertyKey.TAGS, "") not in tags:
            self._gather_ack(cluster, popped_of(message, subscription.topic))
            return False
        if self._namespace:
            message.topic = without_namespace(self._namespace, message.topic)
        return True

    async def _address(self, cluster: Cluster, place: _Place) -> str:
        address = cluster.master_address(place.broker_name)
        if address is None:
            await cluster.refresh(place.topic)
            address = cluster.master_address(place.broker_name)
        if address is None:
            raise ClientError(f"broker {place.broker_name} has no master now, which serves pops")
        return address

    # -- what becomes of them -------------------------------------------------------------------
    async def ack(self, message: MessageExt) -> None:
        """A message is done: it does not come again.

        Those of many callers at once travel in one request for each broker. One whose
        time was over, and that came again, is not done by it: the later delivery counts.

        Args:
            message: one that was received here, or by another member of the group.

        Raises:
            ConfigError: it was not received by a simple consumer.
            BrokerError: the broker refused.
            RemotingError: no answer.
        """
        cluster = self._open_cluster()
        topic = with_namespace(self._namespace, message.topic)
        await asyncio.shield(self._gather_ack(cluster, popped_of(message, topic)))

    def _gather_ack(self, cluster: Cluster, popped: Popped) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self._acks:
            loop.call_soon(self._send_acks, cluster)
        future: asyncio.Future[None] = loop.create_future()
        # Whoever waited may be gone, or nobody did.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._acks.setdefault(popped.receipt.broker_name, []).append((popped, future))
        return future

    def _send_acks(self, cluster: Cluster) -> None:
        gathered, self._acks = self._acks, {}
        for broker_name, acks in gathered.items():
            together = [each for each in acks if is_batchable(each[0])]
            for start in range(0, len(together), ACKS_OF_REQUEST_MAX):
                batch = together[start : start + ACKS_OF_REQUEST_MAX]
                self._begin_acks(cluster, broker_name, batch)
            for each in acks:
                if not is_batchable(each[0]):
                    self._begin_acks(cluster, broker_name, [each])

    def _begin_acks(
        self,
        cluster: Cluster,
        broker_name: str,
        acks: list[tuple[Popped, asyncio.Future[None]]],
    ) -> None:
        task = asyncio.ensure_future(self._acked(cluster, broker_name, acks))
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    async def _acked(
        self,
        cluster: Cluster,
        broker_name: str,
        acks: list[tuple[Popped, asyncio.Future[None]]],
    ) -> None:
        """Acknowledge messages of a broker, in one request if that knows how."""
        try:
            address = await self._address(cluster, _Place(acks[0][0].topic, broker_name))
            popped = [each for each, _ in acks]
            if len(acks) > 1:
                try:
                    await self._invoke(cluster, address, batch_ack_request(self.group, popped))
                except RequestCodeNotSupportedError:
                    # A broker of before RocketMQ 5.1.
                    for each in popped:
                        await self._invoke(cluster, address, ack_request(self.group, each))
            else:
                await self._invoke(cluster, address, ack_request(self.group, popped[0]))
        except asyncio.CancelledError:
            for _, future in acks:
                future.cancel()
            raise
        except Exception as error:
            for _, future in acks:
                if not future.done():
                    future.set_exception(error)
            return
        for _, future in acks:
            if not future.done():
                future.set_result(None)

    @staticmethod
    async def _invoke(cluster: Cluster, address: str, request: RemotingCommand) -> RemotingCommand:
        response = await cluster.remoting.invoke(
            address, request, timeout_seconds=cluster.timeout_seconds
        )
        response.raise_for_code(address)
        return response

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
        await self._change(self._open_cluster(), message, milliseconds)

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
        await self._change(self._open_cluster(), message, milliseconds)

    async def _change(self, cluster: Cluster, message: MessageExt, milliseconds: int) -> None:
        topic = with_namespace(self._namespace, message.topic)
        popped = popped_of(message, topic)
        address = await self._address(cluster, _Place(topic, popped.receipt.broker_name))
        response = await cluster.remoting.invoke(
            address,
            change_request(self.group, popped, milliseconds),
            timeout_seconds=cluster.timeout_seconds,
        )
        text = changed_receipt(response, popped, address)
        message.properties[PropertyKey.POP_RECEIPT] = text

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


class _Receiving:
    """One call of ``receive``."""

    def __init__(
        self,
        consumer: SimpleConsumer,
        cluster: Cluster,
        count: int,
        invisible_ms: int,
        seconds: float,
    ) -> None:
        self._consumer = consumer
        self._cluster = cluster
        self._count = count
        self._invisible_ms = invisible_ms
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._own: set[asyncio.Task[list[_Visible]]] = set()
        self._failures: dict[_Place, BaseException] = {}
        self._pause = PAUSE_SECONDS

    async def messages(self) -> list[MessageExt]:
        """The first messages that come; none in time."""
        polls = self._consumer._polls
        while True:
            if found := self._consumer._take(self._count):
                return found
            begun = self._loop.time()
            if not self._own or begun < self._deadline:
                await self._ask(max(self._deadline - begun, 0.0))
            left = self._deadline - self._loop.time()
            if not polls or (left <= 0 and self._own.isdisjoint(polls.values())):
                return self._none()
            done, _ = await asyncio.wait(
                polls.values(),
                timeout=max(left, 0.0) + self._cluster.timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                return self._none()
            self._gather(done)
            now = self._loop.time()
            if not self._consumer._ready and now - begun < PAUSE_SECONDS and now < self._deadline:
                # A broker that is busy, or that holds no pops, answers at once.
                await asyncio.sleep(min(self._pause, self._deadline - now))
                self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    async def _ask(self, seconds: float) -> None:
        """Have a request on its way to each broker that did not fail."""
        consumer = self._consumer
        for place in await consumer._places(self._cluster):
            if place not in consumer._polls and place not in self._failures:
                pop = consumer._pop(self._cluster, place, self._count, self._invisible_ms, seconds)
                task = consumer._polls[place] = asyncio.ensure_future(pop)
                self._own.add(task)

    def _gather(self, done: Iterable[asyncio.Task[list[_Visible]]]) -> None:
        polls = self._consumer._polls
        for task in done:
            place = next((each for each, known in polls.items() if known is task), None)
            if place is None:
                continue
            del polls[place]
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self._consumer._ready.extend(task.result())
            elif task in self._own:
                self._failures[place] = error

    def _none(self) -> list[MessageExt]:
        """Nothing came: because there is nothing, or, which is an error, since no broker answered
        well.
        """
        failed = next(iter(self._failures.values()), None)
        if failed is not None and len(self._failures) >= len(self._own):
            raise failed
        return []
