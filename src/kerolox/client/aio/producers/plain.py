"""Plain sends: a future each, no task, no coroutine but the caller's own.

A send is plain when its topic has a plan, its broker a connection, and nothing has to be done to
it but to encode it: no hook sees it, no namespace is added, it is neither delayed nor compressed.
The codec makes its request, and reads its answer when it says that the message is stored. Whatever
else happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.producers.time_limit import TimeLimit
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.errors import RequestTimeoutError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    import asyncio

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


class PlainSend:
    """One send on its way."""

    __slots__ = (
        "_encoder",
        "_now_ms",
        "_opaque",
        "_started_at",
        "connection",
        "future",
        "limit",
        "message",
        "message_id",
        "plan",
        "queue",
        "written_at",
    )

    future: asyncio.Future[Answer]
    """Ends with its answer; whoever waits for it calls :meth:`end` when it does not."""

    def __init__(
        self,
        message: Message,
        message_id: str,
        now_ms: int,
        plan: Plan,
        queue: MessageQueue,
        limit: TimeLimit,
        encoder: SendEncoder,
        connection: ClientConnection,
        opaque: int,
        started_at: float,
        written_at: float,
    ) -> None:
        self.message = message
        self.message_id = message_id
        self.plan = plan
        self.queue = queue
        self.limit = limit
        self.connection = connection
        self.written_at = written_at
        self._encoder = encoder
        self._now_ms = now_ms
        self._opaque = opaque
        self._started_at = started_at

    def frame(self, opaque: int) -> bytes | None:
        """The request; None: it is not plain."""
        message = self.message
        keys = message.keys
        return self._encoder.encode(
            self.queue.queue_id,
            opaque,
            self._now_ms,
            self.message_id,
            message.body,
            keys if isinstance(keys, str) else " ".join(keys),
            message.tags,
            message.wait_store_ok,
            message.flag,
            message.properties,
        )

    def result(self, answer: SendAnswer) -> SendResult:
        """Where the message is stored."""
        _, queue_id, queue_offset, offset_message_id, region, is_traced = answer
        queue = self.queue
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        return SendResult(
            _SEND_OK, self.message_id, offset_message_id, queue, queue_offset, region, is_traced
        )

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return self.connection.loop.time() - self._started_at

    def end(self, error: BaseException) -> None:
        """It has failed, or its caller went away: nothing of it is kept."""
        self.connection.withdraw(self._opaque)
        if isinstance(error, RequestTimeoutError) and self.written_at:
            self.connection.timed_out(self.written_at)


class PlainSends:
    """Begins the plain sends of one producer."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        ids: UniqueIdFactory,
        plans: Plans,
        delivery: Delivery,
    ) -> None:
        """Nothing is sent yet."""
        self._header = header
        self._timeout_ms = settings.send_timeout_ms
        self._body_bytes_max = min(settings.message_bytes_max, settings.compress_bytes_min - 1)
        self._ids = ids
        self._plan_of = plans.get
        self._delivery = delivery
        self._encoders: dict[str, SendEncoder] = {}

    def begin(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> PlainSend | None:
        """Write a message, or let it wait for room; None: it is not plain, nothing was done."""
        topic, body = message.topic, message.body
        plan = self._plan_of(topic)
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        if (
            plan is None
            or type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
            or ms <= 0
        ):
            return None
        target = self._delivery.choose(plan, ()) if queue is None else queue
        remoting = cluster.remoting
        address = cluster.master_address(target.broker_name)
        connection = None if address is None else remoting.plain_connection(address)
        encoder = self._encoders.get(topic) or self._new_encoder(cluster, topic)
        if connection is None or encoder is None:
            return None
        now_ms, now = clock.now_ms(), connection.loop.time()
        opaque = remoting.opaque_for(connection)
        limit = TimeLimit(ms, now + ms / 1000)
        send = PlainSend(
            message,
            self._ids.next(now_ms),
            now_ms,
            plan,
            target,
            limit,
            encoder,
            connection,
            opaque,
            now,
            now if connection.has_room() else 0.0,
        )
        what = f"request {RequestCode.SEND_MESSAGE_V2} to {address}"
        future = connection.post(send, opaque, limit.deadline, what)
        if future is None:
            return None
        send.future = future
        return send

    def _new_encoder(self, cluster: Cluster, topic: str) -> SendEncoder | None:
        if len(self._encoders) >= TOPICS_MAX:
            return None
        header = self._header
        encoder = self._encoders[topic] = cluster.remoting.codec.SendEncoder(
            header.group,
            topic,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        return encoder
