"""Reading the messages of queues: a range of offsets or of times, without a consumer group."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kerolox.admin.cluster import ClusterRequests
from kerolox.admin.positions import FIRST, LAST, Position, PositionKind
from kerolox.client.aio.network.lookups import queue_number
from kerolox.client.aio.network.times import first_since
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.pull import PullStatus, pull_request, pull_result
from kerolox.client.core.routes import TopicRoute, subscribe_queues
from kerolox.errors import ClientError, NotFoundError
from kerolox.filter.tags import subscription_of
from kerolox.message import ALL_TAGS, MessageExt, MessageQueue
from kerolox.protocol.codes import PULL_COUNT_MAX, RequestCode
from kerolox.protocol.names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.client.aio.network.access import Access
    from kerolox.client.core.consuming.pull import PullResult
    from kerolox.filter.tags import Subscription

PULL_MESSAGES = 32
"""Messages of one pull."""


@checked()
class MessageReadRequests(ClusterRequests):
    """Reads messages of queues."""

    async def min_offset(self, queue: MessageQueue, *, broker: str = "") -> int:
        """The offset of the oldest message of a queue that is still stored (code 31).

        Args:
            queue: the queue.
            broker: ``host:port``; empty: the broker that the queue names.

        Raises:
            TopicRouteNotFoundError, ClientError: the queue's broker is unknown.
            BrokerError, RemotingError: it refused or does not answer.
        """
        return await _number(self.access, queue, broker, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue, *, broker: str = "") -> int:
        """The offset that the next message of a queue will have (code 30). Arguments and errors:
        see :meth:`min_offset`.
        """
        return await _number(self.access, queue, broker, RequestCode.GET_MAX_OFFSET)

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, *, broker: str = ""
    ) -> int:
        """The offset of the first message of a queue that was stored at a time (ms since the epoch)
        or later; its end where there is none. Codes 29 to 31, and 11 near the time, since code 29
        alone gives the message nearest to it. Other arguments and errors: see :meth:`min_offset`.
        """
        return await first_since(self.access, queue, timestamp_ms, address=broker)

    async def earliest_store_time(self, queue: MessageQueue, *, broker: str = "") -> int:
        """When the oldest message of a queue was stored, in ms since the epoch; -1: there is
        none (code 32). Arguments and errors: see :meth:`min_offset`.
        """
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        return await _number(self.access, queue, broker, code, field="timestamp")

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """The message at an offset of a queue (``queryMsgByOffset``, code 11).

        Raises:
            NotFoundError: the queue has no message there.
            TopicRouteNotFoundError, ClientError: the queue's broker is unknown.
            BrokerError, RemotingError: it refused or does not answer.
        """
        address = await self.access.read_address_of(queue.topic, queue.broker_name)
        subscription = subscription_of(queue.topic, ALL_TAGS)
        result = await _pull(self.access, address, queue, offset, subscription, TOOLS_GROUP, 1)
        for message in result.messages:
            if message.queue_offset == offset:
                return message
        raise NotFoundError(
            f"queue {queue.broker_name}/{queue.queue_id} of topic {queue.topic!r} has no message "
            f"at offset {offset}; it has {result.min_offset} to {result.max_offset - 1}"
        )

    async def read_messages(
        self,
        topic: str,
        *,
        broker_name: str = "",
        queue_id: int | None = None,
        offset: int | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        start: Position | None = None,
        stop: Position | None = None,
        expression: str = ALL_TAGS,
        max_messages: int | None = None,
        group: str = TOOLS_GROUP,
    ) -> AsyncIterator[MessageExt]:
        """The messages of a topic's queues that are there now, queue by queue in order
        (``printMsg``, ``printMsgByQueue``, ``consumeMessage``; codes 11 and 29 to 31). No offset
        is committed.

        Args:
            topic: the topic.
            broker_name: only queues of this broker.
            queue_id: only queues with this number.
            offset: where to begin in each queue; None: at the first message, or at ``begin_ms``.
            begin_ms: stored at or after (ms since the epoch).
            end_ms: stored before, as far as the queue's order is that of times.
            start: where to begin in each queue, instead of ``offset`` and ``begin_ms``.
            stop: where to end in each queue, instead of ``end_ms``.
            expression: ``*``, or tags joined by ``||``.
            max_messages: most messages in all; None: no limit.
            group: in whose name it pulls.

        Raises:
            ClientError: the topic has no such queue, or the expression names no tag.
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        try:
            wanted = subscription_of(topic, expression)
        except ValueError as error:
            raise ClientError(str(error)) from None
        route = await self.access.route(topic)
        if start is None and offset is not None:
            start = Position(PositionKind.OFFSET, offset)
        left = math.inf if max_messages is None else max_messages
        for queue in _queues(route, topic, broker_name, queue_id):
            address = _address(route, queue)
            bounds = start or _at(begin_ms), stop or _at(end_ms)
            span = await bounds_of(self, address, queue, *bounds)
            async for message in read_queue(
                self.access, address, queue, *span, subscription=wanted, group=group, most=left
            ):
                left -= 1
                yield message

    async def count_tags(
        self,
        queue: MessageQueue,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        expression: str = ALL_TAGS,
    ) -> Counter[str]:
        """How many messages of a queue have which tag (``printMsgByQueue -f``); ``""``: none.
        Arguments and errors: see :meth:`read_messages`.
        """
        counts: Counter[str] = Counter()
        found = self.read_messages(
            queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            begin_ms=begin_ms,
            end_ms=end_ms,
            expression=expression,
        )
        async for message in found:
            counts[message.tags] += 1
        return counts


async def nearest_offset(
    access: Access, queue: MessageQueue, timestamp_ms: int, *, broker: str = ""
) -> int:
    """The offset of the message of a queue that was stored at a time, or nearest to it: RocketMQ's
    ``searchOffset`` (code 29). Arguments and errors: see :meth:`offset_by_time`."""
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return await _number(access, queue, broker, code, timestamp=timestamp_ms)


async def read_queue(
    access: Access,
    address: str,
    queue: MessageQueue,
    begin: int,
    end: int,
    *,
    subscription: Subscription | None = None,
    group: str = TOOLS_GROUP,
    most: float = math.inf,
) -> AsyncIterator[MessageExt]:
    """The messages of one queue from offset ``begin`` to before ``end``, without a name server.
    ``group``: in whose name it pulls. ``subscription``: which messages; None: all.
    """
    wanted = subscription or subscription_of(queue.topic, ALL_TAGS)
    left = most
    while begin < end and left > 0:
        count = int(min(left, PULL_MESSAGES))
        result = await _pull(access, address, queue, begin, wanted, group, count)
        for message in result.messages[:count]:
            if message.queue_offset < end:
                left -= 1
                yield message
        begin = _next_offset(result, begin, end)


def _queues(
    route: TopicRoute, topic: str, broker_name: str, queue_id: int | None
) -> list[MessageQueue]:
    queues = [
        queue
        for queue in sorted(subscribe_queues(topic, route))
        if broker_name in ("", queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not queues:
        raise ClientError(f"topic {topic!r} has no such queue to read")
    return queues


def _address(route: TopicRoute, queue: MessageQueue) -> str:
    broker = route.broker(queue.broker_name)
    address = broker.any_address() if broker is not None else None
    if address is None:
        raise ClientError(f"broker {queue.broker_name!r} has no known address")
    return address


def _next_offset(result: PullResult, begin: int, end: int) -> int:
    """Where to go on; ``end``: there is nothing more."""
    if result.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL):
        return end
    # A broker that goes nowhere must not hold us for ever.
    return result.next_offset if result.next_offset > begin else end


def _at(timestamp_ms: int | None) -> Position | None:
    return None if timestamp_ms is None else Position(PositionKind.TIME, timestamp_ms)


async def bounds_of(
    admin: MessageReadRequests,
    address: str,
    queue: MessageQueue,
    start: Position | None,
    stop: Position | None,
) -> tuple[int, int]:
    """The first offset of a queue that is read, and the first one that is not; None: its first
    message, and its end.
    """

    async def by_time(timestamp_ms: int) -> int:
        return await first_since(admin.access, queue, timestamp_ms, address=address, bounds=bounds)

    least = await admin.min_offset(queue, broker=address)
    bounds = least, await admin.max_offset(queue, broker=address)
    begin = await (start or FIRST).offset(bounds, by_time)
    return begin, await (stop or LAST).offset(bounds, by_time)


async def _number(
    access: Access,
    queue: MessageQueue,
    broker: str,
    code: int,
    field: str = "offset",
    **more: object,
) -> int:
    return await queue_number(access, queue, code, field, more=more, address=broker)


async def _pull(
    access: Access,
    address: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    group: str,
    count: int,
) -> PullResult:
    request = pull_request(
        group,
        queue,
        offset,
        subscription,
        max_messages=min(count, PULL_COUNT_MAX),
        with_subscription=True,
    )
    response = await access.remoting.invoke(
        address, request, timeout_seconds=access.timeout_seconds
    )
    return pull_result(response, queue, subscription, address)
