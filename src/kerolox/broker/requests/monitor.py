"""Who is online and how far they are: connections (203, 204, 328), progress (208, 300, 303, 308,
317, 343, 345), statistics (315), offsets (43, 45, 222, 223, 314), and questions that the broker
passes on to a consumer (307, 309)."""

from __future__ import annotations

import asyncio
import logging
import time

from kerolox.broker.context import Context
from kerolox.broker.errors import system_error
from kerolox.broker.metrics.ages import earliest_of_queue
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.requests.query import known_topic
from kerolox.broker.tables.clients import Client, ConsumerGroup
from kerolox.broker.tables.topics import all_queues
from kerolox.errors import BrokerError, RemotingError, RequestTimeoutError
from kerolox.message import MessageId, MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import TopicConfig, encode_body
from kerolox.protocol.codes import (
    PROTOCOL_TYPE,
    VERSION,
    VERSION_3_0_7,
    VERSION_3_1_8,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import (
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerStatsHeader,
    ConsumerStatusHeader,
    ConsumeStatsInBrokerHeader,
    CorrectionOffsetHeader,
    EmptyHeader,
    GroupHeader,
    GroupTopicHeader,
    OffsetsHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicHeader,
    ViewBrokerStatsHeader,
)
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices
from kerolox.text import printable

CALL_SECONDS_MAX = 10.0
STATUS_SECONDS_MAX = 5.0

_log = logging.getLogger(__name__)

router: Router[Context] = Router()


# -- connections ------------------------------------------------------------------------------
@router.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader.decode)
async def consumer_connections(
    broker: Context, header: ConsumerGroupHeader, request: Request
) -> Reply:
    """The members of a consumer group and what they subscribe to."""
    group = broker.tables.clients.group(header.consumer_group)
    if group is None:
        raise BrokerError(
            f"the consumer group[{header.consumer_group}] not online",
            code=ResponseCode.CONSUMER_NOT_ONLINE,
        )
    body = {
        "connectionSet": [client.describe() for client in group.members.values()],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": dict(group.subscriptions),
    }
    # A group may subscribe to thousands of topics, with thousands of tags each.
    return Reply(body=await asyncio.to_thread(encode_body, body))


@router.on(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader.decode)
async def producer_connections(
    broker: Context, header: ProducerGroupHeader, request: Request
) -> Reply:
    """The members of a producer group."""
    members = broker.tables.clients.producers(header.producer_group)
    if members is None:
        raise system_error(f"the producer group[{header.producer_group}] not exist")
    return Reply(body=encode_body({"connectionSet": [client.describe() for client in members]}))


@router.on(RequestCode.GET_ALL_PRODUCER_INFO, EmptyHeader.decode)
async def all_producers(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """All producers by group."""
    now_ms, steady_ms = broker.now_ms(), broker.tables.clients.now_ms()
    data = {
        group: [
            {
                "clientId": client.client_id,
                "language": client.language.name,
                "lastUpdateTimestamp": now_ms - (steady_ms - client.last_heartbeat_ms),
                "remoteIP": f"/{client.connection.remote_address}",
                "version": client.version,
                PROTOCOL_TYPE: client.other_protocol,
                "clientVersion": client.connection.client_version or None,
            }
            for client in members
        ]
        for group, members in broker.tables.clients.producer_groups.items()
    }
    return Reply(body=encode_body({"data": data}))


# -- progress ---------------------------------------------------------------------------------
@router.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader.decode)
async def consumed_by(broker: Context, header: TopicHeader, request: Request) -> Reply:
    """The groups that consume a topic, online or not."""
    groups = {
        *broker.tables.clients.groups_of(header.topic),
        *broker.tables.offsets.groups_of(header.topic),
    }
    return Reply(body=encode_body({"groupList": sorted(groups)}))


@router.on(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader.decode)
async def topics_consumed(broker: Context, header: GroupHeader, request: Request) -> Reply:
    """The topics that a group has offsets for; asked by tools of 5.x."""
    topics = sorted(broker.tables.offsets.topics_of(header.group))
    return Reply(body=encode_body({"brokerAddr": broker.identity.address, "topicList": topics}))


@router.on(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupTopicHeader.decode)
async def subscription_of_group(
    broker: Context, header: GroupTopicHeader, request: Request
) -> Reply:
    """What a group that is online wants of a topic; asked by tools of 5.x."""
    body: dict[str, object] = {"group": header.group}
    subscription = broker.tables.clients.subscription(header.group, header.topic)
    if subscription is not None:
        body["subscriptionData"] = subscription
    return Reply(body=encode_body({**body, "topic": header.topic}))


@router.on(RequestCode.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader.decode)
async def consume_time_span(broker: Context, header: GroupTopicHeader, request: Request) -> Reply:
    """From when to when the messages of each queue are, and where a group stands."""
    topic = known_topic(broker, header.topic)
    spans = []
    slices = TimeSlices()
    for queue_id in queues_of_group(broker, header.group, topic):
        await slices.checkpoint()
        high = broker.store.queue_bounds(header.topic, queue_id)[1]
        earliest = earliest_of_queue(broker.store, header.topic, queue_id)
        consumed = broker.tables.offsets.query(header.group, header.topic, queue_id)
        latest = broker.store.store_time(header.topic, queue_id, high - 1)
        stands_at, delay_ms = earliest, 0
        if consumed > 0:
            stands_at = broker.store.store_time(header.topic, queue_id, consumed - 1)
        if consumed < high:
            following = broker.store.store_time(header.topic, queue_id, max(consumed, 0))
            delay_ms = broker.now_ms() - following
        spans.append(
            {
                "consumeTimeStamp": stands_at,
                "delayTime": delay_ms,
                "maxTimeStamp": latest,
                "messageQueue": _queue(broker, header.topic, queue_id),
                "minTimeStamp": earliest,
                "minTimeStampStr": _time_text(earliest),
                "maxTimeStampStr": _time_text(latest),
                "consumeTimeStampStr": _time_text(stands_at),
            }
        )
    return Reply(body=encode_body({"consumeTimeSpanSet": spans}))


@router.on(RequestCode.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader.decode)
async def correction_offset(
    broker: Context, header: CorrectionOffsetHeader, request: Request
) -> Reply:
    """The lowest offset of all groups per queue, compared with one group's."""
    without = {name for name in header.filter_groups.split(",") if name.strip()}
    lowest = broker.tables.offsets.lowest(header.topic, without)
    for queue_id, offset in broker.tables.offsets.of_topic(
        header.compare_group, header.topic
    ).items():
        if lowest.get(queue_id, LONG_MAX) > offset:
            lowest[queue_id] = LONG_MAX
    return Reply(body=encode_body({"correctionOffsets": lowest}))


_Progress = dict[MessageQueue, dict[str, int]]


@router.on(RequestCode.GET_CONSUME_STATS, ConsumerStatsHeader.decode)
async def consume_stats(broker: Context, header: ConsumerStatsHeader, request: Request) -> Reply:
    """How far a group is in each queue, and how fast."""
    group = header.consumer_group
    topics = [header.topic] if header.topic.strip() else broker.tables.offsets.topics_of(group)
    offsets: _Progress = {}
    rate = 0.0
    slices = TimeSlices()
    for name in topics:
        await slices.checkpoint()
        topic = broker.tables.topics.get(name)
        if topic is None or not consumes(broker, group, name):
            continue
        offsets |= _progress(broker, group, topic)
        rate += broker.broker_stats.got_per_second(group, name)
    return Reply(body=encode_body({"consumeTps": rate, "offsetTable": offsets}))


@router.on(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader.decode)
async def all_consume_stats(
    broker: Context, header: ConsumeStatsInBrokerHeader, request: Request
) -> Reply:
    """The same of all groups, topic by topic; of ordered topics only, if that is wanted.

    With thousands of groups that takes seconds, in which others run.
    """
    slices = TimeSlices()
    groups: list[dict[str, list[dict[str, object]]]] = []
    lag = 0
    topics = broker.tables.offsets.topics_by_group()
    for group in broker.tables.groups.names:
        found: list[dict[str, object]] = []
        for name in topics.get(group, ()):
            await slices.checkpoint()
            topic = broker.tables.topics.get(name)
            if topic is None or (header.is_order and not topic.order):
                continue
            if not consumes(broker, group, name):
                continue
            table = _progress(broker, group, topic)
            lag += sum(each["brokerOffset"] - each["consumerOffset"] for each in table.values())
            rate = broker.broker_stats.got_per_second(group, name)
            found.append({"consumeTps": rate, "offsetTable": table})
        groups.append({group: found})
    body = {"brokerAddr": broker.identity.address, "consumeStatsList": groups, "totalDiff": lag}
    return Reply(body=await asyncio.to_thread(encode_body, body))


@router.on(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsHeader.decode)
async def view_stats(broker: Context, header: ViewBrokerStatsHeader, request: Request) -> Reply:
    """One metric over the last minute, hour and day."""
    await broker.broker_stats.refresh()
    found = broker.broker_stats.view(header.stats_name, header.stats_key)
    if found is None:
        raise system_error(
            f"The stats <{printable(header.stats_name)}> <{printable(header.stats_key)}> not exist"
        )
    return Reply(body=encode_body(found))


def _progress(broker: Context, group: str, topic: TopicConfig) -> _Progress:
    """``OffsetWrapper`` by queue; of one that pops have messages of, with how many these are and
    for how long the lowest has been out, which is Kerolox's own."""
    table: _Progress = {}
    name = topic.topic_name
    for queue_id in queues_of_group(broker, group, topic):
        high = broker.store.queue_bounds(name, queue_id)[1]
        consumed = max(broker.tables.offsets.query(group, name, queue_id), 0)
        last = broker.store.store_time(name, queue_id, consumed - 1) if consumed else 0
        progress = {
            "brokerOffset": high,
            "consumerOffset": consumed,
            "lastTimestamp": max(last, 0),
        }
        out = broker.tables.pops.state.in_flight(QueueKey(group, name, queue_id))
        if out is not None:
            progress["inFlight"] = out.messages
            progress["inFlightMillis"] = max(broker.now_ms() - out.pop_time, 0)
            # As RocketMQ 5, whose tools show how far it is from the offset.
            progress["pullOffset"] = max(out.next_offset, consumed)
        table[MessageQueue(name, broker.config.broker_name, queue_id)] = progress
    return table


# -- offsets ----------------------------------------------------------------------------------
@router.on(RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetsHeader.decode)
async def all_offsets(broker: Context, header: OffsetsHeader, request: Request) -> Reply:
    """The offsets of all groups. With ``pops``, which is Kerolox's own, what pops have out, too; it
    is taken first, so that no offset is below what it says. A slave that says where its log ends
    gets no offset behind a message whose copy is not in it: that would lose the message."""
    pops = await broker.tables.pops.shown() if header.pops else {}
    lacks = header.log_end >= 0
    lowest = broker.tables.pops.copies.lowest_behind(header.log_end) if lacks else {}
    table = {**broker.tables.offsets.snapshot(lowest), **pops}
    return Reply(body=await asyncio.to_thread(encode_body, table))


@router.on(RequestCode.GET_ALL_DELAY_OFFSET, EmptyHeader.decode)
async def all_delay_offsets(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """How far the schedule queues are delivered."""
    return Reply(body=encode_body({"offsetTable": broker.writing.schedule.offsets}))


@router.on(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader.decode, changes=True)
async def clone_offsets(broker: Context, header: CloneGroupOffsetHeader, request: Request) -> Reply:
    """Give a group the offsets of another one, for one topic or all."""
    topics = [header.topic]
    if not header.topic.strip():
        topics = broker.tables.offsets.topics_of(header.src_group)
    for topic in topics:
        known = topic in broker.tables.topics
        if known and (header.offline or consumes(broker, header.src_group, topic)):
            async with broker.popping.resetting(header.dest_group, topic):
                old = broker.tables.offsets.of_topic(header.dest_group, topic)
                broker.tables.offsets.clone(header.src_group, header.dest_group, topic)
                new = broker.tables.offsets.of_topic(header.dest_group, topic)
                _audit_offsets(broker, request, header.dest_group, topic, old, new)
    return Reply()


@router.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader.decode, changes=True)
async def reset_offset(broker: Context, header: ResetOffsetHeader, request: Request) -> Reply:
    """Make the members of a group go on at another time; -1 is the end of each queue.

    A 5.x tool may name one queue, and an offset of it; then the broker sets the offset itself where
    nobody is online. Without that its tool would send all queues to the first message.
    """
    topic = broker.tables.topics.get(header.topic)
    if topic is None:
        raise system_error(
            "[reset-offset] reset offset failed, no topic in this broker. topic=" + header.topic
        )
    table = _reset_table(broker, header, topic, request.command.version)
    group = broker.tables.clients.group(header.group)
    old = broker.tables.offsets.of_topic(header.group, header.topic)
    # Members that pop have no offsets of their own that they could set.
    has_pops = broker.tables.pops.is_known(header.group, header.topic) or broker.popping.held.waits(
        header.topic, header.group
    )
    if has_pops or (group is None and header.queue_id >= 0):
        await _reset_here(broker, header, request, table)
        if group is None:
            return Reply(body=encode_body({"offsetTable": table}))
    if group is None:
        raise BrokerError(
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
            code=ResponseCode.CONSUMER_NOT_ONLINE,
        )
    body = encode_body({"offsetTable": table})
    sent = body
    if request.command.language == LanguageCode.CPP:
        sent = encode_body(
            {
                "offsetTable": [
                    {
                        "brokerName": queue.broker_name,
                        "offset": offset,
                        "queueId": queue.queue_id,
                        "topic": queue.topic,
                    }
                    for queue, offset in table.items()
                ]
            }
        )
    fields = {
        "topic": header.topic,
        "group": header.group,
        "timestamp": header.timestamp,
        # The offsets are decided; RocketMQ never says it on.
        "isForce": False,
    }
    for client in group.members.values():
        _check_can_answer(client)
        client.connection.send_oneway(
            RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body=sent)
        )
    new = old | {queue.queue_id: offset for queue, offset in table.items()}
    _audit_offsets(broker, request, header.group, header.topic, old, new)
    return Reply(body=body)


@router.on(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader.decode)
async def consumer_status(broker: Context, header: ConsumerStatusHeader, request: Request) -> Reply:
    """The offsets that the members of a group hold in memory."""
    group = broker.tables.clients.group(header.group)
    if group is None:
        raise system_error(f"No Any Consumer online in the consumer group: [{header.group}]")
    for client in group.members.values():
        _check_can_answer(client)
    wanted = header.client_addr.strip()
    members = [c for c in group.members.values() if not wanted or c.client_id == wanted]
    answers = await asyncio.gather(*(_status_of(client, header) for client in members))
    table = {
        client.client_id: answer
        for client, answer in zip(members, answers, strict=True)
        if answer is not None
    }
    # RocketMQ has one class for this answer and that of each client.
    return Reply(body=encode_body({"consumerTable": table, "messageQueueTable": {}}))


# -- passed on to a consumer ------------------------------------------------------------------
@router.on(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoHeader.decode)
async def running_info(broker: Context, header: RunningInfoHeader, request: Request) -> Reply:
    """What a consumer says of itself."""
    fields = request.command.ext_fields
    return await _call_consumer(
        broker, request, header.consumer_group, header.client_id, fields, request.body
    )


@router.on(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader.decode)
async def consume_directly(
    broker: Context, header: ConsumeDirectlyHeader, request: Request
) -> Reply:
    """Let a consumer handle one stored message now."""
    try:
        offset = MessageId.parse(header.msg_id).physical_offset
    except ValueError as error:
        raise system_error(str(error)) from None
    record = broker.store.lookup(offset) if offset >= 0 else None
    if record is None:
        raise system_error(f"can not find message by the offset, {offset}")
    fields = {**request.command.ext_fields, "brokerName": broker.config.broker_name}
    return await _call_consumer(
        broker, request, header.consumer_group, header.client_id, fields, record
    )


async def _call_consumer(
    broker: Context,
    request: Request,
    group_name: str,
    client_id: str,
    fields: dict[str, str],
    body: bytes,
) -> Reply:
    group = broker.tables.clients.group(group_name)
    client = None if group is None else group.member(client_id)
    if client is None:
        raise system_error(f"The Consumer <{group_name}> <{client_id}> not online")
    if client.version < VERSION_3_1_8:
        raise system_error(
            f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
    call = RemotingCommand(request.command.code, fields, body)
    try:
        answer = await client.connection.request(call, timeout_seconds=CALL_SECONDS_MAX)
    except RequestTimeoutError as error:
        raise BrokerError(
            f"consumer <{group_name}> <{client_id}> Timeout: {error}",
            code=ResponseCode.CONSUME_MSG_TIMEOUT,
        ) from None
    except RemotingError as error:
        raise system_error(
            f"invoke consumer <{group_name}> <{client_id}> Exception: {error}"
        ) from None
    return Reply(answer.code, answer.remark, answer.ext_fields, answer.body)


def _check_can_answer(client: Client) -> None:
    if client.version < VERSION_3_0_7:
        raise system_error(f"the client does not support this feature. version={client.version}")


async def _status_of(client: Client, header: ConsumerStatusHeader) -> object | None:
    call = RemotingCommand.request(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        {"topic": header.topic, "group": header.group},
    )
    try:
        answer = await client.connection.request(call, timeout_seconds=STATUS_SECONDS_MAX)
        body = fastjson.loads(answer.body) if answer.body else None
    except (RemotingError, fastjson.FastjsonError) as error:
        _log.warning("no status from %s: %s", client.client_id, error)
        return None
    return body.get("messageQueueTable", {}) if isinstance(body, dict) else None


async def _reset_here(
    broker: Context, header: ResetOffsetHeader, request: Request, table: dict[MessageQueue, int]
) -> None:
    """Set offsets of a group, and forget what pops have out of these queues."""
    old = broker.tables.offsets.of_topic(header.group, header.topic)
    address = request.connection.remote_address
    queue_ids = {each.queue_id for each in table}
    async with broker.popping.resetting(header.group, header.topic, queue_ids):
        for queue, offset in table.items():
            broker.tables.offsets.commit(header.group, queue.topic, queue.queue_id, offset, address)
            new = {**old, queue.queue_id: offset}
            _audit_offsets(broker, request, header.group, header.topic, old, new)


def _reset_table(
    broker: Context, header: ResetOffsetHeader, topic: TopicConfig, version: int
) -> dict[MessageQueue, int]:
    """Where to go on. To tools up to 4.9 a group without an offset is none, as in RocketMQ 4.9.8;
    later ones can reset such a group, too: their brokers do."""
    table = {}
    queue_ids = range(all_queues(topic))
    if header.queue_id >= 0:
        if header.queue_id not in queue_ids:
            raise system_error(
                f"queue {header.queue_id} of {header.topic} is not there; it has {len(queue_ids)}"
            )
        queue_ids = range(header.queue_id, header.queue_id + 1)
    for queue_id in queue_ids:
        consumed = broker.tables.offsets.query(header.group, header.topic, queue_id)
        if consumed == -1 and queue_id >= topic.write_queue_nums:
            # A queue that is only read yet; RocketMQ passes over all of these.
            continue
        if consumed == -1 and version <= VERSION:
            raise system_error(f"THe consumer group <{header.group}> not exist")
        if header.timestamp == -1:
            target = broker.store.queue_bounds(header.topic, queue_id)[1]
        else:
            target = broker.store.offset_by_time(header.topic, queue_id, header.timestamp)
        target = max(target, 0)
        moves = header.is_force or consumed == -1 or target < consumed
        wanted = target if moves else consumed
        if header.queue_id >= 0 and header.offset != -1:
            wanted = _checked_offset(broker, header)
        table[_queue(broker, header.topic, queue_id)] = wanted
    return table


def _audit_offsets(
    broker: Context,
    request: Request,
    group: str,
    topic: str,
    old: dict[int, int],
    new: dict[int, int],
) -> None:
    """An audit line about the offsets of a group, by queue id. Members that are online were told to
    go on there; nobody waits for them."""
    before, after = ({str(q): offset for q, offset in each.items()} for each in (old, new))
    broker.audit.changed(request, "offsets", f"{group}@{topic}", before, after)


def _checked_offset(broker: Context, header: ResetOffsetHeader) -> int:
    low, high = broker.store.queue_bounds(header.topic, header.queue_id)
    if not low <= header.offset <= high:
        raise system_error(
            f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
        )
    return header.offset


def queues_of_group(broker: Context, group: str, topic: TopicConfig) -> list[int]:
    """The queues of a topic in which messages may wait for a group: all that are read or written,
    and those that the topic has lost and that hold what the group has not consumed. RocketMQ
    counts those that are read, or those that are written: one that is not counted has no lag."""
    count = all_queues(topic)
    lost = [
        queue_id
        for queue_id, consumed in broker.tables.offsets.of_topic(group, topic.topic_name).items()
        if queue_id >= count and _holds_more(broker, topic.topic_name, queue_id, consumed)
    ]
    return [*range(count), *sorted(lost)]


def _holds_more(broker: Context, topic: str, queue_id: int, consumed: int) -> bool:
    low, high = broker.store.queue_bounds(topic, queue_id)
    return max(low, consumed) < high


def consumes(broker: Context, group: str, topic: str) -> bool:
    """False: the group is online and does not subscribe to the topic."""
    online: ConsumerGroup | None = broker.tables.clients.group(group)
    return online is None or not online.subscriptions or topic in online.subscriptions


def _queue(broker: Context, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker.config.broker_name, queue_id)


def _time_text(milliseconds: int) -> str:
    """``UtilAll.YYYY_MM_DD_HH_MM_SS_SSS``, in the broker's time zone."""
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(seconds)) + f":{rest:03d}"
