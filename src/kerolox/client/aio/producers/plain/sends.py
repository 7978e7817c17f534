"""Plain sends: a future each, no task, no coroutine but the caller's own.

A send is plain when its topic has a plan, its broker a connection, and nothing has to be done to
it but to encode it: no hook sees it, no namespace is added, it is neither delayed nor compressed.
The codec begins it in one call and completes its future (``codec/sending.py``). Whatever else
happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from kerolox import clock
from kerolox.client.aio.producers.plain.batches import Batches
from kerolox.client.aio.producers.plain.lanes import Lane, Lanes, Target
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.codec.sending import NO_OPAQUE, OpenSend, SendFuture
from kerolox.message import Message
from kerolox.remoting.client_connection import ONEWAY_PER_TURN_MAX

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


class Begun(NamedTuple):
    """A send on its way."""

    future: SendFuture
    withdraw: Callable[[int], None]
    opaque: int
    """Whoever waits for the future calls ``withdraw`` with this when it gives up."""
    target: Target | None


class PlainSends:
    """Begins the plain sends of one producer."""

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
            delivery: chooses among queues, and sends in the general way.
            check_loop: raises when this is not the producer's loop. It is called once a turn: the
                running loop is found by a system call on Python 3.11.
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
        self._lanes = Lanes(header, settings, plans, delivery, codec, self._sender, check_loop)
        self._batches = Batches(settings, delivery, self._lanes.choose, self._wait_for_room)
        self.hot = self._lanes.hot
        """What begins the sends of each topic, where nothing stands against it."""

    @property
    def cluster(self) -> Cluster:
        """That of the sends that have begun."""
        return self._lanes.cluster

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
    ) -> Begun | None:
        """Write a message, or let it wait for room or for others; None: it is not plain."""
        lane = self._lanes.of(cluster, message.topic)
        body = message.body
        if (
            type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
        ):
            lane = None  # the codec would decline it, but maybe only when there is room
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        if self._is_batching:
            future = None
            if lane is not None and ms > 0:
                future = self._batches.add(lane, message, queue, ms)
            if lane is not None and future is not None:
                return Begun(future, lane.sends.withdraw, NO_OPAQUE, None)
            self._batches.seal_all(message.topic)
            return None
        target = None if lane is None or ms <= 0 else self._lanes.choose(lane, queue)
        if lane is None or target is None or (connection := target.connection) is None:
            return None
        if not connection.has_room():
            is_given = queue is not None
            return self._queued(
                lane, target, message, ms, is_given=is_given, is_submitted=is_submitted
            )
        if queue is None and not self._avoids:
            lane.chooser.step_back()  # the codec takes the same one, or the general way does
        elif queue is None:
            queue = target.queue
        start = lane.sends.submit if is_submitted else lane.sends.begin
        begun = start(message, queue, ms)
        if begun is None:
            return None
        return Begun(begun, lane.sends.withdraw, lane.sends.opaque, target)

    async def write_oneway(
        self, cluster: Cluster, message: Message, queue: MessageQueue | None
    ) -> bool:
        """Write a message that nobody answers; False: it is not plain, or there is no room.

        The loop has a turn after ``ONEWAY_PER_TURN_MAX`` of them.
        """
        hot = self.hot.get(message.topic)
        frames = 0 if hot is None else hot.write_oneway(message, queue)
        lane = None if frames else self._lanes.of(cluster, message.topic)
        if lane is not None and not self._is_batching:
            target = self._lanes.choose(lane, queue)
            if target is not None:
                if queue is not None or self._avoids:
                    queue = target.queue
                else:
                    lane.chooser.step_back()  # the codec takes the same one
                frames = lane.sends.write_oneway(message, queue)
        if frames >= ONEWAY_PER_TURN_MAX:
            await asyncio.sleep(0)
        return frames > 0

    def waiting(self, cluster: Cluster) -> list[SendFuture]:
        """The futures of those that are on their way."""
        return cluster.remoting.sends_of(self._sender)

    def seal(self) -> None:
        """Send what waits for others: there will be none."""
        self._lanes.close()
        self._batches.seal_all()

    # -- those that wait for room ---------------------------------------------------------------
    def _queued(
        self,
        lane: Lane,
        target: Target,
        message: Message,
        ms: int,
        *,
        is_given: bool,
        is_submitted: bool,
    ) -> Begun:
        connection = cast("ClientConnection", target.connection)
        now = lane.loop.time()
        future: asyncio.Future[object] = lane.loop.create_future()
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
        opaque = lane.cluster.remoting.opaque_for(connection)
        write = partial(lane.sends.admit, message, target.index, opaque, send)
        self._wait_for_room(target, write, send, opaque)

        def withdraw(opaque: int) -> None:
            lane.sends.withdraw(opaque)
            connection.withdraw(opaque)

        if is_submitted:
            future.add_done_callback(lambda _: connection.withdraw(opaque))
        return Begun(cast("SendFuture", future), withdraw, opaque, target)

    def _wait_for_room(
        self, target: Target, write: Callable[[], bool], send: OpenSend, opaque: int
    ) -> None:
        """Let a send, or a batch, wait until its connection has room for it."""
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
