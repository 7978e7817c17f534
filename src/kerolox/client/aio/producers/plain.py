"""Plain sends: a future each, no task, no coroutine but the caller's own.

A send is plain when its topic has a plan, its broker a connection, and nothing has to be done to
it but to encode it: no hook sees it, no namespace is added, it is neither delayed nor compressed.
The codec makes its request, and reads its answer when it says that the message is stored. Whatever
else happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from kerolox import clock
from kerolox.client.aio.producers.time_limit import TimeLimit
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.errors import RequestTimeoutError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plan, Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.client.core.sending.unique_id import UniqueIdFactory
    from kerolox.codec.sending import SendAnswer, SendEncoder
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import Answer, ClientConnection

TOPICS_MAX = 10_000
"""Topics whose encoder is kept; sends to others take the general way."""

_SEND_OK = SendStatus.SEND_OK


class Target:
    """A queue, and the connection to its broker."""

    __slots__ = ("address", "connection", "queue", "queue_id", "what")

    def __init__(self, queue: MessageQueue, address: str) -> None:
        self.queue = queue
        self.queue_id = queue.queue_id
        self.address = address
        self.what = f"request {RequestCode.SEND_MESSAGE_V2} to {address}"
        self.connection: ClientConnection | None = None


class _Lane:
    """The way of the plain sends of one topic, made anew with its plan."""

    __slots__ = ("by_queue", "chooser", "cluster", "encode", "plan", "targets")

    def __init__(self, cluster: Cluster, plan: Plan, encoder: SendEncoder) -> None:
        self.cluster = cluster
        self.plan = plan
        self.chooser = plan.chooser
        self.encode = encoder.encode
        self.targets = [
            Target(queue, cluster.master_address(queue.broker_name) or "")
            for queue in plan.chooser.queues
        ]
        self.by_queue = {target.queue: target for target in self.targets}


PlainSend: TypeAlias = "tuple[asyncio.Future[Answer], str, Target, int, float, float, int]"
"""A send on its way: the future of its answer, the message's id, where it goes, its opaque, when it
began, when it was written (0: it waits for room), and its time limit in ms. A tuple is what costs
least. Whoever waits for the future calls :func:`withdraw` when it fails or is cancelled."""


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
    connection = send[2].connection
    if connection is not None:
        connection.withdraw(send[3])
        if isinstance(error, RequestTimeoutError) and send[5]:
            connection.timed_out(send[5])


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
        self._header = header
        self._timeout_ms = settings.send_timeout_ms
        self._body_bytes_max = min(settings.message_bytes_max, settings.compress_bytes_min - 1)
        self._next_id = ids.next
        self._plan_of = plans.get
        self._delivery = delivery
        self._avoids = settings.latency_fault_enable
        self._lanes: dict[str, _Lane] = {}

    def begin(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> PlainSend | None:
        """Write a message, or let it wait for room; None: it is not plain, nothing was done."""
        topic, body = message.topic, message.body
        lane = self._lanes.get(topic)
        if lane is None or lane.plan is not self._plan_of(topic) or lane.cluster is not cluster:
            lane = self._new_lane(cluster, topic)
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        if (
            lane is None
            or type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
            or ms <= 0
        ):
            return None
        if queue is not None or self._avoids:
            chosen = queue or self._delivery.choose(lane.plan, ())
            target = lane.by_queue.get(chosen)
        else:
            target = lane.targets[lane.chooser.next_index()]
        if target is None:
            return None
        connection = target.connection
        if connection is None or connection.closed:
            connection = target.connection = cluster.remoting.plain_connection(target.address)
        send = None
        if connection is not None:
            send = self._post(lane, target, connection, message, body, ms)
        if send is None and queue is None:
            lane.chooser.step_back()  # the general way chooses the same one
        return send

    def _post(
        self,
        lane: _Lane,
        target: Target,
        connection: ClientConnection,
        message: Message,
        body: bytes,
        ms: int,
    ) -> PlainSend | None:
        if connection.is_turn_new:
            self._check_loop()
        now_ms, now = clock.now_ms(), connection.loop.time()
        message_id = self._next_id(now_ms)
        keys = message.keys
        parts = (
            now_ms,
            message_id,
            body,
            keys if isinstance(keys, str) else " ".join(keys),
            message.tags,
            message.wait_store_ok,
            message.flag,
            message.properties,
        )
        deadline = now + ms / 1000
        opaque = lane.cluster.remoting.opaque_for(connection)
        if connection.has_room():
            frame = lane.encode(target.queue_id, opaque, *parts)
            if frame is None:
                return None
            future = connection.post(frame, opaque, deadline, target.what)
            return future, message_id, target, opaque, now, now, ms
        encode, queue_id = lane.encode, target.queue_id
        future = connection.post_later(
            lambda opaque: encode(queue_id, opaque, *parts), opaque, deadline, target.what
        )
        return future, message_id, target, opaque, now, 0.0, ms

    def _new_lane(self, cluster: Cluster, topic: str) -> _Lane | None:
        plan = self._plan_of(topic)
        if plan is None or (topic not in self._lanes and len(self._lanes) >= TOPICS_MAX):
            self._lanes.pop(topic, None)
            return None
        header = self._header
        encoder = cluster.remoting.codec.SendEncoder(
            header.group,
            topic,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        lane = self._lanes[topic] = _Lane(cluster, plan, encoder)
        return lane
