"""A unit of ``consumequeue_ext``: see :mod:`kerolox.store.queues.consume_queue_ext`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

UNIT_HEAD = struct.Struct(">hqqh")
ADDRESS_BASE = -(1 << 63)
ADDRESS_MAX = -0x80000000 - 1


class ExtUnit(NamedTuple):
    """One unit."""

    tags_code: int
    store_time: int
    bit_map: bytes

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return UNIT_HEAD.size + len(self.bit_map)


class BitFilter(NamedTuple):
    """A filter by bits (``BloomFilter``): what it rules out can't be wanted."""

    bits: int
    """Length of the maps that were made with it; others say nothing."""
    born_ms: int
    """Maps of messages stored at that time or earlier say nothing of it."""
    positions: Sequence[int]

    def rules_out(self, unit: ExtUnit) -> bool:
        """The unit tells that its message is not wanted."""
        bit_map = unit.bit_map
        return (
            unit.store_time > self.born_ms
            and bool(bit_map)
            and len(bit_map) * 8 == self.bits
            and any(
                not bit_map[position // 8] >> position % 8 & 1
                for position in self.positions
                if position < self.bits
            )
        )


def is_ext_address(code: int) -> bool:
    """What an entry holds in place of a tags code is the address of a unit."""
    return code <= ADDRESS_MAX
