"""Questions about topics, queues and stored messages that every client can ask (``MQAdmin``)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.routes import MASTER_ID, subscribe_queues
from kerolox.client.core.tracing.trace import TraceView, trace_views
from kerolox.client.core.validate import check_new_topic
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    NotFoundError,
    RemoteProtocolError,
    RemotingError,
)
from kerolox.message import MessageExt, MessageId, MessageQueue
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import Perm, RequestCode
from kerolox.protocol.names import AUTO_CREATE_TOPIC, TRACE_TOPIC
from kerolox.protocol.records import decode_record, decode_records

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.protocol.command import RemotingCommand

END_OF_TIME_MS = 2**63 - 1
QUERY_TIMEOUT_FACTOR = 3
"""A search may take so many times the time limit of other requests."""


class ClusterQueries:
    """The questions; producers and consumers inherit them."""

    _cluster: Cluster | None = None
    _namespace: str = ""

    def _open_cluster(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosedError(
                f"{type(self).__name__} is not running; call start(), or use it in a with statement"
            )
        return self._cluster

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read, sorted.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
        """
        route = await self._open_cluster().route(with_namespace(self._namespace, topic))
        return sorted(subscribe_queues(topic, route))

    async def create_topic(
        self, topic: str, *, queues: int = 8, perm: int = Perm.READ | Perm.WRITE
    ) -> None:
        """Create a topic, or change it, on every master that creates topics by itself.

        Args:
            topic: its name.
            queues: read and write queues on each broker.
            perm: 2 write, 4 read, 6 both.

        Raises:
            MessageRejectedError: the name is illegal or RocketMQ's own.
            BrokerError: a broker refused.
        """
        topic = with_namespace(self._namespace, topic)
        check_new_topic(topic)
        cluster = self._open_cluster()
        route = await cluster.fetch_route(AUTO_CREATE_TOPIC)
        masters = [broker.addresses.get(MASTER_ID) for broker in route.brokers] if route else []
        addresses = [address for address in masters if address]
        if not addresses:
            raise ClientError(f"no broker is registered at {', '.join(cluster.name_servers)}")
        wanted = TopicConfig(
            topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=int(perm)
        )
        for address in addresses:
            await cluster.put_topic(address, wanted)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still stored."""
        return await self._queue_number(queue, RequestCode.GET_MIN_OFFSET, "offset")

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will have."""
        return await self._queue_number(queue, RequestCode.GET_MAX_OFFSET, "offset")

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the message stored at a time (ms since the epoch), or nearest to it."""
        return await self._queue_number(
            queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "offset", timestamp=timestamp_ms
        )

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, in ms since the epoch."""
        return await self._queue_number(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp")

    async def _queue_number(
        self, queue: MessageQueue, code: int, field: str, **more: object
    ) -> int:
        cluster = self._open_cluster()
        topic = with_namespace(self._namespace, queue.topic)
        address = await cluster.read_address_of(topic, queue.broker_name)
        fields: dict[str, object] = {"topic": topic, "queueId": queue.queue_id, **more}
        return _number(await cluster.ask(address, code, fields), field, address)

    async def view_by_id(self, topic: str, message_id: str) -> MessageExt:
        """The message with this id, be it the broker's (offset) id or the producer's unique id.

        Raises:
            NotFoundError: no broker has it.
        """
        cluster = self._open_cluster()
        route = await cluster.route(with_namespace(self._namespace, topic))
        known = {address for broker in route.brokers for address in broker.addresses.values()}
        located = _located(message_id)
        # Both kinds of id look alike; one that names a broker of the topic is the broker's.
        if located is not None and f"{located.host}:{located.port}" in known:
            return await self._view(located)
        wire_topic = with_namespace(self._namespace, topic)
        found = await self._search(wire_topic, message_id, 32, 0, END_OF_TIME_MS, unique=True)
        if found:
            return min(found, key=lambda message: message.store_timestamp)
        if located is not None and 0 < located.port < 65_536:
            try:
                return await self._view(located)
            except (RemotingError, BrokerError):
                pass
        raise NotFoundError(f"no message of topic {topic!r} has the id {message_id!r}")

    async def _view(self, located: MessageId) -> MessageExt:
        address = f"{located.host}:{located.port}"
        fields = {"offset": located.physical_offset}
        response = await self._open_cluster().ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        message, _ = decode_record(response.body)
        message.topic = without_namespace(self._namespace, message.topic)
        return message

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> list[MessageExt]:
        """Messages with this key (or unique id), oldest first; empty when there is none.

        Args:
            topic: where to look.
            key: one of a message's keys.
            max_messages: most per broker.
            begin_ms: stored at or after (ms since the epoch).
            end_ms: stored at or before.
        """
        topic = with_namespace(self._namespace, topic)
        return await self._search(topic, key, max_messages, begin_ms, end_ms, unique=False)

    async def query_trace(
        self, message_id: str, *, topic: str = TRACE_TOPIC, max_messages: int = 64
    ) -> list[TraceView]:
        """What clients told of a message, oldest first (``queryMsgTraceById``).

        Traces are a fraction of a second late, and there only if clients write them.

        Args:
            message_id: the message's id (that of its producer).
            topic: the topic that has the traces, as brokers know it: clients write traces outside
                of their namespaces.
            max_messages: most trace messages per broker that are read.

        Raises:
            TopicRouteNotFoundError: there is no such topic.
        """
        found = await self._search(topic, message_id, max_messages, 0, END_OF_TIME_MS, unique=False)
        return trace_views(message_id, found)

    async def _search(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[MessageExt]:
        """``topic`` as brokers know it."""
        cluster = self._open_cluster()
        route = await cluster.route(topic)
        fields: dict[str, object] = {
            "topic": topic,
            "key": key,
            "maxNum": max_messages,
            "beginTimestamp": begin_ms,
            "endTimestamp": end_ms,
        }
        if unique:
            fields["_UNIQUE_KEY_QUERY"] = True
        timeout_seconds = cluster.timeout_seconds * QUERY_TIMEOUT_FACTOR

        async def search(address: str, broker_name: str) -> list[MessageExt]:
            try:
                response = await cluster.ask(
                    address, RequestCode.QUERY_MESSAGE, fields, timeout_seconds=timeout_seconds
                )
            except NotFoundError:
                return []
            return decode_records(response.body, broker_name=broker_name)

        brokers = [(broker.any_address(), broker.broker_name) for broker in route.brokers]
        answers = await asyncio.gather(
            *(search(address, name) for address, name in brokers if address)
        )
        # The index knows only hashes, so what it finds is compared by text here.
        found = [
            message
            for answer in answers
            for message in answer
            if message.topic == topic
            and (message.unique_key == key if unique else _has_key(message, key))
        ]
        for message in found:
            message.topic = without_namespace(self._namespace, message.topic)
        return sorted(found, key=lambda message: message.store_timestamp)


def _located(message_id: str) -> MessageId | None:
    try:
        return MessageId.parse(message_id)
    except ValueError:
        return None


def _has_key(message: MessageExt, key: str) -> bool:
    return key in message.keys.split(" ") or message.unique_key == key


def _number(response: RemotingCommand, field: str, address: str) -> int:
    try:
        return int(response.ext_fields[field])
    except (KeyError, ValueError):
        raise RemoteProtocolError(f"the answer of {address} has no number {field!r}") from None
