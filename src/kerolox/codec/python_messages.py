"""Pulled records cut into messages, in Python: the counterpart of the native functions of these
names."""

from __future__ import annotations

from kerolox.codec.python_answers import pull_answer
from kerolox.message import (
    MessageExt,
    PropertyKey,
    RecordParts,
    property_value,
    received_message,
)
from kerolox.message import decode_properties as properties_of
from kerolox.protocol.codes import COMPRESSED
from kerolox.protocol.records import parse_record

__all__ = ["cut_messages", "decode_properties", "pull_answer"]


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
