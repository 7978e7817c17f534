"""Pulled records cut into messages, in Python: the counterpart of the native functions of these
names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kerolox.codec.sending import FAST_HEADER_BYTES_MAX
from kerolox.message import (
    MessageExt,
    PropertyKey,
    RecordParts,
    property_value,
    received_message,
)
from kerolox.message import decode_properties as properties_of
from kerolox.protocol.codes import (
    COMPRESSED,
    FLAG_RESPONSE,
    HEADER_SIZE_MASK,
    ResponseCode,
    SerializeType,
)
from kerolox.protocol.names import Int32
from kerolox.protocol.records import parse_record

if TYPE_CHECKING:
    from kerolox.codec.pulling import PullAnswer

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


class _PullFields(msgspec.Struct):
    """The fields of an answer to a pull; all others have no meaning."""

    nextBeginOffset: str
    minOffset: str
    maxOffset: str
    suggestWhichBrokerId: str


class _PullAnswer(msgspec.Struct):
    code: Int32
    opaque: Int32
    flag: Int32
    extFields: _PullFields
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None


_read_pull_answer = msgspec.json.Decoder(_PullAnswer).decode


def pull_answer(frame: bytes) -> PullAnswer | None:
    """See :class:`kerolox.codec.messages.MessageCodec`."""
    word = int.from_bytes(frame[:4], "big")
    start = 4 + (word & HEADER_SIZE_MASK)
    if word >> 24 != SerializeType.JSON or start > min(len(frame), 4 + FAST_HEADER_BYTES_MAX):
        return None
    try:
        header = _read_pull_answer(frame[4:start])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    fields = header.extFields
    next_offset, suggested = _long(fields.nextBeginOffset), _long(fields.suggestWhichBrokerId)
    is_bounded = _long(fields.minOffset) is not None and _long(fields.maxOffset) is not None
    if next_offset is None or suggested is None or not is_bounded:
        return None
    if header.code not in _PULL_CODES or not header.flag & FLAG_RESPONSE:
        return None
    bounds = fields.minOffset, fields.maxOffset
    return header.opaque, header.code, next_offset, suggested, *bounds, start


def _long(text: str) -> int | None:
    """A number of 64 bits as Java writes it, or None."""
    if len(text) > 20 or not text.removeprefix("-").isdecimal():
        return None
    number = int(text)
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def cut_messages(
    data: bytes, parts: RecordParts, broker_name: str, tags: tuple[str, ...], start: int = 0
) -> tuple[list[MessageExt], list[int], int, int, bool]:
    """See :class:`kerolox.codec.messages.MessageCodec`."""
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
    """See :class:`kerolox.codec.messages.MessageCodec`."""
    return properties_of(str(kept[start:], "utf-8", "replace"))


def _tag_of(properties: bytes) -> str:
    return str(property_value(properties, PropertyKey.TAGS) or b"", "utf-8", "replace")
