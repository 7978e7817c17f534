"""The shape of index files: how many slots and entries they have, found from what is in them."""

from __future__ import annotations

import os
from typing import NamedTuple

from kerolox.kernel.settings import StoreSettings
from kerolox.store.index import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES

_PROBED_ENTRIES = 64
_SEARCH_BYTES = 4 << 20
_BRUTE_SLOTS_MAX = 1_000_000
_CHAIN_MAX = 1 << 16
"""Entries of one slot; RocketMQ's settings give four."""


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    used_slots: int
    entry_count: int
    """Entries, and one more."""


class IndexShape(NamedTuple):
    """``maxHashSlotNum`` and ``maxIndexNum`` of a file."""

    slots: int
    entries: int

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.entries_at + self.entries * ENTRY_BYTES

    @property
    def entries_at(self) -> int:
        """Position of entry 0, which is never used."""
        return HEADER_BYTES + self.slots * SLOT_BYTES


DEFAULTS = StoreSettings(store_path_root_dir="")
"""The store's settings where nobody changes them."""

DEFAULT_SHAPE = IndexShape(DEFAULTS.max_hash_slot_num, DEFAULTS.max_index_num)


def read_header(descriptor: int) -> IndexHeader:
    """The header of an open file; zeros where it is too short."""
    data = os.pread(descriptor, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
    return IndexHeader._make(HEADER.unpack(data))


def find_shape(
    descriptor: int, size: int, header: IndexHeader, hint: IndexShape
) -> IndexShape | None:
    """The shape of an open file with entries: the hint's, the default, or what its content says.

    The number of slots is that with which the first entries make sense: they lie after the slots,
    have rising offsets, and most are reached from their slot. (A kill may leave one that is not.)
    None: no number fits.
    """
    for shape in (hint, DEFAULT_SHAPE):
        if shape.slots and shape.entries and shape.size == size:
            return shape
    candidates = [(size - HEADER_BYTES) // 84]
    candidates += _candidates(descriptor, size, header)
    for slots in candidates:
        rest = size - HEADER_BYTES - slots * SLOT_BYTES
        if slots < 1 or rest <= 0 or rest % ENTRY_BYTES:
            continue
        shape = IndexShape(slots, rest // ENTRY_BYTES)
        if header.entry_count <= shape.entries and _makes_sense(descriptor, shape, header):
            return shape
    return None


def _candidates(descriptor: int, size: int, header: IndexHeader) -> list[int]:
    """Numbers of slots with which the last entry has the offset that the header says."""
    after = HEADER_BYTES + ENTRY_BYTES * (header.entry_count - 1) + 4
    if header.end_offset == 0:
        most = min(_BRUTE_SLOTS_MAX, (size - HEADER_BYTES) // SLOT_BYTES)
        return list(range(1, most))
    wanted = header.end_offset.to_bytes(8, "big")
    found: list[int] = []
    position = after
    while position < size:
        window = os.pread(descriptor, _SEARCH_BYTES + 7, position)
        at = window.find(wanted)
        while 0 <= at < _SEARCH_BYTES:
            if (position + at - after) % SLOT_BYTES == 0:
                found.append((position + at - after) // SLOT_BYTES)
            at = window.find(wanted, at + 1)
        position += _SEARCH_BYTES
    return found


def _is_reached(descriptor: int, shape: IndexShape, number: int, key_hash: int) -> bool:
    """Whether the chain of entries from a hash's slot, newest first, leads to an entry."""
    slot = key_hash % shape.slots
    data = os.pread(descriptor, SLOT_BYTES, HEADER_BYTES + slot * SLOT_BYTES)
    at = int.from_bytes(data, "big")
    for _step in range(_CHAIN_MAX):
        if at <= number:
            break
        data = os.pread(descriptor, ENTRY_BYTES, shape.entries_at + at * ENTRY_BYTES)
        if len(data) < ENTRY_BYTES:
            return False
        other_hash, _offset, _seconds, previous = ENTRY.unpack(data)
        if other_hash % shape.slots != slot or not number <= previous < at:
            return False
        at = previous
    return at == number


def _makes_sense(descriptor: int, shape: IndexShape, header: IndexHeader) -> bool:
    probed = min(header.entry_count - 1, _PROBED_ENTRIES)
    data = os.pread(descriptor, ENTRY_BYTES * (probed + 1), shape.entries_at)
    if len(data) < ENTRY_BYTES * (probed + 1):
        return False
    before = header.begin_offset
    reached = 0
    for number in range(1, probed + 1):
        key_hash, offset, seconds, previous = ENTRY.unpack_from(data, number * ENTRY_BYTES)
        is_first_wrong = number == 1 and offset != header.begin_offset
        is_wrong = key_hash < 0 or offset < before or seconds < 0 or not 0 <= previous < number
        if is_first_wrong or is_wrong:
            return False
        reached += _is_reached(descriptor, shape, number, key_hash)
        before = offset
    if reached * 2 <= probed:
        return False
    last_at = shape.entries_at + (header.entry_count - 1) * ENTRY_BYTES
    last = os.pread(descriptor, ENTRY_BYTES, last_at)
    return len(last) == ENTRY_BYTES and ENTRY.unpack(last)[1] == header.end_offset
