"""SendMessage, EndTransaction, RecallMessage (``SendMessageActivity``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from kerolox.broker.context import Context
from kerolox.broker.grpc import checks
from kerolox.broker.grpc.answers import (
    AnswerError,
    code_of,
    enum_text,
    error_of,
    ok,
    status_of,
    status_of_all,
)
from kerolox.broker.grpc.asking import Caller
from kerolox.broker.grpc.clients import HalfPlace, half_of
from kerolox.broker.grpc.elsewhere import OtherBrokers
from kerolox.broker.grpc.records import GZIP_START, stored_body, stored_properties, type_of
from kerolox.broker.grpc.routes import known_topic, types_of, unknown_topic
from kerolox.message import MessageId, PropertyKey, encode_properties, java_hash
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.duplicates import DUPLICATE_FIELD
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.headers import EndTransactionHeader, RecallMessageHeader, SendMessageHeader
from kerolox.protocol.names import AUTO_CREATE_TOPIC
from kerolox.protocol.recall_handles import RECALL_HANDLE_FIELD, RecallError, decode_handle
from kerolox.remoting.time_slices import TimeSlices

MESSAGES_MAX = 1_024
"""Of one call; the Rust client alone sends several."""

INFLATING_MAX = 2
"""Bodies of gzip that threads inflate at the same time, each to 16 MiB at the most; others wait as
they came."""

DEFAULT_QUEUES = 4
ANY_QUEUE = -1

OFFSET_FIELD = "queueOffset"
"""Only the answer to a message that is stored has it, whatever its code."""


async def send_message(
    broker: Context, caller: Caller, request: pb.SendMessageRequest, inflating: asyncio.Semaphore
) -> pb.SendMessageResponse:
    """Store messages of one topic, one after the other: one entry for each. ``inflating``: of the
    broker's INFLATING_MAX."""
    messages = request.messages
    if not messages:
        raise AnswerError(pb.MESSAGE_CORRUPTED, "no message to send")
    if len(messages) > MESSAGES_MAX:
        raise AnswerError(
            pb.MESSAGE_CORRUPTED, f"{len(messages)} messages; at most {MESSAGES_MAX} are taken"
        )
    if len({each.topic.name for each in messages}) > 1:
        raise AnswerError(pb.MESSAGE_CORRUPTED, "different message topic")
    name = checks.topic_name(messages[0].topic)
    topic = _topic(broker, name)
    taken = types_of(topic)
    body_bytes_max = broker.config.max_message_size
    slices = TimeSlices()
    for each in messages:
        await slices.checkpoint()
        checks.check_message(each, body_bytes_max=body_bytes_max, language=caller.language)
        kind = type_of(each)
        if kind not in taken:
            raise AnswerError(
                pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "TopicMessageType validate failed, the expected type is "
                f"{_types_text(taken)}, but actual type is {enum_text(pb.MessageType, kind)}",
            )
    response = pb.SendMessageResponse()
    for each in messages:
        await slices.checkpoint()
        if caller.closed:
            break  # What is appended stays; what is not would come as a surprise.
        response.entries.append(await _sent(broker, caller, topic, each, inflating))
    response.status.CopyFrom(status_of_all(entry.status for entry in response.entries))
    return response


def _topic(broker: Context, name: str) -> TopicConfig:
    try:
        return known_topic(broker, name)
    except AnswerError:
        # As RocketMQ's proxy: it has no type, so it can't be that of the message.
        raise AnswerError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"there is no topic {name}, so it takes no messages; make it first",
        ) from None


def _types_text(types: Iterable[int]) -> str:
    return ", ".join(enum_text(pb.MessageType, each) for each in types)


async def _sent(
    broker: Context,
    caller: Caller,
    topic: TopicConfig,
    message: pb.Message,
    inflating: asyncio.Semaphore,
) -> pb.SendResultEntry:
    system = message.system_properties
    name = topic.topic_name
    try:
        properties = stored_properties(
            message,
            name,
            now_ms=broker.now_ms(),
            host=caller.remote_address,
            delay_ms_max=broker.config.timer_max_delay_sec * 1000,
        )
        body, sys_flag = await _body(message, inflating)
        if system.message_type == pb.TRANSACTION:
            sys_flag |= MessageSysFlag.TRANSACTION_PREPARED
        header = SendMessageHeader(
            producer_group=name,
            topic=name,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES,
            queue_id=_queue(topic, system.message_group),
            sys_flag=sys_flag,
            born_timestamp=checks.milliseconds(system.born_timestamp) or broker.now_ms(),
            flag=0,
            properties=encode_properties(properties),
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE, header.encode(), body=body)
        answer = await caller.ask(command)
        if OFFSET_FIELD not in answer.ext_fields:
            raise error_of(answer)
    except AnswerError as error:
        return pb.SendResultEntry(status=error.status)
    return _entry(broker, message, answer)


async def _body(message: pb.Message, inflating: asyncio.Semaphore) -> tuple[bytes, int]:
    if message.system_properties.body_encoding == pb.GZIP and message.body.startswith(GZIP_START):
        # A body of megabytes takes long, and one of kilobytes may become one of megabytes.
        async with inflating:
            return await asyncio.to_thread(stored_body, message)
    return stored_body(message)


def _entry(broker: Context, message: pb.Message, answer: RemotingCommand) -> pb.SendResultEntry:
    system, fields = message.system_properties, answer.ext_fields
    is_stored = answer.code == ResponseCode.SUCCESS
    entry = pb.SendResultEntry(
        status=ok() if is_stored else status_of(code_of(answer.code), answer.remark or "stored"),
        message_id=system.message_id,
        offset=int(fields[OFFSET_FIELD]),
    )
    if system.message_type == pb.TRANSACTION:
        place = HalfPlace(_physical_offset(fields), entry.offset, broker.config.broker_name)
        entry.transaction_id = place.transaction_id
    if fields.get(DUPLICATE_FIELD):
        # Where KEYS count the message that is there may have another id.
        first = broker.writing.duplicates.first_at(_physical_offset(fields))
        if first is not None:
            entry.message_id = first.properties.get(PropertyKey.UNIQUE_KEY, system.message_id)
        if is_stored:
            entry.status.message = "duplicate: the topic had a message with this key"
    handle = fields.get(RECALL_HANDLE_FIELD)
    if handle:
        entry.recall_handle = handle
    return entry


def _physical_offset(fields: Mapping[str, str]) -> int:
    return MessageId.parse(fields["msgId"]).physical_offset


def _queue(topic: TopicConfig, message_group: str) -> int:
    """The queue of a message group; any where there is none."""
    if not message_group or topic.write_queue_nums <= 0:
        return ANY_QUEUE
    return consistent_hash(java_hash(message_group), topic.write_queue_nums)


def consistent_hash(key: int, buckets: int) -> int:
    """``Hashing.consistentHash`` of Guava: the one of so many buckets that a number belongs to."""
    state, candidate = key & 0xFFFFFFFFFFFFFFFF, 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        next_one = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if not 0 <= next_one < buckets:
            return candidate
        candidate = next_one


async def end_transaction(
    broker: Context, caller: Caller, request: pb.EndTransactionRequest, others: OtherBrokers
) -> pb.EndTransactionResponse:
    """Commit or roll back; who has not decided is asked again later. The client in Rust asks its
    access point, whichever broker has the half."""
    topic = checks.topic_name(request.topic)
    if not request.transaction_id.strip():
        raise AnswerError(pb.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    place = half_of(request.transaction_id)
    if place is None:
        raise AnswerError(pb.INVALID_TRANSACTION_ID, "transaction id is none that a broker gives")
    decided = {
        pb.COMMIT: MessageSysFlag.TRANSACTION_COMMIT,
        pb.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK,
    }.get(request.resolution)
    if decided is None:
        return pb.EndTransactionResponse(status=ok())
    header = EndTransactionHeader(
        producer_group=topic,
        tran_state_table_offset=place.half_offset,
        commit_log_offset=place.physical_offset,
        commit_or_rollback=decided,
        from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
        msg_id=request.message_id,
        transaction_id=request.message_id,
    )
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, header.encode())
    if place.broker_name in ("", broker.config.broker_name):
        half = broker.writing.transactions.half_at(place.physical_offset)
        if half is not None and request.message_id and half.unique_key != request.message_id:
            raise AnswerError(
                pb.INVALID_TRANSACTION_ID, "the transaction is of another message than the id names"
            )
        await caller.done(command)
        return pb.EndTransactionResponse(status=ok())
    elsewhere = await others.master(topic, place.broker_name)
    if elsewhere is None:
        raise AnswerError(
            pb.INVALID_TRANSACTION_ID,
            f"the transaction is at broker {place.broker_name}, of which no name server knows a "
            "master",
        )
    await others.done(caller, elsewhere, command)
    return pb.EndTransactionResponse(status=ok())


async def recall_message(
    broker: Context, caller: Caller, request: pb.RecallMessageRequest, others: OtherBrokers
) -> pb.RecallMessageResponse:
    """Take back a message that waits for its moment. Clients ask their access point, whichever
    broker has the message."""
    name = checks.topic_name(request.topic)
    elsewhere = await _recalled_at(request.recall_handle, name, others)
    topic = broker.tables.topics.get(name)
    if topic is None and elsewhere is None:
        raise unknown_topic(name)
    taken = types_of(topic)
    if pb.DELAY not in taken:
        raise AnswerError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the topic takes {_types_text(taken)}",
        )
    header = RecallMessageHeader(
        producer_group=name, topic=name, recall_handle=request.recall_handle
    )
    command = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header.encode())
    if elsewhere is None:
        answer = await caller.done(command)
    else:
        answer = await others.done(caller, elsewhere, command)
    return pb.RecallMessageResponse(status=ok(), message_id=answer.ext_fields.get("msgId", ""))


async def _recalled_at(handle: str, topic: str, others: OtherBrokers) -> str | None:
    """The address of another broker that has the message; None: this one is to answer."""
    try:
        found = decode_handle(handle)
    except RecallError:
        return None
    return await others.master(topic, found.broker_name) if found.topic == topic else None
