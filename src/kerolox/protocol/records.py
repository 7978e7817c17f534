"""The stored record: how a message lies in the commit log and in the body of a pull response.

Layout (``CommitLog`` of RocketMQ), big-endian; b and s are 8 for an IPv4 host and 20 for IPv6::

    0 total size 4 | 4 magic 4 | 8 body CRC 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8
    28 physical offset 8 | 36 sys flag 4 | 40 born timestamp 8 | 48 born host b
    48+b store timestamp 8 | 56+b store host s | reconsume times 4 | prepared transaction offset 8
    body length 4, body | topic length 1, topic | properties length 2, properties
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kerolox.errors import RemoteProtocolError
from kerolox.message import ITEM_END, MessageExt, decode_properties, pack_host, unpack_host
from kerolox.protocol.codes import BATCH_ITEMS_MAX, BORN_HOST_V6, HOST_V6_MASK, STORE_HOST_V6
from kerolox.protocol.compression import inflate_body
from kerolox.protocol.names import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX

MESSAGE_MAGIC = 0xDAA320A7
CRC_MASK = 0x7FFF_FFFF
"""Bits of a body's CRC that a record keeps."""
BLANK_MAGIC = 0xCBD43194
RECORD_BYTES_MIN = 91
"""A record with IPv4 hosts and nothing in it."""

_HEAD = struct.Struct(">IIIiiqqiq")
_SYS_FLAG_AT = 36
_TAIL = struct.Struct(">iqi")
_INT, _LONG, _SHORT = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">H")
_UNSIGNED = struct.Struct(">I")
_SIZE_AND_MAGIC = struct.Struct(">II")
_SIZE_AND_OFFSET = struct.Struct(">I16xq")
_ITEM_END = ITEM_END.encode()
_BATCH_ITEM = struct.Struct(">iIIii")

_PACKERS: dict[tuple[int, int], tuple[Callable[..., bytes], int, int]] = {
    (born, store): (
        struct.Struct(f">IIIiiqqiq{born}sq{store}siqi").pack,
        (BORN_HOST_V6 if born == 20 else 0) | (STORE_HOST_V6 if store == 20 else 0),
        75 + born + store,
    )
    for born in (8, 20)
    for store in (8, 20)
}


_HEAD_FIELDS: dict[str, tuple[struct.Struct, int]] = {
    "store_size": (_UNSIGNED, 0),
    "body_crc": (_UNSIGNED, 8),
    "queue_id": (_INT, 12),
    "flag": (_INT, 16),
    "queue_offset": (_LONG, 20),
    "commit_log_offset": (_LONG, 28),
    "sys_flag": (_INT, _SYS_FLAG_AT),
    "born_timestamp": (_LONG, 40),
}
"""Where the fields before the hosts are, by their names in ``MessageExt``."""


class RecordView(NamedTuple):
    """One record in place: its numbers, and where its parts are. Positions count from the start of
    what it was found in."""

    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: bytes
    properties: bytes
    body_crc: int
    body_start: int
    body_end: int
    flag: int = 0
    physical_offset: int = 0
    born_timestamp: int = 0
    born_host_start: int = 0
    store_time_start: int = 0
    """The born host ends here, and the store host begins 8 bytes after."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    store_host_end: int = 0


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 of a body with the sign bit cleared, as the record keeps it."""
    return zlib.crc32(body) & CRC_MASK


def is_body_right(body: bytes | memoryview, crc: int) -> bool:
    """The body has the CRC that its record keeps. That of no bytes is not examined."""
    return not len(body) or body_crc(body) == crc


def head_packer(born_host: bytes, store_host: bytes) -> tuple[Callable[..., bytes], int, int]:
    """(pack function of everything before the body, host bits of the sys flag, fixed bytes).

    Fixed bytes: the record's size without body, topic and properties. ValueError: a host has
    neither 8 nor 20 bytes.
    """
    try:
        return _PACKERS[len(born_host), len(store_host)]
    except KeyError:
        raise ValueError(
            f"hosts of {len(born_host)} and {len(store_host)} bytes; 8 (IPv4) or 20 (IPv6) wanted"
        ) from None


def parse_record(
    view: mmap.mmap | bytes,
    position: int,
    limit: int,
    physical_offset: int | None = None,
) -> RecordView | None:
    """The record at ``position`` of ``view``, or None when there is no whole one before ``limit``.

    Never raises on garbage. Of a log, ``physical_offset`` is where ``position`` is in it: a record
    that names another one is left over from an older use of the file, and one without a topic is
    none either. The body's CRC is not examined.
    """
    if position + RECORD_BYTES_MIN > limit:
        return None
    (size, magic, crc, queue_id, flag, queue_offset, own_offset, sys_flag, born_timestamp) = (
        _HEAD.unpack_from(view, position)
    )
    end = position + size
    if magic != MESSAGE_MAGIC or not size or end > limit:
        return None
    hosts = position + 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    tail = hosts + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    body = tail + 16
    if body + 3 > end:
        return None
    (store_timestamp,) = _LONG.unpack_from(view, hosts)
    reconsume_times, prepared, body_size = _TAIL.unpack_from(view, tail)
    topic = body + body_size + 1
    if body_size < 0 or topic + 2 > end:
        return None
    topic_end = topic + view[topic - 1]
    if topic_end + 2 > end or topic_end - topic > TOPIC_BYTES_MAX:
        return None
    if physical_offset is not None and (own_offset != physical_offset or topic_end == topic):
        return None
    (properties_size,) = _SHORT.unpack_from(view, topic_end)
    if topic_end + 2 + properties_size != end or properties_size > PROPERTIES_BYTES_MAX:
        return None
    return RecordView(
        size,
        queue_id,
        queue_offset,
        sys_flag,
        store_timestamp,
        view[topic:topic_end],
        view[topic_end + 2 : end],
        crc,
        body,
        topic - 1,
        flag,
        own_offset,
        born_timestamp,
        position + 48,
        hosts,
        reconsume_times,
        prepared,
        tail,
    )


def record_fault(data: bytes, position: int) -> str:
    """Why :func:`parse_record` found no record at a position of received records."""
    left = len(data) - position
    if left >= RECORD_BYTES_MIN:
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
        if magic != MESSAGE_MAGIC or size < RECORD_BYTES_MIN:
            return f"no record at byte {position}: size {size}, magic {magic:#010x}"
        if size <= left:
            return f"lengths of the record at byte {position} do not add up"
    return f"torn record at byte {position} of {len(data)}"


def decode_record(
    data: bytes | memoryview, position: int = 0, *, broker_name: str = "", inflate: bool = True
) -> tuple[MessageExt, int]:
    """Decode the record at ``position``; the message and the position behind it.

    A body that can't be inflated stays as it is stored, and ``body_error`` of the message says why:
    one such record must not hold up those behind it. RemoteProtocolError: torn, wrong magic, or
    lengths that do not add up.
    """
    data = bytes(data)
    record = parse_record(data, position, len(data))
    if record is None:
        raise RemoteProtocolError(record_fault(data, position))
    body = data[record.body_start : record.body_end]
    try:
        topic = str(record.topic, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"torn record at byte {position}: {error}") from None
    body_error = ""
    if inflate:
        try:
            body = inflate_body(body, record.sys_flag)
        except RemoteProtocolError as error:
            body_error = str(error)
    message = MessageExt(
        topic=topic,
        body=body,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        # Text that is no UTF-8 is repaired: one odd record must not hold up those behind it.
        properties=decode_properties(str(record.properties, "utf-8", "replace")),
        broker_name=broker_name,
        flag=record.flag,
        sys_flag=record.sys_flag,
        body_crc=record.body_crc,
        store_size=record.size,
        born_timestamp=record.born_timestamp,
        store_timestamp=record.store_timestamp,
        born_host=unpack_host(data[record.born_host_start : record.store_time_start]),
        store_host=unpack_host(data[record.store_time_start + 8 : record.store_host_end]),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_error=body_error,
    )
    return message, position + record.size


def head_size(head: bytes) -> int:
    """Bytes of a record before its body, the body's length among them."""
    (sys_flag,) = _INT.unpack_from(head, _SYS_FLAG_AT)
    v6_hosts = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return 88 + 12 * v6_hosts


def head_part(head: bytes, name: str) -> object:
    """One field of a record that :func:`parse_record` has found sound, from its bytes before the
    body. ``name``: of a field of ``MessageExt`` that is a number or a host.
    """
    if (fixed := _HEAD_FIELDS.get(name)) is not None:
        layout, position = fixed
        return layout.unpack_from(head, position)[0]
    (sys_flag,) = _INT.unpack_from(head, _SYS_FLAG_AT)
    born_end = 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    store_end = head_size(head) - 16
    if name == "born_host":
        return unpack_host(head[48:born_end])
    if name == "store_timestamp":
        return _LONG.unpack_from(head, born_end)[0]
    if name == "store_host":
        return unpack_host(head[born_end + 8 : store_end])
    reconsume_times, prepared, _ = _TAIL.unpack_from(head, store_end)
    return reconsume_times if name == "reconsume_times" else prepared


def record_size(data: bytes | memoryview, position: int = 0) -> int:
    """Size of the record at ``position``, of which 4 bytes must be there."""
    return int.from_bytes(data[position : position + 4], "big")


def store_time_of(data: mmap.mmap | bytes | memoryview, position: int = 0) -> int:
    """When the record at ``position`` was stored, ms; RemoteProtocolError: it is torn."""
    try:
        (sys_flag,) = _INT.unpack_from(data, position + _SYS_FLAG_AT)
        at = position + _HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
        (store_timestamp,) = _LONG.unpack_from(data, at)
    except struct.error as error:
        raise RemoteProtocolError(f"torn record: {error}") from error
    return int(store_timestamp)


def records_before(data: memoryview, end: int) -> memoryview:
    """Of records that follow each other those before the first with a queue offset of ``end``;
    RemoteProtocolError: one is torn.
    """
    position = 0
    try:
        while position < len(data):
            size, queue_offset = _SIZE_AND_OFFSET.unpack_from(data, position)
            if queue_offset >= end:
                break
            if not size:
                raise RemoteProtocolError(f"record of {size} bytes at byte {position}")
            position += size
    except struct.error as error:
        raise RemoteProtocolError(f"torn record at byte {position}: {error}") from error
    return data[:position]


def decode_records(
    data: bytes | memoryview, *, broker_name: str = "", inflate: bool = True
) -> list[MessageExt]:
    """Decode records that follow each other (the body of a pull or query response)."""
    data = bytes(data)
    messages: list[MessageExt] = []
    position = 0
    while position < len(data):
        message, position = decode_record(data, position, broker_name=broker_name, inflate=inflate)
        messages.append(message)
    return messages


def encode_record(message: MessageExt, properties: str) -> bytes:
    """Encode a message with the property text as given; ``body`` is stored as it is."""
    born_host, store_host = pack_host(*message.born_host), pack_host(*message.store_host)
    pack, host_bits, fixed_bytes = head_packer(born_host, store_host)
    topic, text = message.topic.encode(), properties.encode()
    head = pack(
        fixed_bytes + len(message.body) + len(topic) + len(text),
        MESSAGE_MAGIC,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.commit_log_offset,
        message.sys_flag & ~HOST_V6_MASK | host_bits,
        message.born_timestamp,
        born_host,
        message.store_timestamp,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        len(message.body),
    )
    return b"".join((head, message.body, bytes([len(topic)]), topic, _SHORT.pack(len(text)), text))


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The body of SEND_BATCH_MESSAGE from (flag, body, property text) items."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        size = _BATCH_ITEM.size + len(body) + 2 + len(properties)
        parts += (
            _BATCH_ITEM.pack(size, 0, 0, flag, len(body)),
            body,
            _SHORT.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(
    data: bytes,
    common: bytes = b"",
    position: int = 0,
    end: int | None = None,
    *,
    count_max: int = BATCH_ITEMS_MAX,
) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """Items of a SEND_BATCH_MESSAGE body: each (flag, body, property text), and where they end.
    RemoteProtocolError: torn, or lengths that do not add up.

    Args:
        data: what holds the body.
        common: the batch's own properties, which are put behind each item's.
        position: where the first item begins.
        end: where the body ends; None: with ``data``.
        count_max: most items to read.
    """
    items: list[tuple[int, bytes, bytes]] = []
    unpack, unpack_size, fixed_bytes = _BATCH_ITEM.unpack_from, _SHORT.unpack_from, _BATCH_ITEM.size
    behind = _ITEM_END + common if common else b""
    limit = len(data) if end is None else end
    while position < limit and count_max:
        try:
            size, _magic, _crc, flag, body_size = unpack(data, position)
            body = position + fixed_bytes
            body_end = body + body_size
            (properties_size,) = unpack_size(data, body_end)
        except struct.error as error:
            raise RemoteProtocolError(f"torn batch item at byte {position}: {error}") from None
        item_end = body_end + 2 + properties_size
        if body_size < 0 or item_end != position + size or item_end > limit:
            raise RemoteProtocolError(f"lengths of the batch item at byte {position} do not add up")
        text = data[body_end + 2 : item_end]
        text += common if not text or text.endswith(_ITEM_END) else behind
        items.append((flag, data[body:body_end], text))
        position = item_end
        count_max -= 1
    return items, position
