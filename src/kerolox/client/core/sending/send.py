"""Send requests and what their responses mean.

``SendRequest`` of one message carries its properties as text in the header (code 310); a batch
carries them per message in the body (code 320). The four codes 0, 10, 11, 12 all mean that the
message is stored; they are the four statuses of a :class:`SendResult`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.sending.request_reply import ReplyMessage
from kerolox.client.core.validate import check_message, property_text, with_properties
from kerolox.errors import BrokerError, MessageRejectedError, RemoteProtocolError
from kerolox.message import (
    DEAD_LETTER_REASON,
    Message,
    MessageExt,
    MessageQueue,
    PropertyKey,
    decode_properties,
    encode_properties,
)
from kerolox.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.compression import COMPRESSION_MASK, CompressionType, compress_body
from kerolox.protocol.extensions.duplicates import (
    DUPLICATE_FIELD,
    DUPLICATES_FIELD,
    DuplicatePlace,
    decode_places,
)
from kerolox.protocol.names import DEFAULT_REGION, PROPERTIES_BYTES_MAX, RETRY_PREFIX
from kerolox.protocol.recall_handles import RECALL_HANDLE_FIELD
from kerolox.protocol.records import encode_batch

_BATCH_ITEM_BYTES = 22 + 96
"""Of a message in a batch, at most, beside its body and its user's texts: lengths, and the
properties that each has, names included (an id of IPv6 among them)."""

_NOT_SENT_AGAIN = (
    PropertyKey.MIN_OFFSET,
    PropertyKey.MAX_OFFSET,
    PropertyKey.CONSUME_START_TIME,
    # A broker would take the copy for the half of a new transaction.
    PropertyKey.TRANSACTION_PREPARED,
    PropertyKey.DELAY,
    # It was why an earlier copy became a dead letter.
    DEAD_LETTER_REASON,
    # A pop that delivers the copy would leave it there, and no broker takes it then.
    PropertyKey.POP_RECEIPT,
)
"""Properties of a message that its copy in the retry topic does not have."""


class SendStatus(Enum):
    """The message is stored; how far it was secured when the broker answered."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"

    def __str__(self) -> str:
        return self.name


STATUS_BY_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Codes of answers to a send that was stored, however safely; all others mean that it was not."""


class SendResult(NamedTuple):
    """Where a message was stored.

    ``message_id`` is the producer's id (UNIQ_KEY), ``offset_message_id`` the broker's; of a batch
    both are comma-joined lists and ``queue_offset`` is that of its first message.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    region: str = DEFAULT_REGION
    is_traced: bool = True
    """False: the broker wants no traces (its ``traceOn`` is off)."""

    @property
    def is_ok(self) -> bool:
        """Stored as securely as the broker is set to."""
        return self.status is SendStatus.SEND_OK

    @property
    def recall_handle(self) -> str:
        """Of a message that waits for its moment: what :meth:`Producer.recall` takes it back by;
        else empty."""
        return ""

    @property
    def is_duplicate(self) -> bool:
        """It was not stored again: its topic had a message with its key within its window
        (``dedup.window.ms``), and this says where that is. Of a batch: all of it."""
        return False

    @property
    def duplicates(self) -> tuple[DuplicatePlace, ...]:
        """Of a batch: which of its messages were not stored again, and where the first ones are."""
        return ()


class DetailedSendResult(SendResult):
    """One of which the broker said more: its message waits for its moment, or was there before."""

    _handle: str = ""
    _is_duplicate: bool = False
    _places: tuple[DuplicatePlace, ...] = ()

    @classmethod
    def of(cls, result: SendResult, fields: Mapping[str, str]) -> SendResult:
        """The result with what the broker's answer says besides; the same where it says nothing.
        ValueError: a part is malformed."""
        handle, duplicate = fields.get(RECALL_HANDLE_FIELD, ""), fields.get(DUPLICATE_FIELD)
        if not handle and duplicate is None:
            return result
        made = cls(*result)
        made._handle, made._is_duplicate = handle, duplicate == "true"
        made._places = tuple(decode_places(fields.get(DUPLICATES_FIELD, "")))
        return made

    @property
    def recall_handle(self) -> str:
        """See :class:`SendResult`."""
        return self._handle

    @property
    def is_duplicate(self) -> bool:
        """See :class:`SendResult`."""
        return self._is_duplicate

    @property
    def duplicates(self) -> tuple[DuplicatePlace, ...]:
        """See :class:`SendResult`."""
        return self._places

    def at(self, place: DuplicatePlace) -> SendResult:
        """That of one message of a batch which was not stored again."""
        queue = self.queue._replace(queue_id=place.queue_id)
        made = type(self)(*self)._replace(queue=queue, queue_offset=place.queue_offset)
        made._is_duplicate = True
        return made


class OutgoingMessage(NamedTuple):
    """A message, or a batch, ready to be sent to any queue of its topic."""

    topic: str
    body: bytes
    properties: str
    flag: int
    sys_flag: int
    message_id: str
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_reply: bool = False


class SendHeader(NamedTuple):
    """The header fields that all sends of one producer share."""

    group: str
    create_topic_key: str
    default_topic_queue_nums: int
    unit_mode: bool = False

    def request(
        self, message: OutgoingMessage, queue_id: int, now_ms: int, *, oneway: bool = False
    ) -> RemotingCommand:
        """The request that puts ``message`` into queue ``queue_id`` (the names are V2's)."""
        fields = {
            "a": self.group,
            "b": message.topic,
            "c": self.create_topic_key,
            "d": str(self.default_topic_queue_nums),
            "e": str(queue_id),
            "f": str(message.sys_flag),
            "g": str(now_ms),
            "h": str(message.flag),
            "i": message.properties,
            "j": str(message.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if message.is_batch else "false",
        }
        if message.max_reconsume_times is not None:
            fields["l"] = str(message.max_reconsume_times)
        code = RequestCode.SEND_MESSAGE_V2
        if message.is_batch:
            code = RequestCode.SEND_BATCH_MESSAGE
        elif message.is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        return RemotingCommand(code, fields, message.body, flag=FLAG_ONEWAY if oneway else 0)


def _property_text(message: Message, message_id: str) -> str:
    properties = message.wire_properties()
    properties[PropertyKey.UNIQUE_KEY] = message_id
    text = property_text(properties)
    # Two checks, since counting bytes is needed only for texts that come near the limit.
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise MessageRejectedError(
            f"the properties have {len(text.encode())} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    return text


def outgoing_message(
    message: Message,
    message_id: str,
    *,
    compress_bytes_min: int,
    compress_level: int,
    compress_type: CompressionType = CompressionType.ZLIB,
) -> OutgoingMessage:
    """Prepare one message; a body of ``compress_bytes_min`` bytes or more is compressed.
    MessageRejectedError: the properties are too long, or would be read as others.
    """
    body, sys_flag = message.body, 0
    if len(body) >= compress_bytes_min:
        body = compress_body(body, compress_type, level=compress_level)
        sys_flag = compress_type.value
    text = _property_text(message, message_id)
    is_reply = isinstance(message, ReplyMessage)
    return OutgoingMessage(
        message.topic, body, text, message.flag, sys_flag, message_id, is_reply=is_reply
    )


def in_namespace(message: OutgoingMessage, namespace: str) -> OutgoingMessage:
    """The message under its topic's name in a namespace, marked as an instance's.

    The topic of replies is the cluster's, so that it has one name in all namespaces.
    """
    return message._replace(
        topic=message.topic if message.is_reply else with_namespace(namespace, message.topic),
        properties=with_properties(message.properties, {PropertyKey.INSTANCE_ID: namespace}),
    )


def request_message(
    outgoing: OutgoingMessage, *, correlation_id: str, client_id: str, ttl_ms: int
) -> OutgoingMessage:
    """A message as a request of a client that waits for so long."""
    marks = {
        PropertyKey.CORRELATION_ID: correlation_id,
        PropertyKey.REPLY_TO_CLIENT: client_id,
        PropertyKey.TTL: str(ttl_ms),
    }
    return outgoing._replace(properties=with_properties(outgoing.properties, marks))


def outgoing_batch(messages: Sequence[Message], message_ids: Sequence[str]) -> OutgoingMessage:
    """Prepare messages to travel in one request; batches are never compressed.
    MessageRejectedError: the properties of one are too long, or would be read as others.
    """
    first = messages[0]
    body = encode_batch(
        (message.flag, message.body, _property_text(message, message_id).encode())
        for message, message_id in zip(messages, message_ids, strict=True)
    )
    wait = encode_properties({PropertyKey.WAIT: "true" if first.wait_store_ok else "false"})
    return OutgoingMessage(first.topic, body, wait, 0, 0, ",".join(message_ids), is_batch=True)


def split_batches(
    messages: Iterable[Message], *, bytes_max: int = 1024 * 1024, count_max: int = 1000
) -> Iterator[list[Message]]:
    """Cut messages into lists that fit one batch request each.

    Args:
        messages: of one topic.
        bytes_max: most bytes that a list has as a batch; a single larger message goes alone.
        count_max: most messages of a list.

    Raises:
        MessageRejectedError: one is no message, or has a part of a wrong type.
    """
    batch: list[Message] = []
    size = 0
    for message in messages:
        check_message(message)
        message_size = _BATCH_ITEM_BYTES + len(message.body) + _text_bytes(message)
        if batch and (size + message_size > bytes_max or len(batch) >= count_max):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message_size
    if batch:
        yield batch


def _text_bytes(message: Message) -> int:
    """At most so many bytes have the properties of a message that are not the same in all."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    texts = [keys, message.tags]
    for name, value in message.properties.items():
        texts += name, str(value)
    return len("".join(texts).encode("utf-8", "replace")) + 2 * len(message.properties)


def retry_message(
    message: MessageExt, group: str, *, max_reconsume_times: int, topic: str = ""
) -> OutgoingMessage:
    """The copy that goes to the group's retry topic when the broker refuses a send-back.

    Its delay grows with each attempt: level 3 plus the attempts so far. ``topic`` is the message's
    as brokers know it, if that is another one. Errors: see :func:`passed_on_message`.
    """
    copy = passed_on_message(message, group, delay_level=3 + message.reconsume_times, topic=topic)
    return copy._replace(
        reconsume_times=message.reconsume_times + 1, max_reconsume_times=max_reconsume_times
    )


def dead_letter_message(
    message: MessageExt, group: str, *, properties: Mapping[str, str], topic: str = ""
) -> OutgoingMessage:
    """The copy that a broker puts among the group's dead letters, with further properties: it has
    been tried as often as it may be. Errors: see :func:`passed_on_message`."""
    copy = passed_on_message(message, group, delay_level=0, topic=topic, properties=properties)
    return copy._replace(max_reconsume_times=message.reconsume_times)


def passed_on_message(
    message: MessageExt,
    group: str,
    *,
    delay_level: int,
    topic: str = "",
    properties: Mapping[str, str] | None = None,
) -> OutgoingMessage:
    """The copy that goes to the group's retry topic as often tried as the message is, however often
    that may be: no broker makes it a dead letter.

    ``topic`` is the message's as brokers know it, if that is another one; ``properties`` are
    further ones. MessageRejectedError: a listener has put something into the properties that would
    be read as others.
    """
    all_properties = {**message.properties}
    for name in _NOT_SENT_AGAIN:
        all_properties.pop(name, None)
    all_properties |= properties or {}
    all_properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.message_id)
    all_properties[PropertyKey.RETRY_TOPIC] = topic or message.topic
    if delay_level:
        all_properties[PropertyKey.DELAY] = str(delay_level)
    all_properties[PropertyKey.WAIT] = "true"
    text = encode_properties(all_properties)
    # What another client sent stays as it is: a value may have a U+0001 that changes nothing.
    if decode_properties(text) != all_properties:
        text = property_text(all_properties)
    return OutgoingMessage(
        f"{RETRY_PREFIX}{group}",
        message.body,
        text,
        message.flag,
        # A body that could not be inflated goes as it came.
        message.sys_flag & COMPRESSION_MASK if message.body_error else 0,
        message.unique_key,
        reconsume_times=message.reconsume_times,
        max_reconsume_times=message.reconsume_times + 1,
    )


def send_result(
    response: RemotingCommand, message_id: str, queue: MessageQueue, address: str
) -> SendResult:
    """What the broker's answer says to a message, or a batch, with this id of ours. BrokerError: it
    was not stored. RemoteProtocolError: a field of the answer is missing or no number.
    """
    status = STATUS_BY_CODE.get(response.code)
    if status is None:
        raise BrokerError.from_response(response.code, response.remark, address)
    fields = response.ext_fields
    try:
        queue_id = int(fields["queueId"])
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        offset_message_id, queue_offset = fields["msgId"], int(fields["queueOffset"])
        result = SendResult(
            status,
            message_id or offset_message_id,
            offset_message_id,
            queue,
            queue_offset,
            fields.get(PropertyKey.MSG_REGION) or DEFAULT_REGION,
            fields.get(PropertyKey.TRACE_ON) != "false",
        )
        return DetailedSendResult.of(result, fields)
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"send response of {address} is malformed: {error!r}") from None


BATCH_COUNT_MAX = 1_000
"""Most messages of one batch."""


class BatchKey(NamedTuple):
    """The properties that messages of one batch share."""

    topic: str
    queue: MessageQueue | None
    """None: the batch chooses one."""
    wait_store_ok: bool
    timeout_ms: int


def batch_message(key: BatchKey, body: bytes, message_ids: Sequence[str]) -> OutgoingMessage:
    """A batch for the slow path."""
    wait = encode_properties({PropertyKey.WAIT: "true" if key.wait_store_ok else "false"})
    return OutgoingMessage(key.topic, body, wait, 0, 0, ",".join(message_ids), is_batch=True)


def shares(result: SendResult, message_ids: Sequence[str]) -> list[SendResult]:
    """Where each message of a batch is stored, given the result of the whole: at the next offset
    each, under the broker's next id. RemoteProtocolError: the broker named another number of
    messages.
    """
    offset_ids = result.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):
        raise RemoteProtocolError(
            f"the answer to a batch of {len(message_ids)} messages names {len(offset_ids)};"
            " they may be stored"
        )
    status, _, _, queue, first, region, is_traced = result
    make = tuple.__new__
    found: list[SendResult] = []
    known = {place.number: place for place in result.duplicates}
    for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True)):
        # What was stored now is stored next to each other.
        offset = first + index - sum(number < index for number in known) if known else first + index
        share = make(SendResult, (status, message_id, offset_id, queue, offset, region, is_traced))
        if index in known:
            share = DetailedSendResult(*share).at(known[index])
        found.append(share)
    return found
