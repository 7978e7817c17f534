"""Plain sends: a future each, no task, no coroutine but the caller's own.

A send is plain when its topic has a plan, its broker a connection, and nothing has to be done to
it but to encode it: no hook sees it, no namespace is added, it is neither delayed nor compressed.
The codec makes its request, and reads its answer when it says that the message is stored. Whatever
else happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kerolox import clock
from kerolox.client.aio.producers.plain.batches import Batches
from kerolox.client.aio.producers.plain.lanes import Lanes, Target
from kerolox.client.aio.producers.time_limit import TimeLimit
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.errors import RequestTimeoutError
from kerolox.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.client.core.sending.unique_id import UniqueIdFactory
    from kerolox.codec.sending import SendAnswer
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import Answer, ClientConnection

Encode: TypeAlias = """Callable[
    [int, int, int, str, bytes, str, str, bool, int, Mapping[str, str]], bytes | None
]"""

_SEND_OK = SendStatus.SEND_OK


PlainSend: TypeAlias = """tuple[
    asyncio.Future[Answer], str, Target, int, float, float, int, ClientConnection
]"""
"""A send on its way: the future of its answer, the message's id, where it goes, its opaque, when it
began, when it was written (0: it waits for room), its time limit in ms, and its connection. A tuple
costs least. Whoever waits for the future calls :func:`withdraw` when it fails or is cancelled."""


def result_of(send: PlainSend, answer: SendAnswer) -> SendResult:
    """Where the message is stored."""
    _, queue_id, queue_offset, offset_message_id, region, is_traced = answer
    target = send[2]
    queue = target.queue
    if queue_id != target.queue_id:
        queue = queue._replace(queue_id=queue_id)
    return tuple.__new__(
        SendResult,
        (_SEND_OK, send[1], offset_message_id, queue, queue_offset, region, is_traced),
    )


def limit_of(send: PlainSend) -> TimeLimit:
    """Its time limit."""
    return TimeLimit(send[6], send[4] + send[6] / 1000)


def seconds_since(send: PlainSend) -> float:
    """How long ago it began."""
    return asyncio.get_running_loop().time() - send[4]


def withdraw(send: PlainSend, error: BaseException) -> None:
    """It has failed, or its caller went away: nothing of it is kept."""
    connection = send[7]
    connection.withdraw(send[3])
    if isinstance(error, RequestTimeoutError) and send[5]:
        connection.timed_out(send[5])


def _frame(
    encode: Encode, queue_id: int, now_ms: int, message_id: str, message: Message, opaque: int
) -> bytes | None:
    keys = message.keys
    return encode(
        queue_id,
        opaque,
        now_ms,
        message_id,
        message.body,
        keys if isinstance(keys, str) else " ".join(keys),
        message.tags,
        message.wait_store_ok,
        message.flag,
        message.properties,
    )


class PlainSends:
    """Begins the plain sends of one producer."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        ids: UniqueIdFactory,
        plans: Plans,
        delivery: Delivery,
        check_loop: Callable[[], object],
    ) -> None:
        """Nothing is sent yet.

        Args:
            header: what is the same in all sends.
            settings: the producer's.
            ids: makes the messages' ids.
            plans: where messages go.
            delivery: chooses among queues.
            check_loop: raises when this is not the producer's loop. It is called once a turn: the
                running loop is found by a system call on Python 3.11.
        """
        self._check_loop = check_loop
        self._timeout_ms = settings.send_timeout_ms
        self._next_id = ids.next
        self._lanes = Lanes(header, settings, plans, delivery, check_loop)
        self._batches = Batches(settings, delivery, ids.next, self._lanes.choose, check_loop)

    def begin(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> PlainSend | None:
        """Write a message, or let it wait for room; None: it is not plain, nothing was done."""
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        lane = self._lanes.of(cluster, message, ms)
        target = None if lane is None else self._lanes.choose(lane, queue)
        if lane is None or target is None or (connection := target.connection) is None:
            return None
        if connection.is_turn_new:
            self._check_loop()
        now_ms, now = clock.now_ms(), connection.loop.time()
        message_id = self._next_id(now_ms)
        opaque = cluster.remoting.opaque_for(connection)
        if not connection.has_room():
            future = connection.post_later(
                partial(_frame, lane.encode, target.queue_id, now_ms, message_id, message),
                opaque,
                now + ms / 1000,
                target.what,
            )
            return future, message_id, target, opaque, now, 0.0, ms, connection
        frame = _frame(lane.encode, target.queue_id, now_ms, message_id, message, opaque)
        if frame is None:
            if queue is None:
                lane.chooser.step_back()  # the general way chooses the same one
            return None
        future = connection.post(frame, opaque, now + ms / 1000, target.what)
        return future, message_id, target, opaque, now, now, ms, connection

    def gather(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> asyncio.Future[SendResult] | None:
        """Let a message wait for others of its kind; None: it is not plain, nothing was done."""
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        lane = self._lanes.of(cluster, message, ms)
        future = None if lane is None else self._batches.add(lane, message, queue, ms)
        if future is None:
            self._batches.seal_all(message.topic)
        return future

    def seal(self) -> None:
        """Send what waits for others: there will be none."""
        self._batches.seal_all()
