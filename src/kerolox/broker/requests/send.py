"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), and giving a message
back, CONSUMER_SEND_MSG_BACK (36).

Complete by itself: whatever the kernel declines, and everything when a request comes over the VIP
port, is answered here, by the rules of ``SendMessageProcessor``.
"""

from __future__ import annotations

import asyncio
import logging
import time

from kerolox.broker.context import Context
from kerolox.broker.errors import no_permission, system_busy, system_error
from kerolox.broker.hooks import GiveBackContext, run_hooks
from kerolox.broker.services.registration import ANSWER_SECONDS_MAX
from kerolox.broker.services.writer import NewRecord, Put, copy_of
from kerolox.broker.tables.topics import check_sendable, check_topic_name
from kerolox.errors import BrokerError, MessageIllegalError, RemoteProtocolError
from kerolox.kernel.status import PutMessageStatus
from kerolox.message import (
    MessageExt,
    MessageId,
    PropertyKey,
    decode_properties,
    encode_properties,
    is_true,
    unpack_host,
)
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import (
    BATCH_ITEMS_MAX,
    SEE_FAQ,
    TRANSACTION_MASK,
    MessageSysFlag,
    Perm,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.extensions.duplicates import (
    DUPLICATE_FIELD,
    DUPLICATES_FIELD,
    DuplicatePlace,
    encode_places,
)
from kerolox.protocol.headers import SendBackHeader, SendMessageHeader
from kerolox.protocol.names import (
    DLQ_PREFIX,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    TIMER_TOPIC,
    length_fault,
)
from kerolox.protocol.records import decode_batch, decode_record
from kerolox.remoting.router import Reply, Request, Router

DLQ_QUEUES = 1
FIRST_RETRY_LEVEL = 3
RECONSUME_TIMES_MAX = 0x7FFFFFFF
"""What a record can hold."""

BATCH_SLICE_ITEMS = 2_048
"""Messages of a batch that are read before other connections run."""

VERSION_3_4_9 = 121
"""From this version on the client says how often a message may be retried."""

UNIT_FLAG, UNIT_SUBSCRIBED_FLAG = 1, 2

_log = logging.getLogger(__name__)

router: Router[Context] = Router()


def refuse_without_buffers(broker: Context) -> None:
    """``rejectRequest``: where no buffer of the transient store pool is free, a BrokerError of code
    SYSTEM_BUSY, which lets a producer try another broker.
    """
    if broker.store.transient_buffers == 0:
        raise _busy()


def fields_of_sends(broker: Context) -> dict[str, object]:
    """What RocketMQ adds to every answer of a send, the refusals included."""
    return {
        PropertyKey.MSG_REGION: broker.config.region_id,
        PropertyKey.TRACE_ON: broker.config.trace_on,
    }


def refuse_busy(put: Put) -> None:
    """``rejectRequest``, the other half: writes wait for a file for too long
    (osPageCacheBusyTimeOutMills).
    """
    if put.status == PutMessageStatus.OS_PAGECACHE_BUSY:
        raise _busy()


def _busy() -> BrokerError:
    return system_busy("[REJECTREQUEST]system busy, start flow control for a while")


@router.on(RequestCode.SEND_BATCH_MESSAGE, SendMessageHeader.decode_short)
@router.on(RequestCode.SEND_MESSAGE_V2, SendMessageHeader.decode_short)
@router.on(RequestCode.SEND_MESSAGE, SendMessageHeader.decode)
async def send_message(broker: Context, header: SendMessageHeader, request: Request) -> Reply:
    """Store one message, or a batch when the header says so, whichever the code is. V2 and batch
    have one-letter names in the header."""
    refuse_without_buffers(broker)
    fields = fields_of_sends(broker)
    more: dict[str, str] = {}
    try:
        topic = await checked_topic(broker, header, request)
        queue_id = chosen_queue(topic, header.queue_id)
        if header.batch:
            put = await _store_batch(broker, header, request, topic, queue_id)
        else:
            put, more = await _store_one(broker, header, request, topic, queue_id)
        refuse_busy(put)
        code = code_of(broker, put)
    except BrokerError as error:
        return Reply(error.code, error.remark, fields)
    return Reply(code, None, {**_stored_at(broker, put, queue_id), **more, **fields})


def _stored_at(broker: Context, put: Put, queue_id: int) -> dict[str, object]:
    """Where the messages of a send are. Those that the topic had are where their first ones are:
    ``duplicate`` says so, of a batch with which messages, and the queue and offset of each. The
    queue and offset of the answer are those of the first message that was stored now."""
    identifiers = [
        MessageId(*unpack_host(broker.identity.store_host), offset).text
        for offset in put.physical_offsets
    ]
    done: dict[str, object] = {"queueId": queue_id, "queueOffset": put.queue_offset}
    known = [(number, first) for number, first in enumerate(put.firsts) if first is not None]
    for number, first in known:
        identifiers[number] = first.message_id
    if put.is_duplicate:
        done = {"queueId": known[0][1].queue_id, "queueOffset": known[0][1].queue_offset}
    if known:
        done[DUPLICATE_FIELD] = str(put.is_duplicate).lower()
    if len(put.firsts) > 1:
        places = (
            DuplicatePlace(number, each.queue_id, each.queue_offset) for number, each in known
        )
        done[DUPLICATES_FIELD] = encode_places(places)
    return {"msgId": ",".join(identifiers), **done}


async def checked_topic(
    broker: Context, header: SendMessageHeader, request: Request
) -> TopicConfig:
    """``preSend`` and ``msgCheck``; the topic is made when it may be."""
    config = broker.config
    if broker.now_ms() < config.start_accept_send_request_time_stamp:
        since = time.strftime(
            "%Y-%m-%d %H:%M:%S", time.localtime(config.start_accept_send_request_time_stamp / 1000)
        )
        raise system_error(f"broker unable to service, until {since}")
    known = broker.tables.topics.get(header.topic)
    if not config.broker_permission & Perm.WRITE and known is not None and known.order:
        raise no_permission(f"the broker[{config.broker_ip1}] sending message is forbidden")
    check_topic_name(header.topic)
    check_sendable(header.topic)
    topic = known or _created_topic(broker, header, request)
    if not broker.tables.topics.is_durable(header.topic):
        await _persisted(broker, header.topic, is_new=known is None)
    if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
        raise system_error(
            f"request queueId[{header.queue_id}] is illegal, {topic} "
            f"Producer: {request.connection.remote_address}"
        )
    return topic


def _created_topic(broker: Context, header: SendMessageHeader, request: Request) -> TopicConfig:
    is_retry = header.topic.startswith(RETRY_PREFIX)
    sys_flag = 0
    if header.unit_mode:
        sys_flag = UNIT_SUBSCRIBED_FLAG if is_retry else UNIT_FLAG
    topic = broker.tables.topics.create_for_send(
        header.topic, header.default_topic, header.default_topic_queue_nums, sys_flag
    )
    if topic is None and is_retry:
        topic = broker.tables.topics.create_for_group(header.topic, 1, sys_flag=sys_flag)
    if topic is None:
        raise _no_topic(header.topic)
    broker.audit.changed(request, "topic", header.topic, None, topic, automatic=True)
    return topic


async def _persisted(broker: Context, topic: str, *, is_new: bool) -> None:
    # Acknowledged messages of a topic that a crash forgets could not be read. That goes for all
    # who send to it now, not only for the one whose message made it.
    await broker.tables.topics.make_durable(topic)
    if is_new:
        # Whoever hears of the topic through this answer finds its route.
        await broker.peers.registration.now(timeout_seconds=ANSWER_SECONDS_MAX)
    if topic not in broker.tables.topics:
        raise _no_topic(topic)


def _no_topic(topic: str) -> BrokerError:
    return BrokerError(
        f"topic[{topic}] not exist, apply first please!{SEE_FAQ}",
        code=ResponseCode.TOPIC_NOT_EXIST,
    )


def chosen_queue(topic: TopicConfig, queue_id: int) -> int:
    """The queue that the producer wants; any when it leaves the choice to us."""
    if queue_id >= 0:
        return queue_id
    if topic.write_queue_nums <= 0:
        raise system_error(f"the topic[{topic.topic_name}] has no queue to write to")
    return _any_of(topic.write_queue_nums)


def _any_of(queues: int) -> int:
    import random

    return random.randrange(queues)


async def _store_one(
    broker: Context, header: SendMessageHeader, request: Request, topic: TopicConfig, queue_id: int
) -> tuple[Put, dict[str, str]]:
    """What became of it, and what the answer says besides. Of a half message the
    ``transactionId``, which clients of 5.x need: its UNIQ_KEY, unless that is longer than an id may
    be. Of a message for a moment the ``recallHandle``."""
    record = _new_record(broker, header, request, topic, queue_id)
    dead_letters = _dead_letter_topic(broker, header, request)
    if dead_letters is not None:
        await broker.tables.topics.make_durable(dead_letters)
        record.topic, record.queue_id = dead_letters, _any_of(DLQ_QUEUES)
        # RocketMQ 4.9.8 forgets to, and has a dead letter wait as its next retry would have.
        if PropertyKey.DELAY in record.properties:
            record.properties[PropertyKey.DELAY] = "0"
    stored = {name: value for name, value in record.properties.items() if name != PropertyKey.WAIT}
    record.property_text = encode_properties(stored)
    if len(record.property_text) > PROPERTIES_BYTES_MAX:
        return Put(PutMessageStatus.MESSAGE_ILLEGAL), {}
    is_half = is_true(record.properties.get(PropertyKey.TRANSACTION_PREPARED, ""))
    # Clients before 4.6.1 leave the mark on messages of transactions that they give back by a
    # send; RocketMQ 4.9.8 takes these for halves and loses them.
    if is_half and not (record.reconsume_times > 0 and record.delay_level > 0):
        _check_transactions(broker)
        key = record.properties.get(PropertyKey.UNIQUE_KEY, "")
        is_told = bool(key) and not length_fault("", key)
        put = await broker.writing.transactions.prepare(record)
        return put, {"transactionId": key} if is_told else {}
    record.is_once = dead_letters is None
    put = await broker.writing.writer.put(record)
    properties = record.properties if record.topic == TIMER_TOPIC else None
    if put.firsts and put.firsts[0] is not None:
        properties = put.firsts[0].properties
    if properties is None or request.command.code == RequestCode.SEND_BATCH_MESSAGE:
        return put, {}
    from kerolox.protocol.recall_handles import RECALL_HANDLE_FIELD
    from kerolox.store.timer.recall import handle_of

    handle = handle_of(properties, broker.config.broker_name)
    if handle is None or length_fault("", handle.unique_key):
        return put, {}
    return put, {RECALL_HANDLE_FIELD: handle.encode()}


def _check_transactions(broker: Context) -> None:
    if broker.config.reject_transaction_message:
        raise no_permission(
            f"the broker[{broker.config.broker_ip1}] sending transaction message is forbidden"
        )


async def _store_batch(
    broker: Context, header: SendMessageHeader, request: Request, topic: TopicConfig, queue_id: int
) -> Put:
    if len(request.body) > broker.config.max_message_size:
        return Put(PutMessageStatus.MESSAGE_ILLEGAL)
    record = _new_record(broker, header, request, topic, queue_id)
    if _is_half_batch(record):
        _check_transactions(broker)
        await broker.writing.transactions.make_half(record)
    else:
        record.is_once = True
    common = encode_properties(record.properties).encode()
    items: list[tuple[int, bytes, bytes]] = []
    position = 0
    try:
        while position < len(request.body):
            some, position = decode_batch(
                request.body, common, position, count_max=BATCH_SLICE_ITEMS
            )
            items += some
            if len(some) == BATCH_SLICE_ITEMS:
                await asyncio.sleep(0)
    except RemoteProtocolError as error:
        raise system_error(f"the batch is malformed: {error}") from None
    if not items:
        raise system_error("the batch is empty")
    if len(items) > BATCH_ITEMS_MAX:
        raise system_error(f"a batch of {len(items)} messages; at most {BATCH_ITEMS_MAX}")
    if any(len(text) > PROPERTIES_BYTES_MAX for _flag, _body, text in items):
        return Put(PutMessageStatus.MESSAGE_ILLEGAL)
    return await broker.writing.writer.put_batch(record, items)


def _is_half_batch(record: NewRecord) -> bool:
    """All its messages are halves, which only Kerolox takes: RocketMQ refuses such a sysFlag."""
    return (
        record.sys_flag & TRANSACTION_MASK == MessageSysFlag.TRANSACTION_PREPARED
        and is_true(record.properties.get(PropertyKey.TRANSACTION_PREPARED, ""))
        and not record.reconsume_times
    )


def _new_record(
    broker: Context, header: SendMessageHeader, request: Request, topic: TopicConfig, queue_id: int
) -> NewRecord:
    properties = decode_properties(header.properties)
    properties[PropertyKey.CLUSTER] = broker.config.broker_cluster_name
    multiple = topic.topic_filter_type == "MULTI_TAG"
    return NewRecord(
        topic=header.topic,
        queue_id=queue_id,
        body=request.body,
        properties=properties,
        born_timestamp=header.born_timestamp,
        born_host=request.born_host,
        store_host=broker.identity.store_host,
        flag=header.flag,
        sys_flag=header.sys_flag | (MessageSysFlag.MULTI_TAGS if multiple else 0),
        reconsume_times=header.reconsume_times,
    )


def _dead_letter_topic(broker: Context, header: SendMessageHeader, request: Request) -> str | None:
    """``handleRetryAndDLQ``: where a message to a retry topic goes that was retried too often."""
    if not header.topic.startswith(RETRY_PREFIX):
        return None
    name = header.topic.removeprefix(RETRY_PREFIX)
    group = _known_group(broker, name)
    if header.reconsume_times < _retries_max(group, header, request):
        return None
    return broker.tables.topics.create_for_group(DLQ_PREFIX + name, DLQ_QUEUES).topic_name


def _retries_max(
    group: SubscriptionGroupConfig, header: SendMessageHeader | SendBackHeader, request: Request
) -> int:
    """How often a message may be retried: what the client says, or else the group."""
    if request.command.version >= VERSION_3_4_9 and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return group.retry_max_times


@router.on(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader.decode)
async def send_back(broker: Context, header: SendBackHeader, request: Request) -> Reply:
    """Store a message again that a consumer could not handle: later into the group's retry topic,
    or, after too many times, into its dead letters."""
    refuse_without_buffers(broker)
    if broker.pull_hooks and (header.origin_msg_id or "").strip():
        _run_hooks(broker, header, request)
    group = _known_group(broker, header.group)
    config = broker.config
    if not config.broker_permission & Perm.WRITE:
        raise no_permission(f"the broker[{config.broker_ip1}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        _drop(broker, group)
        return Reply()
    known_topics = broker.tables.topics.version
    topic = _retry_topic(broker, header, group)
    if not topic.perm & Perm.WRITE:
        raise no_permission(f"the topic[{topic.topic_name}] sending message is forbidden")
    message = _look_up(broker, header.offset)
    record = _record_given_back(message)
    retries_max = _retries_max(group, header, request)
    if message.reconsume_times >= retries_max or header.delay_level < 0:
        dead = broker.tables.topics.create_for_group(DLQ_PREFIX + header.group, DLQ_QUEUES)
        record.topic, record.queue_id = dead.topic_name, _any_of(DLQ_QUEUES)
        record.properties[PropertyKey.DELAY] = "0"
    else:
        queues = max(min(group.retry_queue_nums, topic.read_queue_nums), 1)
        record.topic, record.queue_id = topic.topic_name, _any_of(queues)
        level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        record.properties[PropertyKey.DELAY] = str(level)
    has_new_topic = broker.tables.topics.version != known_topics
    await broker.tables.topics.persist()
    put = await broker.writing.writer.put(record)
    refuse_busy(put)
    if put.status != PutMessageStatus.PUT_OK:
        raise system_error(put.status.name)
    broker.broker_stats.note_sent_back(header.group, record.properties[PropertyKey.RETRY_TOPIC])
    if has_new_topic:
        await broker.peers.registration.now(timeout_seconds=ANSWER_SECONDS_MAX)
    return Reply()


def _drop(broker: Context, group: SubscriptionGroupConfig) -> None:
    """``retryQueueNums`` is 0: as RocketMQ, answer as if the message were stored."""
    if broker.broker_stats.note_dropped(group.group_name) == 1:
        _log.warning(
            "group %s has no retry queues: a message that it gave back is dropped, and so are "
            "those to come, without a retry or a dead letter; kerolox group update %s "
            "--retry-queues 1 ends that",
            group.group_name,
            group.group_name,
        )


def _retry_topic(
    broker: Context, header: SendBackHeader, group: SubscriptionGroupConfig
) -> TopicConfig:
    sys_flag = UNIT_SUBSCRIBED_FLAG if header.unit_mode else 0
    try:
        return broker.tables.topics.create_for_group(
            RETRY_PREFIX + header.group, group.retry_queue_nums, sys_flag=sys_flag
        )
    except MessageIllegalError as error:
        raise system_error(f"MESSAGE_ILLEGAL: {error.remark}") from None


def _run_hooks(broker: Context, header: SendBackHeader, request: Request) -> None:
    context = GiveBackContext(
        header.group,
        header.origin_topic or "",
        header.origin_msg_id or "",
        request.connection.remote_address,
        request.command.ext_fields.get("Owner", ""),
    )
    run_hooks(broker.pull_hooks, lambda hook: hook.given_back(context))


def _look_up(broker: Context, offset: int) -> MessageExt:
    data = broker.store.lookup(offset) if offset >= 0 else None
    if data is None:
        raise system_error(f"look message by offset failed, {offset}")
    return decode_record(data, inflate=False)[0]


def _record_given_back(message: MessageExt) -> NewRecord:
    properties = dict(message.properties)
    properties.setdefault(PropertyKey.RETRY_TOPIC, message.topic)
    properties[PropertyKey.WAIT] = "false"
    properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_message_id)
    record = copy_of(message, message.topic, 0, properties)
    record.reconsume_times = min(message.reconsume_times + 1, RECONSUME_TIMES_MAX)
    return record


def _known_group(broker: Context, name: str) -> SubscriptionGroupConfig:
    group = broker.tables.groups.find(name)
    if group is None:
        raise BrokerError(
            f"subscription group not exist, {name} {SEE_FAQ}",
            code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
    return group


def code_of(broker: Context, put: Put) -> ResponseCode:
    """The response code of a put that stored, a BrokerError of one that did not; the texts are
    those of ``handlePutMessageResult``.
    """
    status = put.status
    if status == PutMessageStatus.PUT_OK:
        return ResponseCode.SUCCESS
    if put.refused is not None:
        raise BrokerError(put.refused.text, code=put.refused.code)
    if status == PutMessageStatus.FLUSH_DISK_TIMEOUT:
        return ResponseCode.FLUSH_DISK_TIMEOUT
    if status == PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
        return ResponseCode.FLUSH_SLAVE_TIMEOUT
    if status == PutMessageStatus.SLAVE_NOT_AVAILABLE:
        return ResponseCode.SLAVE_NOT_AVAILABLE
    if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
        raise BrokerError(
            "the message is illegal, maybe msg body or properties length not matched. msg body "
            f"length limit {broker.config.max_message_size}B, msg properties length limit 32KB.",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )
    if status == PutMessageStatus.SERVICE_NOT_AVAILABLE:
        raise BrokerError(
            "service not available now. It may be caused by one of the following reasons: the "
            f"broker's disk is full [{_disk_use(broker)}], messages are put to the slave, message "
            f"store has been shut down, etc.{_trouble(broker)}",
            code=ResponseCode.SERVICE_NOT_AVAILABLE,
        )
    if status == PutMessageStatus.CREATE_MAPEDFILE_FAILED:
        raise system_error(
            f"create mapped file failed, server is busy or broken.{_trouble(broker)}"
        )
    if status == PutMessageStatus.OS_PAGECACHE_BUSY:
        raise system_error("[PC_SYNCHRONIZED]broker busy, start flow control for a while")
    if status == PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
        raise system_error(
            "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq "
            "consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
        )
    raise system_error("UNKNOWN_ERROR")


def _trouble(broker: Context) -> str:
    """What the store, or the controller, says beyond RocketMQ's words."""
    trouble = broker.writing.gate.fenced or broker.store.trouble
    return f" {trouble}" if trouble else ""


def _disk_use(broker: Context) -> str:
    queues = broker.writing.cleaner.queue_ratio()
    used = {"CL": min(broker.writing.cleaner.log_ratios().values()), "CQ": queues, "INDEX": queues}
    return " ".join(f"{name}: {ratio:5.2f}" for name, ratio in used.items())
