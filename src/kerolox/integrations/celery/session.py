"""What one connection of kombu has open, in an event loop and a thread of its own.

A feed reads one queue for the channels that consume it. It asks the brokers for messages as long as
one of these may have more, keeps the leases of what came, and puts it into the inbox. Threads of
the application take it from there, and say what becomes of it. All tables are the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from kerolox.client.aio.connection import Connection
from kerolox.client.aio.consumer_settings import SimpleConsumerSettings
from kerolox.client.aio.consumers.popping.pops import NoMasterError
from kerolox.client.core.failures import note_failure
from kerolox.client.sync._portal import Portal
from kerolox.errors import (
    BrokerBusyError,
    ClientClosedError,
    KeroloxError,
    RemotingError,
    TopicNotFoundError,
    TopicRouteNotFoundError,
)
from kerolox.integrations.celery.envelope import (
    HOP_PROPERTY,
    Payload,
    is_expired,
    message_of,
    payload_of,
    timed,
)
from kerolox.integrations.celery.intakes import Delivery, Feed, Inbox, Intake, Prefetch
from kerolox.integrations.celery.readers import Readers, tag_of
from kerolox.protocol.names import AUTO_CREATE_TOPIC
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, POP_MESSAGES_MAX

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from kerolox.client.aio.consumers.simple_consumer import SimpleConsumer
    from kerolox.client.aio.producers.producer import Producer
    from kerolox.client.aio.settings import ClientSettings
    from kerolox.client.core.sending.send import SendResult
    from kerolox.integrations.celery.options import Options
    from kerolox.message import Message, MessageExt

GROUP = "kombu"
"""Producer group of all connections."""

REJECTED = "rejected by a worker"
"""Reason of dead letters."""

WAIT_SECONDS = 20.0
"""A broker may hold a request for messages so long."""

AGAIN_SECONDS = 1.0
"""A feed waits so long after brokers did not answer; an acknowledgement half of it."""

KEEP_SECONDS = INVISIBLE_MS_MAX / 1000
"""A worker has a message for so long at most."""

TIMED_SECONDS_MAX = 3 * 24 * 3600 - 600
"""A message waits for its moment in one step for so long: brokers take 3 days by default
(``timerMaxDelaySec``), by their clock. One with a later moment is sent again on the way."""

GET_SECONDS = 0.2
"""How long who asks for one message waits for it: what was given back just before is there by
then."""

ROUTE_SECONDS_MAX = 5.0
"""A new topic has a route within this time."""

ROUTE_CHECK_SECONDS = 0.05

UNANSWERED = (RemotingError, NoMasterError, BrokerBusyError)
"""Errors that end by themselves."""

_log = logging.getLogger(__name__)


class Session:
    """The connection, its producer and its feeds."""

    def __init__(self, name_server: str, settings: ClientSettings, options: Options) -> None:
        """Nothing is connected yet."""
        self._portal = Portal("connection of kombu")
        self._connection = Connection(name_server, settings=settings)
        self._options = options
        self._producer: Producer = self._connection.producer(GROUP)
        self._feeds: dict[str, Feed] = {}
        self._topics: set[str] = set()
        """Topics that are known to be there."""
        self.inbox = Inbox()
        self._readers: Readers | None = None

    # -- life, from any thread ------------------------------------------------------------------
    def open(self) -> None:
        """Connect. RemotingError: no name server answers, or none knows a broker."""
        self._portal.open(self._start)

    async def _start(self) -> None:
        await self._connection.start()
        try:
            await self._connection.access.fetch_route(AUTO_CREATE_TOPIC)
            await self._producer.start()
        except BaseException:
            await self._connection.close()
            raise

    def close(self) -> None:
        """End; bounded. What nobody acknowledged comes again."""
        self._portal.shut(self._leave)
        self.inbox.close()

    async def _leave(self) -> None:
        if self._readers is not None:
            self._readers.close()
        for feed in self._feeds.values():
            if feed.task is not None:
                feed.task.cancel()
        await self._connection.close()

    # -- topics -----------------------------------------------------------------------------------
    def has_topic(self, topic: str) -> bool:
        """Whether name servers know it."""
        return self._portal.run(self._has_topic(topic))

    async def _has_topic(self, topic: str) -> bool:
        try:
            await self._producer.queues(topic)
        except TopicRouteNotFoundError:
            return False
        return True

    def declare(self, topic: str, queues: int = 0) -> None:
        """Make a topic, unless it is there; 0 queues: as many as the options say. Errors as those
        of ``create_topic``."""
        if topic not in self._topics:
            self._portal.run(self._declare(topic, queues or self._options.topic_queues))

    async def _declare(self, topic: str, queues: int) -> None:
        if not await self._has_topic(topic):
            await self._producer.create_topic(topic, queues=queues)
            async with asyncio.timeout(ROUTE_SECONDS_MAX):
                while not await self._has_topic(topic):  # noqa: ASYNC110 - nobody tells of routes
                    await asyncio.sleep(ROUTE_CHECK_SECONDS)
        self._topics.add(topic)

    # -- sending ----------------------------------------------------------------------------------
    def send(self, topic: str, payload: Payload) -> None:
        """Send a message; with an ETA it comes then. Errors as those of a producer."""
        self.declare(topic)
        when = timed(payload["headers"], time.time(), TIMED_SECONDS_MAX)
        message = message_of(topic, payload, is_hop=when is not None and not when.is_last)
        if when is None:
            begin = partial(self._producer.submit, message)
            self._portal.settle(begin, partial(self._producer.send, message))
        else:
            self._portal.run(self._send_timed(message, when.at))

    async def _send_timed(self, message: Message, at: float) -> SendResult:
        return await self._producer.send(message, deliver_at=datetime.fromtimestamp(at, UTC))

    def broadcast(self, topic: str, payload: Payload) -> None:
        """Send a message to all that are bound to an exchange."""
        self.declare(topic, 1)
        tag = tag_of(payload["properties"]["delivery_info"]["routing_key"] or "")
        message = message_of(topic, payload)
        message.tags = tag
        begin = partial(self._producer.submit, message)
        self._portal.settle(begin, partial(self._producer.send, message))

    # -- what goes to all -------------------------------------------------------------------------
    def bind(self, queue: str, topic: str, key: str, pattern: re.Pattern[str]) -> None:
        """Bind a queue to an exchange whose messages go to all."""
        self.declare(topic, 1)
        self._portal.run(self._bind(queue, topic, key, pattern))

    async def _bind(self, queue: str, topic: str, key: str, pattern: re.Pattern[str]) -> None:
        if self._readers is None:
            puller = self._connection.pull_consumer(GROUP)
            await puller.start()
            self._readers = Readers(puller, self.inbox, time.time)
        await self._readers.bind(queue, topic, key, pattern)

    def unbind(self, queue: str) -> None:
        """It is bound to none of these any more."""
        if self._readers is not None:
            self._portal.call(self._readers.unbind, queue)

    def is_bound(self, queue: str) -> bool:
        """Whether it is bound to such an exchange."""
        return self._readers is not None and queue in self._readers.by_queue

    def consume_bound(
        self, queue: str, prefetch: Prefetch, deliver: Callable[[Delivery], object]
    ) -> Intake:
        """Read such a queue from now on."""
        assert self._readers is not None
        intake = Intake("", prefetch, deliver)
        self._portal.call(self._readers.attach, queue, intake)
        return intake

    # -- receiving --------------------------------------------------------------------------------
    def consume(
        self, topic: str, prefetch: Prefetch, deliver: Callable[[Delivery], object]
    ) -> Intake:
        """Read a queue for a channel from now on."""
        self.declare(topic)
        intake = Intake(topic, prefetch, deliver)
        self._portal.run(self._consume(intake))
        return intake

    async def _consume(self, intake: Intake) -> None:
        feed = await self._feed(intake.topic)
        feed.intakes.append(intake)
        intake.prefetch.feeds.add(feed)
        if feed.task is None:
            feed.task = asyncio.get_running_loop().create_task(self._run(feed))
        feed.wake.set()

    async def _feed(self, topic: str) -> Feed:
        feed = self._feeds.get(topic)
        if feed is None:
            settings = SimpleConsumerSettings(
                invisible_ms=round(self._options.visibility_timeout * 1000), from_first=True
            )
            consumer = self._connection.simple_consumer(topic, settings=settings)
            consumer.subscribe(topic)
            feed = self._feeds[topic] = Feed(consumer)
            await consumer.start()
        return feed

    def cancel(self, intake: Intake) -> None:
        """Read no more for it; what came and was not delivered goes back."""
        if not intake.topic:
            assert self._readers is not None
            self._portal.call(self._readers.detach, intake)
            return
        self._portal.run(self._cancel(intake))

    async def _cancel(self, intake: Intake) -> None:
        feed = self._feeds[intake.topic]
        feed.intakes.remove(intake)
        if all(each.topic != intake.topic for each in feed.intakes):
            intake.prefetch.feeds.discard(feed)
        deliveries = []
        while intake.arrived:
            deliveries.append(intake.arrived.popleft())
            deliveries[-1].left()
        await self._give_back(feed.consumer, [each.received for each in deliveries])

    async def _run(self, feed: Feed) -> None:
        """A feed's task: ends when nothing is to be read for anybody, and nothing is on its way."""
        try:
            while feed.intakes:
                feed.wake.clear()
                intake = feed.freest
                if intake is None:
                    await feed.wake.wait()
                    continue
                most = min(intake.prefetch.free, POP_MESSAGES_MAX)
                try:
                    messages = await feed.consumer.receive(most, wait=WAIT_SECONDS)
                except (TopicNotFoundError, TopicRouteNotFoundError):
                    # Somebody deleted it. As other brokers do, a declaration makes it anew.
                    self._topics.discard(feed.consumer.group)
                    await self._declare(feed.consumer.group, self._options.topic_queues)
                except UNANSWERED as error:
                    what = f"receiving from {feed.consumer.group} failed, trying again"
                    note_failure(None, _log, what, error)
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    await self._arrived(feed, messages)
        except ClientClosedError:
            pass
        except Exception as error:  # whoever drains is to know, whatever it is
            self._topics.clear()  # so that a declaration makes again what was deleted
            self.inbox.put(error)
        finally:
            feed.task = None

    async def _arrived(self, feed: Feed, messages: list[MessageExt]) -> None:
        surplus = []
        for received in messages:
            intake = feed.freest
            if intake is None:
                surplus.append(received)
                continue
            payload = payload_of(received)
            if await self._is_done(feed.consumer, received, payload):
                continue
            feed.consumer.keep(received, up_to=KEEP_SECONDS)
            intake.prefetch.taken += 1
            intake.arrived.append(Delivery(received, payload, feed.consumer, intake.prefetch))
            self.inbox.put(intake)
            feed.arrival.set()
        await self._give_back(feed.consumer, surplus)

    async def _is_done(
        self, consumer: SimpleConsumer, received: MessageExt, payload: Payload
    ) -> bool:
        """Whether it is for nobody: it is too old, or still has to wait for its moment."""
        now = time.time()
        if is_expired(payload, now):
            self._acknowledge(consumer, received)
            return True
        if HOP_PROPERTY not in received.properties:
            return False
        when = timed(payload["headers"], now, TIMED_SECONDS_MAX)
        if when is None:
            return False
        message = message_of(consumer.group, payload, is_hop=not when.is_last)
        try:
            await self._send_timed(message, when.at)
        except KeroloxError as error:
            what = (
                f"task {message.keys} is to wait longer and could not be sent again, trying again"
            )
            note_failure(None, _log, what, error)
            await self._give_back(consumer, [received], after=AGAIN_SECONDS)
        else:
            self._acknowledge(consumer, received)
        return True

    def get(self, topic: str) -> Delivery | None:
        """One message that is there now."""
        self.declare(topic)
        return self._portal.run(self._get(topic))

    async def _get(self, topic: str) -> Delivery | None:
        feed = await self._feed(topic)
        if feed.task is not None:
            return await self._arrived_for_others(feed)
        while messages := await feed.consumer.receive(1, wait=GET_SECONDS):
            [received] = messages
            payload = payload_of(received)
            if not await self._is_done(feed.consumer, received, payload):
                feed.consumer.keep(received, up_to=KEEP_SECONDS)
                return Delivery(received, payload, feed.consumer, None)
        return None

    async def _arrived_for_others(self, feed: Feed) -> Delivery | None:
        """A message that came for a consumer of this connection, which asks for all there are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GET_SECONDS):
                while True:
                    feed.arrival.clear()
                    for intake in feed.intakes:
                        if intake.arrived:
                            return intake.arrived.popleft()
                    await feed.arrival.wait()
        return None

    def purge(self, topic: str) -> int:
        """Acknowledge all that is there now; how many."""
        return self._portal.run(self._purge(topic))

    async def _purge(self, topic: str) -> int:
        if not await self._has_topic(topic):
            return 0
        feed, count = await self._feed(topic), 0
        while messages := await feed.consumer.receive(POP_MESSAGES_MAX, wait=0):
            await feed.consumer.ack(messages)
            count += len(messages)
        return count

    # -- what becomes of messages -----------------------------------------------------------------
    def ack(self, delivery: Delivery) -> None:
        """A message is done; nobody waits for it."""
        if delivery.consumer is None:
            return
        self._portal.submit(partial(self._ack, delivery.consumer, delivery))

    def _ack(self, consumer: SimpleConsumer, delivery: Delivery) -> asyncio.Future[None]:
        delivery.left()
        return self._acknowledge(consumer, delivery.received)

    def _acknowledge(
        self, consumer: SimpleConsumer, received: MessageExt, until: float | None = None
    ) -> asyncio.Future[None]:
        """Acknowledge, until it comes again in any case: nobody renews its time any more."""
        loop = asyncio.get_running_loop()
        if until is None:
            until = loop.time() + self._options.visibility_timeout
        future = consumer.submit_ack(received)
        future.add_done_callback(partial(self._acknowledged, consumer, received, until))
        return future

    def _acknowledged(
        self,
        consumer: SimpleConsumer,
        received: MessageExt,
        until: float,
        future: asyncio.Future[None],
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            return
        loop = asyncio.get_running_loop()
        if isinstance(error, UNANSWERED) and loop.time() < until:
            again = partial(self._acknowledge_again, consumer, received, until)
            loop.call_later(AGAIN_SECONDS / 2, again)
            return
        what = f"message {received.message_id} is done, and comes again all the same"
        note_failure(None, _log, what, error)

    def _acknowledge_again(
        self, consumer: SimpleConsumer, received: MessageExt, until: float
    ) -> None:
        with contextlib.suppress(ClientClosedError):
            self._acknowledge(consumer, received, until)

    def requeue(self, delivery: Delivery) -> None:
        """A message comes again at once, to anybody. Waits for it."""
        self.requeue_all([delivery])

    def requeue_all(self, deliveries: list[Delivery]) -> None:
        """As :meth:`requeue`, of several together: within the time of one."""
        self._portal.run(self._requeue_all(deliveries))

    async def _requeue_all(self, deliveries: list[Delivery]) -> None:
        by_consumer: dict[SimpleConsumer, list[MessageExt]] = {}
        for delivery in deliveries:
            delivery.left()
            if delivery.consumer is not None:
                by_consumer.setdefault(delivery.consumer, []).append(delivery.received)
        given = (self._give_back(consumer, some) for consumer, some in by_consumer.items())
        await asyncio.gather(*given)

    def reject(self, delivery: Delivery) -> None:
        """A message becomes a dead letter of the queue's group. Waits for it."""
        if delivery.consumer is not None:
            self._portal.run(self._reject(delivery.consumer, delivery))

    async def _reject(self, consumer: SimpleConsumer, delivery: Delivery) -> None:
        delivery.left()
        await consumer.dead_letter(delivery.received, REJECTED)

    async def _give_back(
        self, consumer: SimpleConsumer, messages: list[MessageExt], *, after: float = 0
    ) -> None:
        given = (consumer.nack(each, after=after) for each in messages)
        for result in await asyncio.gather(*given, return_exceptions=True):
            if isinstance(result, KeroloxError):
                what = f"a message of {consumer.group} was given back, and comes later"
                note_failure(None, _log, what, result)
            elif isinstance(result, BaseException):
                raise result

    # -- how many ---------------------------------------------------------------------------------
    def set_prefetch(self, prefetch: Prefetch, limit: int) -> None:
        """Let a channel have so many messages; 0: as many as we allow."""

        def change() -> None:
            prefetch.limit = limit
            prefetch.changed()

        self._portal.call(change)
