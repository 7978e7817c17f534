"""What brokers answer, read in Python: headers of fast-path answers, records cut into messages.

Whatever these do not take is read by the slow path (``protocol/serialize.py``).
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from kerolox.codec.sending import FAST_HEADER_BYTES_MAX
from kerolox.message import MessageExt, PropertyKey, RecordParts, property_value, received_message
from kerolox.message import decode_properties as properties_of
from kerolox.protocol.codes import COMPRESSED, FLAG_RESPONSE, ResponseCode
from kerolox.protocol.names import DEFAULT_REGION, Int32
from kerolox.protocol.records import parse_record

SendAnswer = tuple[int, int, int, str, str, bool]
"""What a fast-path answer says: opaque, queue id, queue offset, the broker's message id, its
region, and whether it wants traces. The message is stored as safely as the broker is set to (code
0)."""

PullAnswer = tuple[int, int, int, int, str, str, int]
"""What a fast-path answer to a pull says: opaque, response code, the offset to go on at, the id of
the node to ask next, the queue's first offset and the one behind its last (both as they are
written), and where in the frame the records begin. The code is one of the four that are no
error."""

_STORED = int(ResponseCode.SUCCESS)
_PULL_CODES = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ),
    )
)
_QUEUE_IDS = {str(number): number for number in range(256)}
"""Most of those that there are: to find one is faster than to read it."""

_Fields = TypeVar("_Fields")


class _Answer(msgspec.Struct, Generic[_Fields], gc=False, kw_only=True):
    """The header of an answer.

    Here and below in the order in which brokers write them, which is read fastest.
    """

    code: Int32
    extFields: _Fields
    flag: Int32
    language: str | int | None = None
    opaque: Int32
    version: Int32 = 0
    remark: str | None = None


class _SendFields(msgspec.Struct, gc=False, kw_only=True):
    """The members of an answer to a send; all others have no meaning. One that names a duplicate is
    no fast-path answer: its result says more."""

    region: str = msgspec.field(default=DEFAULT_REGION, name=PropertyKey.MSG_REGION)
    trace_on: str = msgspec.field(default="", name=PropertyKey.TRACE_ON)
    duplicate: str = ""
    msgId: str
    queueId: str
    queueOffset: str


class _PullFields(msgspec.Struct, gc=False):
    """The members of an answer to a pull; all others have no meaning."""

    nextBeginOffset: str
    minOffset: str
    maxOffset: str
    suggestWhichBrokerId: str


_read_send = msgspec.json.Decoder(_Answer[_SendFields]).decode
_read_pull = msgspec.json.Decoder(_Answer[_PullFields]).decode


def fast_header(frame: bytes) -> bytes | None:
    """The header of a frame without its length, if a fast-path answer may have such a one."""
    header_size = int.from_bytes(frame[:4], "big")
    # Larger than any is another encoding than JSON, too.
    return frame[4 : 4 + header_size] if header_size <= FAST_HEADER_BYTES_MAX else None


def send_answer(header: bytes) -> SendAnswer | None:
    """What an answer says that stored a message; None: the header is that of anything else."""
    try:
        answer = _read_send(header)
        fields = answer.extFields
        queue_id = _QUEUE_IDS.get(fields.queueId)
        if queue_id is None:
            queue_id = int(fields.queueId)
        if answer.code != _STORED or not answer.flag & FLAG_RESPONSE or fields.duplicate:
            return None
        return (
            answer.opaque,
            queue_id,
            int(fields.queueOffset),
            fields.msgId,
            fields.region or DEFAULT_REGION,
            fields.trace_on != "false",
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def pull_answer(frame: bytes) -> PullAnswer | None:
    """See :class:`kerolox.codec.pulling.MessageCodec`."""
    header = fast_header(frame)
    if header is None:
        return None
    try:
        answer = _read_pull(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    fields = answer.extFields
    next_offset, suggested = _long(fields.nextBeginOffset), _long(fields.suggestWhichBrokerId)
    is_bounded = _long(fields.minOffset) is not None and _long(fields.maxOffset) is not None
    if next_offset is None or suggested is None or not is_bounded:
        return None
    if answer.code not in _PULL_CODES or not answer.flag & FLAG_RESPONSE:
        return None
    bounds = fields.minOffset, fields.maxOffset
    return answer.opaque, answer.code, next_offset, suggested, *bounds, 4 + len(header)


def _long(text: str) -> int | None:
    """A number of 64 bits as Java writes it, or None."""
    if len(text) > 20 or not text.removeprefix("-").isdecimal():
        return None
    number = int(text)
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def cut_messages(
    data: bytes, parts: RecordParts, broker_name: str, tags: tuple[str, ...], start: int = 0
) -> tuple[list[MessageExt], list[int], int, int, bool]:
    """See :class:`kerolox.codec.pulling.MessageCodec`."""
    if start > len(data):
        raise ValueError("the records begin behind the end of the data")
    messages: list[MessageExt] = []
    compressed: list[int] = []
    body_bytes, last, ascends = 0, None, True
    topic, topic_bytes = "", b""
    position, limit = start, len(data)
    while position < limit:
        record = parse_record(data, position, limit)
        if record is None:
            break
        if record.topic != topic_bytes:
            try:
                topic = str(record.topic, "utf-8")
            except UnicodeDecodeError:
                break
            topic_bytes = record.topic
        head, position = position, position + record.size
        if tags and _tag_of(record.properties) not in tags:
            continue
        message = received_message(
            topic,
            data[record.body_start : record.body_end],
            record.queue_offset,
            broker_name,
            data[head : record.body_start] + record.properties,
            parts,
        )
        if record.sys_flag & COMPRESSED:
            compressed.append(len(messages))
        body_bytes += record.body_end - record.body_start
        ascends &= last is None or last < record.queue_offset
        last = record.queue_offset
        messages.append(message)
    return messages, compressed, position, body_bytes, ascends


def decode_properties(kept: bytes, start: int) -> dict[str, str]:
    """See :class:`kerolox.codec.pulling.MessageCodec`."""
    return properties_of(str(kept[start:], "utf-8", "replace"))


def _tag_of(properties: bytes) -> str:
    return str(property_value(properties, PropertyKey.TAGS) or b"", "utf-8", "replace")
