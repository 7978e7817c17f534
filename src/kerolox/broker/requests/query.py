"""Questions about messages and offsets: by key (12), by id (33), a group's offset (14, 15), the
bounds of a queue (29 to 32), and the state of a topic (202)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from kerolox.broker.context import Context
from kerolox.broker.errors import no_group, system_error
from kerolox.broker.metrics.ages import earliest_of_queue
from kerolox.broker.tables.topics import all_queues
from kerolox.errors import BrokerError
from kerolox.message import MessageQueue
from kerolox.protocol.bodies import TopicConfig, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.dead_letter_marks import is_marks_group
from kerolox.protocol.extensions.member_offsets import MEMBER_FIELD
from kerolox.protocol.headers import (
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    QueueHeader,
    QueueTimestampHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from kerolox.protocol.names import UNIQUE_KEY_QUERY_FIELD
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices
from kerolox.store.layout import memory_bytes

router: Router[Context] = Router()


@router.on(RequestCode.QUERY_MESSAGE, QueryMessageHeader.decode)
async def query_message(broker: Context, header: QueryMessageHeader, request: Request) -> Reply:
    """Messages by business key or unique key, in a time range."""
    count = header.max_num
    if request.command.ext_fields.get(UNIQUE_KEY_QUERY_FIELD) == "true":
        count = broker.config.default_query_max_num
    count = min(max(count, 0), broker.config.max_msgs_num_batch)
    timestamp, offset, records = broker.store.query_key(
        header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
    )
    fields = {"indexLastUpdateTimestamp": timestamp, "indexLastUpdatePhyoffset": offset}
    if not records:
        return Reply(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            fields,
        )
    return Reply(fields=fields, body=records)


@router.on(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader.decode)
async def view_message(broker: Context, header: ViewMessageHeader, request: Request) -> Reply:
    """One message by its physical offset."""
    record = broker.store.lookup(header.offset) if header.offset >= 0 else None
    if record is None:
        raise system_error(f"can not find message by the offset, {header.offset}")
    return Reply(body=record)


@router.on(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader.decode)
async def query_offset(
    broker: Context, header: QueryConsumerOffsetHeader, request: Request
) -> Reply:
    """A group's offset. Without one: 0 when the queue's start is still there and warm. A group that
    knows an earlier life of the queue begins at its start."""
    place = header.consumer_group, header.topic, header.queue_id
    if broker.tables.offsets.is_stale(*place):
        return Reply(fields={"offset": broker.tables.offsets.start_of(*place)})
    offset = broker.tables.offsets.query(*place)
    if offset >= 0:
        return Reply(fields={"offset": offset})
    min_offset, _ = broker.store.queue_bounds(header.topic, header.queue_id)
    if min_offset <= 0 and not _is_start_on_disk(broker, header.topic, header.queue_id):
        return Reply(fields={"offset": 0})
    raise BrokerError(
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        code=ResponseCode.QUERY_NOT_FOUND,
    )


@router.on(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader.decode)
async def update_offset(
    broker: Context, header: UpdateConsumerOffsetHeader, request: Request
) -> Reply:
    """Set a group's offset. One of before the deletion of its topic does not count: a member of a
    group that is stale says nothing new before it pulls the queue at its start. Who has not
    sent its heartbeat yet is no operator, either, if it says so or waits for no answer."""
    place = header.consumer_group, header.topic, header.queue_id
    if (
        not is_marks_group(header.consumer_group)
        and broker.tables.groups.get(header.consumer_group) is None
        and not broker.config.auto_create_subscription_group
    ):
        # Its members would bring back offsets that went with it.
        raise no_group(header.consumer_group)
    is_known = broker.tables.clients.is_member(header.consumer_group, request.connection)
    is_member = is_known or request.command.ext_fields.get(MEMBER_FIELD) == "true"
    is_operator = not is_member and not request.command.is_oneway
    if _is_of_before(broker, header, is_known=is_known, is_operator=is_operator):
        if request.command.is_oneway:
            return Reply()
        raise system_error(
            f"offset {header.commit_offset} of group {header.consumer_group} is of an earlier life "
            f"of queue {header.queue_id} of {header.topic}, which was deleted; the group has not "
            f"pulled it since and goes on at {broker.tables.offsets.start_of(*place)}"
        )
    group, topic, queue_id = place
    resetting: AbstractAsyncContextManager[None] = nullcontext()
    if not is_member:
        # A tool's: what pops have out is of before.
        resetting = broker.popping.resetting(group, topic, (queue_id,))
    async with resetting:
        address = request.connection.remote_address
        broker.tables.offsets.commit(group, topic, queue_id, header.commit_offset, address)
    broker.popping.held.wake(topic, group)
    return Reply()


def _is_of_before(
    broker: Context, header: UpdateConsumerOffsetHeader, *, is_known: bool, is_operator: bool
) -> bool:
    """Whether an offset may be of a queue that was deleted, and is no operator's. ``is_known``: a
    heartbeat told of its sender."""
    place = header.consumer_group, header.topic, header.queue_id
    offsets = broker.tables.offsets
    if offsets.is_behind_the_end(header.topic, header.queue_id, header.commit_offset):
        return True
    if is_operator:
        return False
    return offsets.is_stale(*place) or (not is_known and offsets.is_unknown(*place))


@router.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QueueTimestampHeader.decode)
async def search_offset(broker: Context, header: QueueTimestampHeader, request: Request) -> Reply:
    """The offset of the message stored at a time, or nearest to it."""
    offset = broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp)
    return Reply(fields={"offset": offset})


@router.on(RequestCode.GET_MAX_OFFSET, QueueHeader.decode)
async def max_offset(broker: Context, header: QueueHeader, request: Request) -> Reply:
    """The offset that the next message of a queue gets."""
    return Reply(fields={"offset": broker.store.queue_bounds(header.topic, header.queue_id)[1]})


@router.on(RequestCode.GET_MIN_OFFSET, QueueHeader.decode)
async def min_offset(broker: Context, header: QueueHeader, request: Request) -> Reply:
    """The offset of the oldest message of a queue."""
    return Reply(fields={"offset": broker.store.queue_bounds(header.topic, header.queue_id)[0]})


@router.on(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader.decode)
async def earliest_time(broker: Context, header: QueueHeader, request: Request) -> Reply:
    """When the oldest message of a queue was stored; -1 when there is none."""
    earliest = earliest_of_queue(broker.store, header.topic, header.queue_id)
    return Reply(fields={"timestamp": earliest})


@router.on(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader.decode)
async def topic_state(broker: Context, header: TopicHeader, request: Request) -> Reply:
    """Bounds and last store time of each queue of a topic."""
    topic = known_topic(broker, header.topic)
    offsets = {}
    slices = TimeSlices()
    for queue_id in range(all_queues(topic)):
        await slices.checkpoint()
        low, high = broker.store.queue_bounds(header.topic, queue_id)
        last = broker.store.store_time(header.topic, queue_id, high - 1) if high > 0 else 0
        queue = MessageQueue(header.topic, broker.config.broker_name, queue_id)
        offsets[queue] = {"lastUpdateTimestamp": last, "maxOffset": high, "minOffset": low}
    return Reply(body=encode_body({"offsetTable": offsets}))


def known_topic(broker: Context, name: str) -> TopicConfig:
    """The settings of a topic; BrokerError, code 17: there is none."""
    topic = broker.tables.topics.get(name)
    if topic is None:
        raise BrokerError(f"topic[{name}] not exist", code=ResponseCode.TOPIC_NOT_EXIST)
    return topic


def _is_start_on_disk(broker: Context, topic: str, queue_id: int) -> bool:
    """The queue's first message is so far behind the end of the log that it is on disk only."""
    entry = broker.store.queue_entry(topic, queue_id, 0)
    if entry is None:
        return False
    ratio = broker.config.access_message_in_memory_max_ratio / 100
    return broker.store.max_physical_offset - entry[0] > memory_bytes() * ratio
