"""Questions about topics, queues and stored messages that every client can ask (``MQAdmin``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.aio.network.lookups import (
    END_OF_TIME_MS,
    find_message,
    message_trace,
    queue_number,
    search_messages,
)
from kerolox.client.core.checking import checked
from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.routes import MASTER_ID, subscribe_queues
from kerolox.client.core.validate import check_new_topic
from kerolox.errors import ClientClosedError, ClientError
from kerolox.message import MessageExt, MessageQueue
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import Perm, RequestCode
from kerolox.protocol.names import AUTO_CREATE_TOPIC, TOOLS_GROUP, TRACE_TOPIC

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.tracing.trace import TraceView


@checked()
class ClusterQueries:
    """The questions; producers and consumers inherit them."""

    _cluster: Cluster | None = None
    _namespace: str = ""
    _reading_group: str = TOOLS_GROUP
    """In whose name messages are pulled to find a time; consumers take their own."""

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
        """The offset of the first message that was stored at a time (ms since the epoch) or later;
        the queue's end where there is none.

        RocketMQ's ``searchOffset`` gives the message nearest to the time, also one that is older.
        It pulls a few messages to find out. A consumer pulls in the name of its group. A producer's
        account needs the right to read the topic as group ``TOOLS_CONSUMER``.
        """
        from kerolox.client.aio.network.times import first_since

        wire_queue = queue._replace(topic=with_namespace(self._namespace, queue.topic))
        cluster = self._open_cluster()
        return await first_since(cluster, wire_queue, timestamp_ms, group=self._reading_group)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, in ms since the epoch."""
        return await self._queue_number(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp")

    async def _queue_number(
        self, queue: MessageQueue, code: int, field: str, **more: object
    ) -> int:
        topic = with_namespace(self._namespace, queue.topic)
        wire_queue = queue._replace(topic=topic)
        return await queue_number(self._open_cluster(), wire_queue, code, field, more=more)

    async def view_by_id(self, topic: str, message_id: str) -> MessageExt:
        """The message with this id, be it the broker's (offset) id or the producer's unique id.

        Raises:
            NotFoundError: no broker has it.
        """
        wire_topic = with_namespace(self._namespace, topic)
        found = await find_message(self._open_cluster(), wire_topic, message_id, shown_topic=topic)
        found.topic = without_namespace(self._namespace, found.topic)
        return found

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
        found = await search_messages(
            self._open_cluster(),
            with_namespace(self._namespace, topic),
            key,
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        for message in found:
            message.topic = topic
        return found

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
        return await message_trace(
            self._open_cluster(), message_id, topic=topic, max_messages=max_messages
        )
