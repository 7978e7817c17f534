"""Sending by hand, and how long sends take: one message, many to a topic, some to each broker."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.addresses import local_address
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID, TopicRoute, publish_queues
from kerolox.client.core.sending.send import (
    OutgoingMessage,
    SendHeader,
    SendResult,
    outgoing_message,
    send_result,
)
from kerolox.client.core.sending.unique_id import UniqueIdFactory
from kerolox.client.core.validate import check_body, check_send_topic
from kerolox.errors import ClientError, KeroloxError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import FRAME_BYTES_MAX
from kerolox.protocol.names import AUTO_CREATE_TOPIC

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

GROUP = "TOOLS_PRODUCER"
"""The producer group of what is sent by hand."""

TOPIC_QUEUES = 4
"""Queues of a topic that a broker makes for such a message."""

TIMED_SENDS_MAX = 100_000
"""Most sends of one call: each has its own result."""


@dataclass(frozen=True, slots=True)
class SendTiming:
    """One send: where to, how long it took, and how it ended."""

    queue: MessageQueue
    milliseconds: float
    result: SendResult | None
    """None: it failed."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class SendTimings:
    """Sends to one topic, one after the other (``checkMsgSendRT``)."""

    topic: str
    sends: tuple[SendTiming, ...]

    @property
    def failed(self) -> int:
        """How many messages were not stored."""
        return sum(send.result is None for send in self.sends)

    @property
    def mean_ms(self) -> float:
        """Mean time of all but the first, which opens connections; of one alone, its own."""
        counted = self.sends[1:] or self.sends
        return sum(send.milliseconds for send in counted) / max(len(counted), 1)


@checked()
class MessageSendRequests(ClusterRequests):
    """Sends messages."""

    async def send_message(
        self,
        message: Message,
        *,
        broker_name: str = "",
        queue_id: int | None = None,
        group: str = GROUP,
    ) -> SendResult:
        """Send one message, once (``sendMessage``, code 310). Who sends many has a ``Producer``.

        Args:
            message: the message.
            broker_name: only to a queue of this broker.
            queue_id: only to a queue with this number.
            group: the producer group.

        Raises:
            MessageRejectedError: the message is illegal.
            TopicRouteNotFoundError: no name server knows the topic.
            ClientError: the topic has no such queue to write.
            BrokerError: the message was not stored.
            RemotingError: the broker does not answer; whether it is stored is unknown.
        """
        check_send_topic(message.topic)
        check_body(message.body, bytes_max=FRAME_BYTES_MAX)
        route = await self.access.route(message.topic)
        queue = random.choice(writable_queues(route, message.topic, broker_name, queue_id))
        return await QueueSender(self.access, group).send(message, queue, route)

    async def time_sends(
        self, topic: str, *, count: int = 100, body_bytes: int = 128, broker_name: str = ""
    ) -> SendTimings:
        """Send messages to a topic's queues in turn, one after the other, and time each
        (``checkMsgSendRT``; ``sendMsgStatus`` with a broker's name as the topic).

        Args:
            topic: where to; consumers of it get the messages.
            count: how many.
            body_bytes: how long each body is.
            broker_name: only to queues of this broker.

        Raises:
            ClientError: the count or the size is none; the topic has no such queue to write.
            TopicRouteNotFoundError: no name server knows the topic.
        """
        if not 1 <= count <= TIMED_SENDS_MAX:
            raise ClientError(f"count is {count}; it must be from 1 to {TIMED_SENDS_MAX}")
        check_send_topic(topic)
        message = Message(topic, b"a" * body_bytes)
        check_body(message.body, bytes_max=FRAME_BYTES_MAX)
        route = await self.access.route(topic)
        queues = writable_queues(route, topic, broker_name, None)
        sender = QueueSender(self.access, GROUP)
        sends: list[SendTiming] = []
        for number in range(count):
            queue = queues[number % len(queues)]
            begin = time.perf_counter()
            result, error = None, ""
            try:
                result = await sender.send(message, queue, route)
            except KeroloxError as failure:
                error = str(failure)
            sends.append(SendTiming(queue, (time.perf_counter() - begin) * 1000, result, error))
        return SendTimings(topic, tuple(sends))

    async def time_cluster_sends(
        self, *, cluster: str = "", count: int = 100, body_bytes: int = 128
    ) -> dict[str, SendTimings]:
        """Send messages to the topic that each broker has by its own name, and time them
        (``clusterRT``); by broker name, one broker after the other.

        Args:
            cluster: its brokers; empty: those of all clusters.
            count: messages for each.
            body_bytes: how long each body is.

        Raises:
            ClientError: there is no such cluster; the count or the size is none.
            TopicRouteNotFoundError: a broker has no topic of its name (``brokerTopicEnable``).
            RemotingError: no name server answers.
        """
        brokers = (await self.cluster_info()).nodes(cluster)
        return {
            broker.broker_name: await self.time_sends(
                broker.broker_name,
                count=count,
                body_bytes=body_bytes,
                broker_name=broker.broker_name,
            )
            for broker in brokers
            if MASTER_ID in broker.addresses
        }


class QueueSender:
    """Sends to given queues, each message once."""

    def __init__(self, access: Access, group: str) -> None:
        self._access = access
        self._header = SendHeader(group, AUTO_CREATE_TOPIC, TOPIC_QUEUES)
        self._ids = UniqueIdFactory(local_address(), os.getpid(), random.getrandbits(32))

    async def send(self, message: Message, queue: MessageQueue, route: TopicRoute) -> SendResult:
        """Errors: see :meth:`send_message`."""
        outgoing = outgoing_message(
            message,
            self._ids.next(time.time_ns() // 1_000_000),
            compress_bytes_min=FRAME_BYTES_MAX,
            compress_level=5,
        )
        return await self.send_outgoing(outgoing, queue, route)

    async def send_outgoing(
        self, outgoing: OutgoingMessage, queue: MessageQueue, route: TopicRoute
    ) -> SendResult:
        """The same of a message that is ready."""
        access = self._access
        broker = route.broker(queue.broker_name)
        address = broker.addresses.get(MASTER_ID) if broker is not None else None
        if address is None:
            raise ClientError(f"broker {queue.broker_name!r} has no master")
        request = self._header.request(outgoing, queue.queue_id, time.time_ns() // 1_000_000)
        response = await access.remoting.invoke(
            address, request, timeout_seconds=access.timeout_seconds
        )
        return send_result(response, outgoing.message_id, queue, address)


def writable_queues(
    route: TopicRoute, topic: str, broker_name: str = "", queue_id: int | None = None
) -> list[MessageQueue]:
    """The queues that a message may go to, sorted."""
    queues = [
        queue
        for queue in sorted(publish_queues(topic, route))
        if broker_name in ("", queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not queues:
        where = f" of broker {broker_name!r}" if broker_name else ""
        number = "" if queue_id is None else f" {queue_id}"
        raise ClientError(f"topic {topic!r} has no queue{number}{where} that may be written")
    return queues
