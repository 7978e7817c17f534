"""Byte layouts of the store's files and the small readers that go with them.

Everything is big-endian. A commit log record with born host b and store host s (8 bytes for IPv4,
20 for IPv6, chosen by bits 16 and 32 of the sys flag)::

    0 total size | 4 magic | 8 body CRC | 12 queue id | 16 flag | 20 queue offset
    28 physical offset | 36 sys flag | 40 born timestamp | 48 born host | 48+b store timestamp
    56+b store host | 56+b+s reconsume times | 60+b+s prepared transaction offset
    68+b+s body length, body | topic length 1, topic | properties length 2, properties

A blank (end of a file): 4 bytes that hold what remains of the file, 4 bytes magic.
A queue entry: physical offset 8, record size 4, tags code 8.

:func:`parse_record` never raises on garbage: a record is whole or it is None.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from kerolox.message import PropertyKey, property_value, tags_code
from kerolox.protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from kerolox.protocol.names import PROPERTIES_BYTES_MAX, SCHEDULE_TOPIC, TOPIC_BYTES_MAX

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

__all__ = [
    "BLANK",
    "BLANK_BYTES",
    "BLANK_MAGIC",
    "ENTRY",
    "ENTRY_BYTES",
    "MESSAGE_MAGIC",
    "PRE_BLANK",
    "PRE_BLANK_SIZE",
    "RecordView",
    "crc_matches",
    "delay_levels_ms",
    "entries_packer",
    "entries_unpacker",
    "head_packer",
    "is_blank",
    "parse_record",
    "record_tags_code",
]

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
BLANK = struct.Struct(">II")
BLANK_BYTES = 8
"""Always left at the end of a commit log file."""

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = 20
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
"""What stands before the first entry of a queue that does not begin at offset 0."""


RECORD_BYTES_MIN = 91
"""A record with IPv4 hosts and nothing in it; its topic has at least one byte more."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_HEAD = struct.Struct(">IIIiiqqiq")
_TAIL = struct.Struct(">iqi")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">H")

_PACKERS: dict[tuple[int, int], tuple[Callable[..., bytes], int, int]] = {
    (born, store): (
        struct.Struct(f">IIIiiqqiq{born}sq{store}siqi").pack,
        (BORN_HOST_V6 if born == 20 else 0) | (STORE_HOST_V6 if store == 20 else 0),
        75 + born + store,
    )
    for born in (8, 20)
    for store in (8, 20)
}


def head_packer(born_host: bytes, store_host: bytes) -> tuple[Callable[..., bytes], int, int]:
    """(pack function of everything before the body, host bits of the sys flag, fixed bytes).

    Fixed bytes: the record's size without body, topic and properties.

    Raises:
        ValueError: a host has neither 8 nor 20 bytes.
    """
    try:
        return _PACKERS[len(born_host), len(store_host)]
    except KeyError:
        raise ValueError(
            f"hosts of {len(born_host)} and {len(store_host)} bytes; 8 (IPv4) or 20 (IPv6) wanted"
        ) from None


_ENTRY_PACKERS: dict[int, Callable[..., bytes]] = {1: ENTRY.pack}
_ENTRY_PACKERS_MAX = 1_024


def entries_packer(count: int) -> Callable[..., bytes]:
    """A pack function for ``count`` queue entries given as one flat list of numbers."""
    pack = _ENTRY_PACKERS.get(count)
    if pack is None:
        if len(_ENTRY_PACKERS) >= _ENTRY_PACKERS_MAX:
            _ENTRY_PACKERS.clear()
        pack = _ENTRY_PACKERS[count] = struct.Struct(">" + "qiq" * count).pack
    return pack


_ENTRY_UNPACKERS: dict[int, Callable[[bytes], tuple[int, ...]]] = {}


def entries_unpacker(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """An unpack function for ``count`` queue entries, giving one flat tuple."""
    unpack = _ENTRY_UNPACKERS.get(count)
    if unpack is None:
        if len(_ENTRY_UNPACKERS) >= _ENTRY_PACKERS_MAX:
            _ENTRY_UNPACKERS.clear()
        unpack = _ENTRY_UNPACKERS[count] = struct.Struct(">" + "qiq" * count).unpack
    return unpack


class RecordView(NamedTuple):
    """What recovery and index need of one record."""

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


def parse_record(
    view: mmap.mmap | bytes, position: int, limit: int, physical_offset: int
) -> RecordView | None:
    """The record at ``position`` of ``view``, or None when there is no whole one before ``limit``.

    A record that names another physical offset than its own is left over from an older use of
    the file, hence none. The body's CRC is not looked at, see :func:`crc_matches`.
    """
    if position + RECORD_BYTES_MIN > limit:
        return None
    size, magic, crc, queue_id, _flag, queue_offset, own_offset, sys_flag, _born = (
        _HEAD.unpack_from(view, position)
    )
    end = position + size
    if magic != MESSAGE_MAGIC or own_offset != physical_offset or not size or end > limit:
        return None
    hosts = position + 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    tail = hosts + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    body = tail + 16
    if body + 3 > end:
        return None
    (store_timestamp,) = _LONG.unpack_from(view, hosts)
    _reconsume_times, _prepared, body_size = _TAIL.unpack_from(view, tail)
    topic = body + body_size + 1
    if body_size < 0 or topic + 2 > end:
        return None
    topic_end = topic + view[topic - 1]
    if topic_end + 2 > end or topic_end == topic or topic_end - topic > TOPIC_BYTES_MAX:
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
    )


def crc_matches(view: mmap.mmap | bytes, record: RecordView) -> bool:
    """The body is what its CRC says."""
    return (
        record.body_end == record.body_start
        or zlib.crc32(view[record.body_start : record.body_end]) & 0x7FFFFFFF == record.body_crc
    )


def is_blank(view: mmap.mmap | bytes, position: int, limit: int) -> bool:
    """A blank record that ends the file begins at ``position``."""
    if position + BLANK_BYTES > limit:
        return False
    _size, magic = BLANK.unpack_from(view, position)
    return bool(magic == BLANK_MAGIC)


def delay_levels_ms(levels: str) -> tuple[int, ...]:
    """The delays of ``messageDelayLevel``, in milliseconds; level 1 comes first.

    Raises:
        ValueError: a level is not a number followed by s, m, h or d.
    """
    delays: list[int] = []
    for level in levels.split():
        if level[-1] not in _UNITS_MS or not level[:-1].isdigit():
            raise ValueError(f"messageDelayLevel: {level!r} is not a number followed by s, m, h, d")
        delays.append(int(level[:-1]) * _UNITS_MS[level[-1]])
    return tuple(delays)


def record_tags_code(
    topic: bytes, properties: bytes, store_timestamp: int, delays_ms: tuple[int, ...]
) -> int:
    """What the queue entry of a record holds: hash of its tags, or when to deliver it.

    Records of ``SCHEDULE_TOPIC_XXXX`` carry the deliver time, from their DELAY level.
    """
    if topic == _SCHEDULE_TOPIC and delays_ms:
        level_text = property_value(properties, PropertyKey.DELAY)
        if level_text is not None and level_text.isdigit() and int(level_text) > 0:
            return store_timestamp + delays_ms[min(int(level_text), len(delays_ms)) - 1]
    tags = property_value(properties, PropertyKey.TAGS)
    return tags_code(tags.decode("utf-8", "replace")) if tags else 0
