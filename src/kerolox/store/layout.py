"""Byte layouts of the store's files and the small readers that go with them.

Everything is big-endian. The record stands in ``protocol/records.py``.

A blank (end of a file): 4 bytes that hold what remains of the file, 4 bytes magic.
A queue entry: physical offset 8, record size 4, tags code 8.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable

from kerolox.message import PropertyKey, property_value, tags_code
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.protocol.records import BLANK_MAGIC, RecordView, is_body_right

EPOCH_FILE = "epochFileCheckpoint"
"""In the store's folder: which master wrote which part of the log (``storePathEpochFile``)."""
IDENTITY_FILE = "brokerIdentity"
"""In the store's folder: the id that a controller gave the broker (``storePathBrokerIdentity``)."""
LEFT_FILE = "leftControllers"
"""In the store's folder: the broker ran without a controller since it got that id."""

BLANK = struct.Struct(">II")
BLANK_BYTES = 8
"""Always left at the end of a commit log file."""

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = 20
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
"""What stands before the first entry of a queue that does not begin at offset 0."""


TIMER_LOG, TIMER_WHEEL = "timerlog", "timerwheel"
"""Folder and file of messages for a moment, below the root of the store."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()

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


def crc_matches(view: mmap.mmap | bytes | memoryview, record: RecordView) -> bool:
    """The body is what its CRC says."""
    return is_body_right(view[record.body_start : record.body_end], record.body_crc)


def is_blank(view: mmap.mmap | bytes, position: int, limit: int) -> bool:
    """A blank record that ends the file begins at ``position``."""
    if position + BLANK_BYTES > limit:
        return False
    _size, magic = BLANK.unpack_from(view, position)
    return bool(magic == BLANK_MAGIC)


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


def is_pre_blank(entry: tuple[int, int, int]) -> bool:
    """The entry only fills the place before a queue's first one."""
    return entry[1] == PRE_BLANK_SIZE and entry[0] == 0


def good_entries(data: bytes) -> int:
    """How many entries from the start of ``data`` have an offset >= 0 and a size > 0."""
    count = len(data) // ENTRY_BYTES
    if not count:
        return 0
    size_bytes = [
        int.from_bytes(data[at : count * ENTRY_BYTES : ENTRY_BYTES], "big") for at in (8, 9, 10, 11)
    ]
    # Whole columns as big numbers: a Python loop over 300,000 entries takes 40 times as long.
    any_bit = (size_bytes[0] | size_bytes[1] | size_bytes[2] | size_bytes[3]).to_bytes(count, "big")
    offset_top = int.from_bytes(data[0 : count * ENTRY_BYTES : ENTRY_BYTES], "big")
    signs = (offset_top | size_bytes[0]) & int.from_bytes(b"\x80" * count, "big")
    good = any_bit.find(b"\0")
    good = count if good < 0 else good
    if signs:
        text = signs.to_bytes(count, "big")
        good = min(good, text.find(b"\x80"))
    return good


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
