"""The asyncio producer.

A send picks a queue and asks the broker that has it. When that fails in a way that another broker
may not (:mod:`kerolox.client.core.sending.retry`), it tries others. Route, connection and all tries
share one time limit. Many sends may be open at the same time; they share one connection per broker
and need no tasks.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from asyncio import Future
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, cast

from kerolox import clock
from kerolox.client.aio.client import Client
from kerolox.client.aio.network.instance import HEARTBEAT_FIRST_MS, Member
from kerolox.client.aio.network.timers import BrokerTimers
from kerolox.client.aio.producers.delivery import Delivery, Submits, send_in_order
from kerolox.client.aio.producers.fast_sends import FastSends
from kerolox.client.aio.producers.open_requests import CHECK_INTERVAL_MS, OpenRequests
from kerolox.client.aio.producers.plans import Plan, Plans, TimeLimit
from kerolox.client.aio.producers.preparing import Preparation, QueueSelector
from kerolox.client.aio.settings import ProducerSettings
from kerolox.client.core.checking import checked
from kerolox.client.core.delays import Duration, timing
from kerolox.client.core.life import SENDS_SECONDS_MAX
from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.routes import publish_queues
from kerolox.client.core.sending.queue_choice import LatencyFaults, OrderingKey, queue_by_key
from kerolox.client.core.sending.request_reply import check_reply, reply_topic
from kerolox.client.core.sending.send import (
    SendHeader,
    SendResult,
    in_namespace,
    outgoing_batch,
    request_message,
    split_batches,
)
from kerolox.client.core.sending.unique_id import UniqueIdFactory
from kerolox.client.core.validate import (
    check_message,
    check_producer_group,
    check_ways,
    checked_key,
    checked_keys,
)
from kerolox.codec.choice import send_codec
from kerolox.codec.sending import OpenSend
from kerolox.errors import (
    ClientClosedError,
    KeroloxError,
    MessageRejectedError,
    TopicRouteNotFoundError,
)
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.recall_handles import RecallError, decode_handle
from kerolox.remoting.core.client_requests import SlowPathNeededError

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.tracing import TraceDispatcher
    from kerolox.client.core.routes import TopicRoute
    from kerolox.codec.sending import TopicSender
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

BATCH_BYTES_MAX = 1024 * 1024
"""Most bytes of a batch that :meth:`Producer.send_batches` makes."""

ROUTE_POLL_FIRST_MS = 10
"""When after the start routes are asked for for the first time."""


@checked("send", "submit", "send_oneway")
class Producer(Client):
    """Sends messages.

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async with Producer("orders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"hello", keys="42"))
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        settings: ProducerSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            group: producer group.
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            settings: all else.

        Raises:
            ConfigError: the group or the name server is illegal.
        """
        self.settings: ProducerSettings = settings or ProducerSettings()
        ip = self._introduce(group, name_server, check_producer_group)
        codec = send_codec()
        self._ids = UniqueIdFactory(ip, os.getpid(), secrets.randbits(32), codec.MessageIds)
        self._preparation = Preparation(self.settings, self._namespace, self._ids)
        self._header = SendHeader(
            self.group,
            self.settings.create_topic_key,
            self.settings.default_topic_queue_nums,
            self.settings.unit_mode,
        )
        self._plans = Plans(self.settings)
        self._timers = BrokerTimers()
        self._requests = OpenRequests(self.settings.on_failure)
        self._reply_topics: dict[str, frozenset[str]] = {}
        self._faults: LatencyFaults | None = None
        if self.settings.latency_fault_enable:
            self._faults = LatencyFaults(lambda: time.monotonic() * 1_000)
        self._send_hooks = self.settings.send_hooks
        self._end_hooks = self.settings.end_transaction_hooks
        self._tracing = self._new_tracing(group) if self.settings.enable_trace else None
        self._delivery = Delivery(
            self._header, self.settings, self._namespace, self._send_hooks, self._faults
        )
        self._submits = Submits(self.settings.submits_max, self._delivery, self._submitted)
        self._fast_sends: FastSends | None = None
        self._topic_senders: dict[str, TopicSender] = {}
        """What begins fast-path sends, by topic, where nothing stands against it."""
        is_ordinary = not self._namespace and not self._send_hooks
        if is_ordinary and not self.settings.vip_channel:
            self._fast_sends = FastSends(
                self._header,
                self.settings,
                self._ids,
                codec,
                self._plans,
                self._delivery,
                self._open_cluster,
                self._submits.go_on,
            )
            self._topic_senders = self._fast_sends.hot

    def _new_tracing(self, group: str) -> TraceDispatcher:
        from kerolox.client.aio.producers.tracing import TraceDispatcher, trace_producer

        name_servers = ";".join(self._name_servers)
        made = TraceDispatcher(
            lambda: trace_producer(Producer, group, "PRODUCE", name_servers, self.settings),
            self.settings.trace_topic,
            self.settings.on_failure,
        )
        hook = made.hook(self._ids)
        self._send_hooks += (hook,)
        self._end_hooks += (hook,)
        return made

    async def start(self) -> None:
        """Start to poll routes and to send heartbeats, in the background.

        The brokers that would create topics hear of the producer within about a second, before
        it sends anything.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        await self._start(self._start_background)

    async def _start_background(self) -> None:
        self._open()
        await self._instance.ready()
        self._instance.join(self)
        background = self._background
        background.once(ROUTE_POLL_FIRST_MS, self._poll_routes, "route poll")
        background.once(HEARTBEAT_FIRST_MS, self._heartbeat, "heartbeat")
        background.every(
            CHECK_INTERVAL_MS, self._requests.check_deadlines, "overdue requests", first_ms=0
        )
        if self._tracing is not None:
            await self._tracing.start()

    async def _leave(self, cluster: Cluster) -> None:
        """Wait for the answers to what was sent, tell the brokers."""
        self._requests.fail(ClientClosedError("the producer was closed before the reply came"))
        if self._fast_sends is not None:
            self._fast_sends.seal()
        if self._closed:  # not a start that is undone
            self._delivery.close()
        await self._background.stop()
        if self._instance.is_last(self):
            await cluster.remoting.drain(SENDS_SECONDS_MAX)
        else:
            fast_sends = self._fast_sends
            await self._delivery.drain(
                SENDS_SECONDS_MAX, lambda: [] if fast_sends is None else fast_sends.waiting(cluster)
            )
        tracing = () if self._tracing is None else (self._tracing.close(),)
        await asyncio.gather(self._instance.unregister_client(self, cluster), *tracing)

    # -- sending ------------------------------------------------------------------------------
    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        ordering_key: OrderingKey | None = None,
        deliver_after: Duration | None = None,
        deliver_at: datetime | None = None,
        round_up: bool = False,
        dedup_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until it is stored.

        Args:
            message: what to send.
            queue: where to; such a send is not retried, nor one with the next two.
            selector: chooses the queue among those of the topic.
            ordering_key: one queue for all of a key (:func:`select_by_hash`).
            deliver_after, deliver_at: seconds or ``timedelta`` until it comes, or the moment.
            round_up: at brokers without a timer (4.x) take the next longer delay level.
            dedup_key: its ``UNIQ_KEY``, by which a topic with ``dedup.window.ms`` stores it once.
            timeout_ms: limit of route, connection and retries together; None: ``send_timeout_ms``.

        Returns:
            Where it was stored, now or before (``is_duplicate``); its status tells how safely.

        Raises:
            MessageRejectedError, TopicRouteNotFoundError: illegal, or no broker takes its topic.
            BrokerError: the broker refused it (the last one that was tried).
            ClientClosedError, RemotingError: closed meanwhile, no answer; it may be stored.
        """
        is_plain = queue is None and selector is None and timeout_ms is None
        if not is_plain or round_up is not False:
            check_ways(queue, selector, round_up, timeout_ms)
        try:
            if deliver_after is not None or deliver_at is not None or dedup_key is not None:
                ways, when = (queue, selector, ordering_key), (deliver_after, deliver_at, round_up)
                return await self._send_apart(message, ways, when, dedup_key, timeout_ms)
            if ordering_key is not None or selector is not None:
                queue, selector = self._chosen(message, queue, selector, ordering_key)
            sender = self._topic_senders.get(message.topic)
        except (AttributeError, TypeError):
            check_message(message)
            raise
        begun = None
        if sender is not None and selector is None:
            begun = sender.begin(message, queue, timeout_ms)
        if sender is None or begun is None:
            return await self._send_slowly(message, queue, selector, timeout_ms)
        future, opaque = begun
        try:
            outcome = await future
        except BaseException:
            sender.withdraw(opaque)
            raise
        if type(outcome) is SendResult:
            return outcome
        return await self._send_on(message, cast("OpenSend", outcome), queue)

    async def _send_apart(
        self,
        message: Message,
        ways: tuple[MessageQueue | None, QueueSelector | None, OrderingKey | None],
        when: tuple[Duration | None, datetime | None, bool],
        dedup_key: str | None,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send a message that comes later, or that has a key: that has one queue, as with
        ``ordering_key``, and is tried again there."""
        limit, key = self._time_limit(timeout_ms), checked_key(dedup_key)
        after, at, round_up = when
        if after is not None or at is not None:
            message = await self._timed(message, after, at, round_up, limit)
        if key and ways == (None, None, None):
            ways = None, None, key
        queue, selector = self._chosen(message, *ways)
        return await self._send(message, queue, selector, limit, key)

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        ordering_key: OrderingKey | None = None,
        deliver_after: Duration | None = None,
        deliver_at: datetime | None = None,
        round_up: bool = False,
        dedup_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """As :meth:`send`, without waiting for it; arguments and errors are the same.

        Returns:
            The future of its result. Each message is kept until its own is done; one that is
            cancelled counts until its answer is there, or its time is over.

        Raises:
            SubmitsFullError: ``submits_max`` sends have no outcome yet; the message is not taken.
        """
        fast_sends = self._fast_sends
        self._submits.check(0 if fast_sends is None else fast_sends.open_count)
        if (
            queue is not None
            or selector is not None
            or timeout_ms is not None
            or round_up is not False
        ):
            check_ways(queue, selector, round_up, timeout_ms)
        is_now = deliver_after is None and deliver_at is None and dedup_key is None
        if is_now and selector is None and ordering_key is None:
            try:
                sender = self._topic_senders.get(message.topic)
            except (AttributeError, TypeError):
                check_message(message)
                raise
            if sender is not None and (begun := sender.submit(message, queue, timeout_ms)):
                return cast("Future[SendResult]", begun[0])
            check_message(message)
            cluster = self._cluster or self._open_cluster()
            if fast_sends is not None and self._faults is None:
                started = fast_sends.begin(cluster, message, queue, timeout_ms, is_submitted=True)
                if started is not None:
                    return cast("Future[SendResult]", started.future)
        return self._submits.run(
            self.send(
                message,
                queue=queue,
                selector=selector,
                ordering_key=ordering_key,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                round_up=round_up,
                dedup_key=dedup_key,
                timeout_ms=timeout_ms,
            )
        )

    async def _send_slowly(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send a message that the codec alone could not begin."""
        check_message(message)
        cluster, fast_sends, started = self._cluster or self._open_cluster(), self._fast_sends, None
        if fast_sends is not None and selector is None:
            started = fast_sends.begin(cluster, message, queue, timeout_ms)
        if started is None:
            return await self._send(message, queue, selector, self._time_limit(timeout_ms))
        began = asyncio.get_running_loop().time()
        try:
            outcome = await started.future
        except BaseException:
            started.withdraw(started.opaque)
            raise
        if isinstance(outcome, SendResult):
            if started.target is not None and queue is None:
                seconds = asyncio.get_running_loop().time() - began
                self._delivery.note(started.target.queue, seconds)
            return outcome
        return await self._send_on(message, cast("OpenSend", outcome), queue)

    async def _submitted(self, send: OpenSend) -> SendResult:
        """What follows on a submitted fast-path send that is not stored."""
        queue = send.queue if send.is_given else None
        return await self._send_on(cast("Message", send.message), send, queue)

    async def _send_on(
        self, message: Message, send: OpenSend, queue: MessageQueue | None
    ) -> SendResult:
        """What follows on a fast-path send whose first answer is anything but that it is stored."""
        limit = TimeLimit(send.timeout_ms, send.deadline)
        if isinstance(send.answer, SlowPathNeededError):
            return await self._send(message, queue, None, limit)
        cluster, delivery = cast("FastSends", self._fast_sends).cluster, self._delivery
        tries = delivery.first_try(cluster, send, queue, send.message_id)
        if tries.is_over or limit.seconds_left <= 0:  # thousands may end at the same time
            return tries.end(limit.ms)
        outgoing = await self._preparation.outgoing(message, send.message_id)
        plan = self._plans.get(message.topic) or await self._plans.make(
            cluster, message.topic, limit
        )
        return await delivery.deliver(cluster, plan, outgoing, queue, limit, tries)

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        limit: TimeLimit,
        dedup_key: str = "",
    ) -> SendResult:
        """Send on the slow path, which is complete."""
        cluster = self._sending_cluster(message)
        outgoing = await self._preparation.outgoing(message, dedup_key)
        topic = outgoing.topic
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        if selector is not None:
            queue = self._preparation.selected(selector, plan, message)
        return await self._delivery.deliver(
            cluster, plan, outgoing, queue, limit, is_keyed=bool(dedup_key)
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        ordering_key: OrderingKey | None = None,
        deliver_after: Duration | None = None,
        deliver_at: datetime | None = None,
        round_up: bool = False,
    ) -> None:
        """Send a message without waiting for an answer; nobody says whether it was stored.

        It waits, for ``send_timeout_ms`` at most, while the broker leaves more than 4 MiB unread.

        Args:
            message: what to send.
            queue: where to.
            selector, ordering_key, deliver_after, deliver_at, round_up: as of :meth:`send`.

        Raises:
            MessageRejectedError: the message is illegal; nothing was sent.
            TopicRouteNotFoundError: no broker has the topic or would create it.
            RemotingError: there is no connection, or no capacity on it in time.
        """
        if queue is not None or selector is not None or round_up is not False:
            check_ways(queue, selector, round_up, None)
        if deliver_after is not None or deliver_at is not None:
            limit = self._time_limit(None)
            message = await self._timed(message, deliver_after, deliver_at, round_up, limit)
        queue, selector = self._chosen(message, queue, selector, ordering_key)
        cluster, fast_sends = self._cluster or self._open_cluster(), self._fast_sends
        if (
            selector is None
            and fast_sends
            and await fast_sends.write_oneway(cluster, message, queue)
        ):
            return
        cluster, limit = self._sending_cluster(message), self._time_limit(None)
        outgoing = await self._preparation.outgoing(message)
        topic = outgoing.topic
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        if selector is not None:
            queue = self._preparation.selected(selector, plan, message)
        target = queue or self._delivery.choose(plan, ())
        await self._delivery.deliver_oneway(cluster, plan, outgoing, target, limit)

    async def _timed(
        self,
        message: Message,
        after: Duration | None,
        at: datetime | None,
        round_up: bool,
        limit: TimeLimit,
    ) -> Message:
        """The message with its moment: as a property where the brokers of its topic have a timer,
        else as a delay level."""
        when = timing(after, at)
        cluster = self._sending_cluster(message)
        if when is None:
            return message
        topic = with_namespace(self._namespace, message.topic)
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        if await self._timers.are_there(cluster, plan.route, limit.deadline):
            return self._preparation.timed(message, when)
        return self._preparation.delayed(message, when, round_up=round_up)

    async def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a message back that waits for its moment.

        Args:
            handle: ``recall_handle`` of its :class:`SendResult`, whoever sent it.
            timeout_ms: time limit; None: ``send_timeout_ms``.

        Returns:
            The message's id. With a broker of RocketMQ 5 that does not say that there was one.

        Raises:
            MessageRejectedError: the text is no handle; nothing was sent.
            BrokerError: the broker refused. Code 604: its moment is over, no message of the handle
                waits, or it is another topic's or broker's. 16: ``recallMessageEnable`` is false.
                3: the broker has no timer.
            TopicRouteNotFoundError, RemotingError: nobody has the topic; no answer came.
        """
        try:
            wanted = decode_handle(handle)
        except RecallError as error:
            raise MessageRejectedError(str(error)) from None
        cluster, limit = self._open_cluster(), self._time_limit(timeout_ms)
        address = cluster.master_address(wanted.broker_name)
        if address is None:
            async with limit.around(f"no route of topic {wanted.topic!r} came"):
                await cluster.route(wanted.topic)
            address = cluster.master_address(wanted.broker_name)
        if address is None:
            raise TopicRouteNotFoundError(
                f"broker {wanted.broker_name!r}, which the handle names, has no master with topic"
                f" {wanted.topic!r}"
            )
        fields = {"producerGroup": self.group, "topic": wanted.topic, "recallHandle": handle}
        answer = await cluster.ask(
            address,
            RequestCode.RECALL_MESSAGE,
            fields,
            timeout_seconds=max(limit.seconds_left, 0.001),
        )
        return answer.ext_fields.get("msgId") or wanted.unique_key

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        dedup_keys: Sequence[str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; they are stored next to each other.

        Args:
            messages: all of one topic, in all at most ``message_bytes_max`` bytes
                (:meth:`send_batches` cuts a longer list).
            queue: where to; such a send is not retried.
            dedup_keys: of each message its ``dedup_key`` of :meth:`send`. The first one decides on
                the queue, so send the same batch again. ``duplicates`` says which were there.
            timeout_ms: time limit, retries included; None: ``send_timeout_ms``.

        Returns:
            The ids are comma-joined, the offset is that of the first.

        Raises:
            MessageRejectedError: they can't travel together, or one is illegal.
            BrokerError, RemotingError, TopicRouteNotFoundError: as :meth:`send`.
        """
        batch = list(messages)
        self._preparation.check_batch(batch)
        return await self._send_checked(batch, queue, dedup_keys, timeout_ms)

    async def _send_checked(
        self,
        batch: list[Message],
        queue: MessageQueue | None,
        dedup_keys: Sequence[str] | None,
        timeout_ms: int | None,
    ) -> SendResult:
        cluster = self._open_cluster()
        limit = self._time_limit(timeout_ms)
        now_ms, next_id = clock.now_ms(), self._ids.next
        keys = checked_keys(dedup_keys, len(batch))
        outgoing = outgoing_batch(batch, keys or [next_id(now_ms) for _ in batch])
        if self._namespace:
            outgoing = in_namespace(outgoing, self._namespace)
        if len(outgoing.body) > self.settings.message_bytes_max:
            raise MessageRejectedError(
                f"the batch has {len(outgoing.body)} bytes; the limit is"
                f" {self.settings.message_bytes_max}; send_batches cuts it"
            )
        topic = outgoing.topic
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        if keys and queue is None:
            queue = queue_by_key(plan.chooser.queues, keys[0])
        return await self._delivery.deliver(
            cluster, plan, outgoing, queue, limit, is_keyed=bool(keys)
        )

    async def send_batches(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        bytes_max: int = BATCH_BYTES_MAX,
        dedup_keys: Sequence[str] | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send any number of messages of one topic in as many batches as they need.

        The batches go one after the other, each when the one before is stored.

        Args:
            messages: all of one topic; a single one that is larger than a batch goes alone.
            queue: where to; such sends are not retried. Without it each batch has its own.
            bytes_max: most bytes of a batch; ``message_bytes_max`` where that is less.
            dedup_keys: of each message, as of :meth:`send_batch`.
            timeout_ms: time limit of each batch, retries included; None: ``send_timeout_ms``.

        Returns:
            One result per batch, in order; see :meth:`send_batch`.

        Raises:
            MessageRejectedError: they can't travel together, or one is illegal; nothing was sent.
            PartlySentError: a batch failed after others were stored.
            BrokerError, RemotingError, TopicRouteNotFoundError: the first batch failed.
        """
        all_messages = list(messages)
        self._preparation.check_batch(all_messages)
        self._open_cluster()
        bytes_max = min(bytes_max, self.settings.message_bytes_max)
        batches = list(split_batches(all_messages, bytes_max=bytes_max))
        keys = iter(checked_keys(dedup_keys, len(all_messages)) or ())

        def send(batch: list[Message]) -> Coroutine[object, None, SendResult]:
            of_it = list(islice(keys, len(batch))) if dedup_keys is not None else None
            return self._send_checked(batch, queue, of_it, timeout_ms)

        return await send_in_order(batches, send)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        ordering_key: OrderingKey | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply to it, which some consumer sends.

        The consumer makes it with :func:`kerolox.client.create_reply` and sends it with a producer
        of its own. At most ``REQUESTS_OPEN_MAX`` requests of a producer wait at the same time.

        Args:
            message: the request.
            queue: where to; such a send is not retried.
            selector: chooses the queue among those of the topic; such a send is not retried.
            ordering_key: as of :meth:`send`.
            timeout_ms: time limit of send and reply together; None: ``send_timeout_ms``.

        Returns:
            The reply. It comes from no queue: its offsets mean nothing.

        Raises:
            RequestTimeoutError: it was sent, but no reply came in time. A consumer may get it.
            ReplyError: who got the request replied with an error.
            ClientError: too many requests wait already.
            MessageRejectedError, TopicRouteNotFoundError, BrokerError, RemotingError: the request
                was not sent, as :meth:`send`.
        """
        queue, selector = self._chosen(message, queue, selector, ordering_key)
        cluster = self._sending_cluster(message)
        limit = self._time_limit(timeout_ms)
        correlation_id = str(uuid.uuid4())
        outgoing = request_message(
            await self._preparation.outgoing(message),
            correlation_id=correlation_id,
            client_id=self.client_id,
            ttl_ms=limit.ms,
        )
        topic = outgoing.topic
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        if topic not in self._reply_topics:
            async with limit.around("not all brokers that may bring the reply answered"):
                await self._register_for_replies(topic, plan)
        if selector is not None:
            queue = self._preparation.selected(selector, plan, message)
        what = f"request {outgoing.message_id} to topic {message.topic} within {limit.ms} ms"
        waiting = self._requests.open(correlation_id, limit.deadline, what)
        try:
            try:
                await self._delivery.deliver(cluster, plan, outgoing, queue, limit)
            except KeroloxError:
                # What was answered was sent, even if the broker's word is lost.
                if not waiting.done():
                    raise
            return check_reply(await waiting, f"request {outgoing.message_id}")
        finally:
            self._requests.drop(correlation_id)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be written, sorted (``fetchPublishMessageQueues``).

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
        """
        route = await self._open_cluster().route(with_namespace(self._namespace, topic))
        return sorted(publish_queues(topic, route))

    def _sending_cluster(self, message: Message) -> Cluster:
        """Check the message; the cluster to send it to."""
        self._preparation.check(message)
        return self._open_cluster()

    def _time_limit(self, timeout_ms: int | None) -> TimeLimit:
        return TimeLimit.of(self.settings.send_timeout_ms if timeout_ms is None else timeout_ms)

    def _chosen(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: OrderingKey | None,
    ) -> tuple[MessageQueue | None, QueueSelector | None]:
        if type(message) is not Message or type(message.topic) is not str:
            check_message(message)
        plan = self._plans.get(message.topic) if self._fast_sends is not None else None
        return self._preparation.chosen(message, plan, queue, selector, key)

    # -- requests of brokers --------------------------------------------------------------------
    async def _asked(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        """A request of a broker: it brings a reply."""
        if command.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return command.not_supported()
        return self._requests.take_reply(command, connection.remote_address)

    # -- routes and heartbeats ------------------------------------------------------------------
    def _topics(self) -> list[str]:
        """Those in use: the template, whose brokers a new topic may come to, those sent to, and
        those of replies."""
        replies = {name for names in self._reply_topics.values() for name in names}
        return list(
            dict.fromkeys((self.settings.create_topic_key, *self._plans.topics(), *replies))
        )

    def _member(self) -> Member:
        return Member(
            self.group,
            self._topics,
            self._asked,
            self._adopt,
            on_gone=self._plans.drop,
            waits_for=self._requests.has,
        )

    def _adopt(self, topic: str, route: TopicRoute, is_new: bool) -> None:
        """A route has come, new or not: a topic that did not exist had that of the template."""
        if self._plans.is_used(topic):
            self._plans.adopt(topic, route)

    async def _poll_routes(self) -> None:
        await self._instance.poll(self._topics())

    async def _register_for_replies(self, topic: str, plan: Plan) -> None:
        """Before the first request to a topic: whichever broker gets the reply must know us."""
        clusters = {broker.cluster for broker in plan.route.brokers}
        names = frozenset(reply_topic(cluster) for cluster in clusters)
        for name in names:
            await self._open_cluster().refresh(name)
        await self._heartbeat(*names)
        self._reply_topics[topic] = names

    async def _heartbeat(self, *more: str) -> None:
        """Send heartbeats to the brokers of the topics in use, and of some more."""
        await self._instance.send_heartbeat([*self._topics(), *more])
