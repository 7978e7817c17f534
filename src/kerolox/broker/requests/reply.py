"""Replies: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325), as ``ReplyMessageProcessor``.

A request that waits for a reply is a plain message; only its reply is special. It names the client
that asked (REPLY_TO_CLIENT), and the broker hands it to that producer's connection
(PUSH_REPLY_MESSAGE_TO_CLIENT, 326) before it answers who replied. It is stored as well, for the
record, unless ``storeReplyMessageEnable=false``.
"""

from __future__ import annotations

import logging

from kerolox.broker.context import Context
from kerolox.broker.requests.send import checked_topic, chosen_queue, fields_of_sends
from kerolox.broker.services import replies
from kerolox.broker.services.writer import NewRecord, Put
from kerolox.errors import BrokerError, RemotingError
from kerolox.message import (
    MessageId,
    PropertyKey,
    decode_properties,
    encode_properties,
    unpack_host,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.compression import COMPRESSION_MASK
from kerolox.protocol.headers import SendMessageHeader
from kerolox.remoting.router import Reply, Request, Router

NO_MESSAGE_ID = "0"
"""Stands where an id would, when nothing was stored: clients read an id from every answer."""

_log = logging.getLogger(__name__)

router: Router[Context] = Router()


@router.on(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageHeader.decode_short)
@router.on(RequestCode.SEND_REPLY_MESSAGE, SendMessageHeader.decode)
async def send_reply(broker: Context, header: SendMessageHeader, request: Request) -> Reply | None:
    """Hand a reply to the client that waits for it, and store it. V2 has one-letter names in the
    header."""
    fields = fields_of_sends(broker)
    try:
        topic = await checked_topic(broker, header, request)
        queue_id = chosen_queue(topic, header.queue_id)
        broker.replies.start(len(request.body))
    except BrokerError as error:
        return Reply(error.code, error.remark, fields)
    broker.background.run(_bring(broker, header, request, queue_id, fields))
    return None


async def _bring(
    broker: Context,
    header: SendMessageHeader,
    request: Request,
    queue_id: int,
    fields: dict[str, object],
) -> None:
    """Do it, and answer."""
    try:
        reply = await _brought(broker, header, request, queue_id, fields)
    except BrokerError as error:
        reply = Reply(error.code, error.remark, fields)
    finally:
        broker.replies.end(len(request.body))
    if not request.command.is_oneway:
        request.answer(reply)


async def _brought(
    broker: Context,
    header: SendMessageHeader,
    request: Request,
    queue_id: int,
    fields: dict[str, object],
) -> Reply:
    failure = await _push(broker, header, request)
    if failure is None:
        fields |= {"msgId": NO_MESSAGE_ID, "queueId": queue_id, "queueOffset": 0}
    else:
        _log.warning("reply from %s: %s", request.connection.remote_address, failure)
    # RocketMQ answers how the push went; whether the reply was stored too changes the ids only.
    if broker.config.store_reply_message_enable:
        put = await _stored(broker, header, request, queue_id)
        if put.is_stored:
            host = unpack_host(broker.identity.store_host)
            stored_id = MessageId(*host, put.physical_offsets[0]).text
            fields |= {"msgId": stored_id, "queueId": queue_id, "queueOffset": put.queue_offset}
        else:
            _log.warning("a reply in topic %s was not stored: %s", header.topic, put.status.name)
    if failure is not None:
        return Reply(ResponseCode.SYSTEM_ERROR, failure, fields)
    return Reply(ResponseCode.SUCCESS, None, fields)


async def _push(broker: Context, header: SendMessageHeader, request: Request) -> str | None:
    """Bring the reply to the client that asked; why that failed, or None."""
    properties = decode_properties(header.properties)
    asked_by = properties.get(PropertyKey.REPLY_TO_CLIENT)
    if asked_by is None:
        return f"reply message properties[{PropertyKey.REPLY_TO_CLIENT}] is null"
    client = broker.tables.clients.producer(asked_by)
    if client is None:
        return f"push reply message fail, channel of <{asked_by}> not found."
    now_ms = broker.now_ms()
    properties[PropertyKey.PUSH_REPLY_TIME] = str(now_ms)
    store_host, store_port = unpack_host(broker.identity.store_host)
    born_host, born_port = request.connection.peer
    fields = {
        "producerGroup": header.producer_group,
        "topic": header.topic,
        "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": header.default_topic_queue_nums,
        "queueId": header.queue_id,
        "sysFlag": header.sys_flag,
        "bornTimestamp": header.born_timestamp,
        "flag": header.flag,
        "properties": encode_properties(properties),
        "reconsumeTimes": header.reconsume_times,
        "unitMode": header.unit_mode,
        "bornHost": f"{born_host}:{born_port}",
        "storeHost": f"{store_host}:{store_port}",
        "storeTimestamp": now_ms,
    }
    push = RemotingCommand.request(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body=request.body
    )
    try:
        answer = await client.connection.request(push, timeout_seconds=replies.PUSH_SECONDS_MAX)
    except RemotingError as error:
        _log.warning("push of a reply to %s failed: %s", asked_by, error)
        return f"push reply message to {asked_by}fail."
    if answer.code != ResponseCode.SUCCESS:
        _log.warning("client %s refused a reply: %s", asked_by, answer.remark)
        return f"push reply message to {asked_by}fail."
    return None


async def _stored(
    broker: Context, header: SendMessageHeader, request: Request, queue_id: int
) -> Put:
    return await broker.writing.writer.put(
        NewRecord(
            topic=header.topic,
            queue_id=queue_id,
            body=request.body,
            properties=decode_properties(header.properties),
            property_text=header.properties,
            born_timestamp=header.born_timestamp,
            born_host=request.born_host,
            store_host=broker.identity.store_host,
            flag=header.flag,
            # RocketMQ stores no flags at all, so that nobody can read a compressed reply.
            sys_flag=header.sys_flag & COMPRESSION_MASK,
            reconsume_times=header.reconsume_times,
        )
    )
