"""What clients say about themselves: heartbeats (34), leaving (35), the members of a group (38),
queue locks (41, 42), the check of a subscription (46), which queues a member reads (400) and how
(401, 402)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kerolox.broker.context import Context
from kerolox.broker.errors import no_expression_filter, no_permission, system_error
from kerolox.broker.requests.send import UNIT_SUBSCRIBED_FLAG
from kerolox.broker.services.registration import ANSWER_SECONDS_MAX
from kerolox.broker.tables.assignments import STRATEGIES
from kerolox.broker.tables.clients import TOPICS_PER_GROUP_MAX, Client
from kerolox.broker.tables.filters import compile_expression
from kerolox.broker.tables.request_modes import POP
from kerolox.broker.tables.subscriptions import TOPICS_PER_STEP
from kerolox.errors import BrokerError, MessageIllegalError
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.tags import TAGS_MAX
from kerolox.protocol.bodies import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    QueryAssignmentBody,
    SubscriptionGroupConfig,
    decode_request,
    encode_body,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import ConsumerGroupHeader, EmptyHeader, UnregisterClientHeader
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.protocol.request_modes import MessageRequestMode
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices

ASSIGNED_MAX = 65_536
"""Queues in one answer to QUERY_ASSIGNMENT: some 100 bytes each."""

_log = logging.getLogger(__name__)

router: Router[Context] = Router()


@router.on(RequestCode.HEART_BEAT, EmptyHeader.decode)
async def heartbeat(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """A client's groups and subscriptions; the retry topic of each consumer group is made.

    One with a great many of them takes several turns; one that closes its connection between them
    is not there any more.
    """
    # Nearly all heartbeats repeat the one before; ten thousand idle clients send 330 a second.
    command = request.command
    parts = (command.body, command.language, command.version)
    fingerprint = broker.tables.clients.fingerprint(request.connection, *parts)
    if broker.tables.clients.knows(request.connection, fingerprint):
        return Reply()
    slices = TimeSlices()
    made_topics = False
    data = decode_request(request.body, HeartbeatData)
    client = Client(
        request.connection,
        data.client_id,
        command.language,
        command.version,
        broker.tables.clients.now_ms(),
    )
    for consumer in data.consumer_data_set:
        await slices.checkpoint()
        _check_subscriptions(consumer)
    for consumer in data.consumer_data_set:
        await slices.checkpoint()
        if request.connection.closed:
            return Reply()
        group = broker.tables.groups.find(consumer.group_name)
        if group is not None:
            made_topics |= _make_retry_topic(broker, consumer, group)
        notify = group is None or group.notify_consumer_ids_changed_enable
        if broker.tables.clients.group(consumer.group_name) is None:
            topics = [each.topic for each in consumer.subscription_data_set]
            broker.tables.meet(consumer.group_name, consumer.message_model, topics)
        joining = broker.tables.clients.joining(consumer, client, notify=notify)
        if len(consumer.subscription_data_set) > TOPICS_PER_STEP:
            async with broker.tables.clients.large_heartbeats:
                if not request.connection.closed:
                    await _take(joining, slices)
        else:
            await _take(joining, slices)
        online = broker.tables.clients.group(consumer.group_name)
        await broker.tables.filters.register(
            consumer.group_name, {} if online is None else online.subscriptions, slices
        )
        if request.connection.closed and broker.tables.clients.group(consumer.group_name) is None:
            broker.tables.filters.unregister(consumer.group_name)
    for producer in data.producer_data_set:
        await slices.checkpoint()
        if request.connection.closed:
            return Reply()
        broker.tables.clients.add_producer(producer.group_name, client)
    if made_topics:
        # Who asks for the members of a group looks for brokers by the route of its retry topic.
        await broker.peers.registration.now(timeout_seconds=ANSWER_SECONDS_MAX)
    if broker.tables.clients.fingerprint(request.connection, *parts) == fingerprint:
        broker.tables.clients.remember(client, fingerprint)
    return Reply()


async def _take(steps: Iterator[None], slices: TimeSlices) -> None:
    for _ in steps:
        await slices.checkpoint()


def _check_subscriptions(consumer: ConsumerData) -> None:
    """Subscriptions stay in memory, and messages are compared with them."""
    subscriptions = consumer.subscription_data_set
    if len(subscriptions) > TOPICS_PER_GROUP_MAX:
        raise system_error(
            f"group {consumer.group_name} subscribes to {len(subscriptions)} topics; at most "
            f"{TOPICS_PER_GROUP_MAX} are allowed, use several groups"
        )
    for subscription in subscriptions:
        if max(len(subscription.code_set), len(subscription.tags_set)) > TAGS_MAX:
            tags = max(len(subscription.code_set), len(subscription.tags_set))
            raise system_error(
                f"group {consumer.group_name} wants {tags} tags of "
                f"{subscription.topic}; at most {TAGS_MAX} are allowed, use * or an expression"
            )


def _make_retry_topic(
    broker: Context, consumer: ConsumerData, group: SubscriptionGroupConfig
) -> bool:
    """Have it with as many queues as the group wants, also where a broker that was here before gave
    it fewer. False: it was there with all of them, or there can be none."""
    topic = RETRY_PREFIX + consumer.group_name
    known_topics = broker.tables.topics.version
    try:
        broker.tables.topics.create_for_group(
            topic,
            group.retry_queue_nums,
            sys_flag=UNIT_SUBSCRIBED_FLAG if consumer.unit_mode else 0,
        )
    except MessageIllegalError as error:
        # Clients may name groups with up to 255 characters. Such a group consumes all the same;
        # what it gives back is refused.
        _log.warning("group %.160s can't give messages back: %s", consumer.group_name, error)
        return False
    return broker.tables.topics.version != known_topics


@router.on(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader.decode)
async def unregister(broker: Context, header: UnregisterClientHeader, request: Request) -> Reply:
    """A client leaves a producer group, a consumer group, or both."""
    if header.producer_group is not None:
        broker.tables.clients.remove_producer(header.producer_group, request.connection)
    if header.consumer_group is not None:
        group = broker.tables.groups.get(header.consumer_group)
        notify = group is None or group.notify_consumer_ids_changed_enable
        leaving = broker.tables.clients.leaving_group(
            header.consumer_group, request.connection, notify=notify
        )
        try:
            await _take(leaving, TimeSlices())
        finally:
            for _ in leaving:  # also when the broker stops
                pass
    return Reply()


@router.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader.decode)
async def consumer_list(broker: Context, header: ConsumerGroupHeader, request: Request) -> Reply:
    """The client ids of a group's members."""
    group = broker.tables.clients.group(header.consumer_group)
    if group is None:
        raise system_error(f"no consumer for this group, {header.consumer_group}")
    return Reply(body=encode_body({"consumerIdList": group.client_ids}))


@router.on(RequestCode.LOCK_BATCH_MQ, EmptyHeader.decode)
async def lock_queues(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Lock queues for an orderly consumer; the answer names those it holds."""
    data = decode_request(request.body, LockBatchBody)
    held = broker.tables.locks.lock(data.consumer_group, data.queues, data.client_id)
    # As maps, whose members stand as fastjson writes those of a queue: C encodes them.
    members = [{"brokerName": b, "queueId": q, "topic": t} for t, b, q in held]
    return Reply(body=encode_body({"lockOKMQSet": members}))


@router.on(RequestCode.UNLOCK_BATCH_MQ, EmptyHeader.decode)
async def unlock_queues(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Give up locks."""
    data = decode_request(request.body, LockBatchBody)
    broker.tables.locks.unlock(data.consumer_group, data.queues, data.client_id)
    return Reply()


@router.on(RequestCode.CHECK_CLIENT_CONFIG, EmptyHeader.decode)
async def check_client(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Can this subscription be served?"""
    if not request.body:
        return Reply()
    subscription = decode_request(request.body, CheckClientBody).subscription_data
    if subscription is None or subscription.is_tag_type:
        return Reply()
    if not broker.config.enable_property_filter:
        raise no_expression_filter(subscription.expression_type)
    text, kind = subscription.sub_string or "", subscription.expression_type or ""
    await broker.tables.filters.prepare(text, kind)
    try:
        compile_expression(text, kind)
    except Sql92Error as error:
        raise BrokerError(str(error), code=ResponseCode.SUBSCRIPTION_PARSE_FAILED) from None
    return Reply()


@router.on(RequestCode.QUERY_ASSIGNMENT, EmptyHeader.decode)
async def query_assignment(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """The queues that a member is to read, all by PULL or all by POP. Without
    ``messageQueueAssignments`` in the answer the client keeps what it has: the broker knows no such
    topic, group or member."""
    asked = decode_request(request.body, QueryAssignmentBody)
    strategy = STRATEGIES.get(asked.strategy_name or "AVG")
    if strategy is None:
        raise system_error(
            f"the strategy[{asked.strategy_name}] is not known here; a broker shares queues by "
            f"{' or '.join(STRATEGIES)}, and the client by others with clientRebalance=true"
        )
    mode = broker.tables.request_modes.get(asked.topic, asked.consumer_group)
    if asked.message_model == "BROADCASTING":
        queues = await broker.assignments.queues(asked.topic)
    else:
        share = mode.pop_share_queue_num if mode.mode == POP else None
        queues = await broker.assignments.share(
            asked.topic, asked.consumer_group, asked.client_id, strategy, pop_share=share
        )
    if queues is None:
        return Reply(body=b"{}")
    if len(queues) > ASSIGNED_MAX:
        raise system_error(f"{len(queues)} queues of {asked.topic} are too many for one answer")
    found = [
        {
            "messageQueue": {"brokerName": name, "queueId": number, "topic": topic},
            "mode": mode.mode,
        }
        for topic, name, number in queues
    ]
    return Reply(body=encode_body({"messageQueueAssignments": found}))


@router.on(RequestCode.SET_MESSAGE_REQUEST_MODE, EmptyHeader.decode, changes=True)
async def set_request_mode(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Say how a group consumes a topic whose members leave it to the broker."""
    wanted = decode_request(request.body, MessageRequestMode)
    if wanted.topic.startswith(RETRY_PREFIX):
        raise no_permission("retry topic is not allowed to set mode")
    if wanted.topic not in broker.tables.topics:
        raise BrokerError(f"topic[{wanted.topic}] not exist", code=ResponseCode.TOPIC_NOT_EXIST)
    if broker.tables.groups.find(wanted.consumer_group) is None:
        raise BrokerError(
            "subscription group does not exist", code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        )
    old = broker.tables.request_modes.get(wanted.topic, wanted.consumer_group)
    await broker.tables.request_modes.put(wanted)
    broker.audit.changed(request, "requestMode", wanted.consumer_group, old, wanted)
    return Reply()


@router.on(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, EmptyHeader.decode)
async def request_modes(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """How all groups consume of which that was said."""
    return Reply(body=encode_body(broker.tables.request_modes.table()))
