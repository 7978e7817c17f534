"""The stored record: how a message lies in the commit log and in the body of a pull response.

Layout (``CommitLog`` of RocketMQ), big-endian; b and s are 8 for an IPv4 host and 20 for IPv6::

    0 total size 4 | 4 magic 4 | 8 body CRC 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8
    28 physical offset 8 | 36 sys flag 4 | 40 born timestamp 8 | 48 born host b
    48+b store timestamp 8 | 56+b store host s | reconsume times 4 | prepared transaction offset 8
    body length 4, body | topic length 1, topic | properties length 2, properties
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageExt, decode_properties, pack_host, unpack_host
from kerolox.protocol.codes import BORN_HOST_V6, HOST_V6_MASK, STORE_HOST_V6
from kerolox.protocol.compression import inflate_body

__all__ = [
    "BLANK_MAGIC",
    "MESSAGE_MAGIC",
    "RECORD_BYTES_MIN",
    "body_crc",
    "decode_record",
    "decode_records",
    "encode_batch",
    "encode_record",
    "iterate_batch",
    "store_time_of",
]

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
RECORD_BYTES_MIN = 91
"""A record with IPv4 hosts and nothing in it."""

_HEAD = struct.Struct(">IIIiiqqiq")
_SYS_FLAG_AT = 36
_TAIL = struct.Struct(">iqi")
_BATCH_ITEM = struct.Struct(">iIIii")


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 of a body with the sign bit cleared, as the record keeps it."""
    return zlib.crc32(body) & 0x7FFFFFFF


def decode_record(
    data: bytes | memoryview, position: int = 0, *, broker_name: str = "", inflate: bool = True
) -> tuple[MessageExt, int]:
    """Decode the record at ``position``; the message and the position behind it.

    A body that can't be inflated stays as it is stored, and ``body_error`` of the message says why:
    one such record must not hold up those behind it.

    Raises:
        RemoteProtocolError: torn, wrong magic, or lengths that do not add up.
    """
    view = memoryview(data)
    try:
        head = _HEAD.unpack_from(view, position)
        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = head
        if magic != MESSAGE_MAGIC or position + size > len(view):
            raise RemoteProtocolError(f"no whole record at byte {position}: magic {magic:#x}")
        at = position + _HEAD.size
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
        store_bytes = 20 if sys_flag & STORE_HOST_V6 else 8
        born_host = unpack_host(bytes(view[at : at + born_bytes]))
        at += born_bytes
        (store_timestamp,) = struct.unpack_from(">q", view, at)
        store_host = unpack_host(bytes(view[at + 8 : at + 8 + store_bytes]))
        at += 8 + store_bytes
        reconsume_times, prepared, body_size = _TAIL.unpack_from(view, at)
        at += _TAIL.size
        topic_at = at + body_size
        topic_size = view[topic_at]
        properties_at = topic_at + 1 + topic_size
        (properties_size,) = struct.unpack_from(">H", view, properties_at)
        end = properties_at + 2 + properties_size
        if body_size < 0 or end != position + size:
            raise RemoteProtocolError(f"lengths of the record at byte {position} do not add up")
        body = bytes(view[at:topic_at])
        topic = str(view[topic_at + 1 : properties_at], "utf-8")
        # Text that is no UTF-8 is repaired: one odd record must not hold up those behind it.
        properties = str(view[properties_at + 2 : end], "utf-8", "replace")
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteProtocolError(f"torn record at byte {position}: {error}") from None
    body_error = ""
    if inflate:
        try:
            body = inflate_body(body, sys_flag)
        except RemoteProtocolError as error:
            body_error = str(error)
    message = MessageExt(
        topic=topic,
        body=body,
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=physical_offset,
        properties=decode_properties(properties),
        broker_name=broker_name,
        flag=flag,
        sys_flag=sys_flag,
        body_crc=crc,
        store_size=size,
        born_timestamp=born,
        store_timestamp=store_timestamp,
        born_host=born_host,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_error=body_error,
    )
    return message, position + size


def store_time_of(data: bytes | memoryview) -> int:
    """When the first record of ``data`` was stored, ms.

    Raises:
        RemoteProtocolError: it is torn.
    """
    try:
        (sys_flag,) = struct.unpack_from(">i", data, _SYS_FLAG_AT)
        at = _HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
        (store_timestamp,) = struct.unpack_from(">q", data, at)
    except struct.error as error:
        raise RemoteProtocolError(f"torn record: {error}") from error
    return int(store_timestamp)


def decode_records(
    data: bytes | memoryview, *, broker_name: str = "", inflate: bool = True
) -> list[MessageExt]:
    """Decode records that follow each other (the body of a pull or query response)."""
    messages: list[MessageExt] = []
    position = 0
    while position < len(data):
        message, position = decode_record(data, position, broker_name=broker_name, inflate=inflate)
        messages.append(message)
    return messages


def encode_record(message: MessageExt, properties: str) -> bytes:
    """Encode a message with the property text as given; ``body`` is stored as it is."""
    born_host, store_host = pack_host(*message.born_host), pack_host(*message.store_host)
    sys_flag = message.sys_flag & ~HOST_V6_MASK
    sys_flag |= BORN_HOST_V6 if len(born_host) == 20 else 0
    sys_flag |= STORE_HOST_V6 if len(store_host) == 20 else 0
    topic, text = message.topic.encode(), properties.encode()
    size = 75 + len(born_host) + len(store_host) + len(message.body) + len(topic) + len(text)
    head = _HEAD.pack(
        size,
        MESSAGE_MAGIC,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.commit_log_offset,
        sys_flag,
        message.born_timestamp,
    )
    tail = _TAIL.pack(
        message.reconsume_times, message.prepared_transaction_offset, len(message.body)
    )
    return b"".join(
        (
            head,
            born_host,
            struct.pack(">q", message.store_timestamp),
            store_host,
            tail,
            message.body,
            bytes([len(topic)]),
            topic,
            struct.pack(">H", len(text)),
            text,
        )
    )


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The body of SEND_BATCH_MESSAGE from (flag, body, property text) items."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        size = _BATCH_ITEM.size + len(body) + 2 + len(properties)
        parts += (
            _BATCH_ITEM.pack(size, 0, 0, flag, len(body)),
            body,
            struct.pack(">H", len(properties)),
            properties,
        )
    return b"".join(parts)


def iterate_batch(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """The (flag, body, property text) items of a SEND_BATCH_MESSAGE body.

    Raises:
        RemoteProtocolError: torn, or lengths that do not add up.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        try:
            size, _magic, _crc, flag, body_size = _BATCH_ITEM.unpack_from(view, position)
            at = position + _BATCH_ITEM.size
            (properties_size,) = struct.unpack_from(">H", view, at + body_size)
        except struct.error as error:
            raise RemoteProtocolError(f"torn batch item at byte {position}: {error}") from None
        end = at + body_size + 2 + properties_size
        if body_size < 0 or end != position + size or end > len(view):
            raise RemoteProtocolError(f"lengths of the batch item at byte {position} do not add up")
        properties = bytes(view[at + body_size + 2 : end])
        yield flag, bytes(view[at : at + body_size]), properties
        position = end
