"""Fast-path sends: a future each, no task, no coroutine but the caller's own.

A send is for the fast path when its topic has a plan, its broker has a connection, and it needs
nothing but encoding. So no hook sees it, no namespace is added, and it is neither delayed nor
compressed. The codec begins it in one call and completes its future (``codec/sending.py``).
Whatever else happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from kerolox import clock
from kerolox.client.aio.producers.fast_path.batches import Batches
from kerolox.client.aio.producers.fast_path.topic_paths import QueueTarget, TopicPath, TopicPaths
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.codec.sending import NO_OPAQUE, OpenSend, SendFuture
from kerolox.message import Message
from kerolox.remoting.client_connection import ONEWAY_PER_ITERATION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.client.core.sending.unique_id import UniqueIdFactory
    from kerolox.codec.sending import SendCodec
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import ClientConnection


class StartedSend(NamedTuple):
    """A send on its way."""

    future: SendFuture
    withdraw: Callable[[int], None]
    opaque: int
    """Whoever waits for the future calls ``withdraw`` with this when it gives up."""
    target: QueueTarget | None


class FastSends:
    """Begins the fast-path sends of one producer."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        ids: UniqueIdFactory,
        codec: SendCodec,
        plans: Plans,
        delivery: Delivery,
        check_loop: Callable[[], object],
        go_on: Callable[[OpenSend], object],
    ) -> None:
        """Nothing is sent yet.

        Args:
            header: what is the same in all sends.
            settings: the producer's.
            ids: makes the messages' ids; those of the codec.
            codec: makes and reads frames.
            plans: where messages go.
            delivery: chooses among queues, and sends on the slow path.
            check_loop: raises when this is not the producer's loop. It is called once an iteration:
                the running loop is found by a system call on Python 3.11.
            go_on: called with submitted sends that are not stored.
        """
        self._timeout_ms = settings.send_timeout_ms
        self._is_batching = settings.batching
        self._avoids = settings.latency_fault_enable
        self._body_bytes_max = max(
            min(settings.message_bytes_max, settings.compress_bytes_min - 1), 0
        )
        self._delivery = delivery
        self._submitted = go_on
        self._sender = codec.Sender(
            ids.ids,
            _now_ms,
            check_loop,
            self._go_on,
            Message,
            SendResult,
            SendStatus.SEND_OK,
            self._body_bytes_max,
            settings.send_timeout_ms,
            settings.batching,
        )
        self._paths = TopicPaths(header, settings, plans, delivery, codec, self._sender, check_loop)
        self._batches = Batches(settings, delivery, self._paths.choose, self._wait_for_capacity)
        self.hot = self._paths.hot
        """What begins the sends of each topic, where nothing stands against it."""

    @property
    def cluster(self) -> Cluster:
        """That of the sends that have begun."""
        return self._paths.cluster

    @property
    def open_count(self) -> int:
        """Messages on their way."""
        return self._sender.open_count

    def begin(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        *,
        is_submitted: bool = False,
    ) -> StartedSend | None:
        """Write a message, or let it wait for capacity or for others; None: it is not for the fast
        path."""
        path = self._paths.of(cluster, message.topic)
        body = message.body
        if (
            type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
        ):
            path = None  # the codec would decline it, but maybe only when there is capacity
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        if self._is_batching:
            future = None
            if path is not None and ms > 0:
                future = self._batches.add(path, message, queue, ms)
            if path is not None and future is not None:
                return StartedSend(future, path.sends.withdraw, NO_OPAQUE, None)
            self._batches.seal_all(message.topic)
            return None
        target = None if path is None or ms <= 0 else self._paths.choose(path, queue)
        if path is None or target is None or (connection := target.connection) is None:
            return None
        if not connection.has_capacity():
            is_given = queue is not None
            if not is_given and not self._avoids:
                path.chooser.advance()
            return self._queued(
                path, target, message, ms, is_given=is_given, is_submitted=is_submitted
            )
        if self._avoids:
            queue = target.queue
        start = path.sends.submit if is_submitted else path.sends.begin
        started = start(message, queue, ms)
        if started is None:
            return None
        future, opaque = started
        return StartedSend(future, path.sends.withdraw, opaque, target)

    async def write_oneway(
        self, cluster: Cluster, message: Message, queue: MessageQueue | None
    ) -> bool:
        """Write a message that nobody answers; False: it is not for the fast path, or there is no
        capacity.

        The event loop runs after ``ONEWAY_PER_ITERATION_MAX`` of them.
        """
        hot = self.hot.get(message.topic)
        frames = 0 if hot is None else hot.write_oneway(message, queue)
        path = None if frames else self._paths.of(cluster, message.topic)
        if path is not None and not self._is_batching:
            target = self._paths.choose(path, queue)
            if target is not None:
                frames = path.sends.write_oneway(message, target.queue if self._avoids else queue)
        if frames >= ONEWAY_PER_ITERATION_MAX:
            await asyncio.sleep(0)
        return frames > 0

    def waiting(self, cluster: Cluster) -> list[SendFuture]:
        """The futures of those that are on their way."""
        return cluster.remoting.sends_of(self._sender)

    def seal(self) -> None:
        """Send what waits for others: there will be none."""
        self._paths.close()
        self._batches.seal_all()

    # -- those that wait for capacity --------------------------------------------------------------
    def _queued(
        self,
        path: TopicPath,
        target: QueueTarget,
        message: Message,
        ms: int,
        *,
        is_given: bool,
        is_submitted: bool,
    ) -> StartedSend:
        connection = cast("ClientConnection", target.connection)
        now = path.loop.time()
        future: asyncio.Future[object] = path.loop.create_future()
        send = OpenSend(
            cast("SendFuture", future),
            self._go_on if is_submitted else None,
            message if is_submitted else None,
            None,
            "",
            target.queue,
            is_given,
            now,
            now + ms / 1000,
            ms,
        )
        opaque = connection.sends.new_opaque()
        write = partial(path.sends.admit, message, target.index, opaque, send)
        self._wait_for_capacity(target, write, send, opaque)

        def withdraw(opaque: int) -> None:
            path.sends.withdraw(opaque)
            connection.withdraw(opaque)

        if is_submitted:
            future.add_done_callback(lambda _: connection.withdraw(opaque))
        return StartedSend(cast("SendFuture", future), withdraw, opaque, target)

    def _wait_for_capacity(
        self, target: QueueTarget, write: Callable[[], bool], send: OpenSend, opaque: int
    ) -> None:
        """Let a send, or a batch, wait until its connection has capacity for it."""
        connection = cast("ClientConnection", target.connection)
        waiting = connection.post_later(write, opaque, send.deadline, target.what)
        count = 1 if send.batch is None else len(send.batch)
        self._delivery.begin(count)

        def over(waiting: asyncio.Future[None]) -> None:
            self._delivery.end(count)
            if waiting.cancelled():
                return
            error = waiting.exception()
            if error is not None:
                send.end(cast("Exception", error))

        waiting.add_done_callback(over)

    def _go_on(self, send: OpenSend) -> None:
        if send.batch is not None:
            self._batches.go_on(send)
        else:
            self._submitted(send)


def _now_ms() -> int:
    return clock.now_ms()
