"""The Bloom filter of consumers with expressions (``BloomFilter``, ``BitsArray``).

Each consumer group of a topic has a few bits of a map; for each message the bits of the groups
whose expressions match are set, and stored beside its queue entry. Bit positions come from
MurmurHash3 of ``group#topic``, so that Java and we agree about a map on disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_M64 = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Positions of bits; see :meth:`create`."""

    bits: int
    """Length of the map."""
    hashes: int
    """Bits of one group."""

    @classmethod
    def create(cls, error_rate: int, expected: int) -> BloomFilter:
        """A filter for ``expected`` groups with at most ``error_rate`` per cent of false hits."""
        chance = error_rate / 100
        hashes = math.ceil(math.log(chance, 0.5))
        bits = math.ceil(expected * math.log2(1 / chance) * math.log2(math.e))
        return cls(-(-bits // 8) * 8, hashes)

    def positions(self, text: str) -> list[int]:
        """The bits of a text."""
        value = murmur3_long(text.encode())
        low, high = _signed(value & 0xFFFFFFFF), _signed(value >> 32)
        found = []
        for number in range(1, self.hashes + 1):
            combined = _signed((low + number * high) & 0xFFFFFFFF)
            found.append((~combined if combined < 0 else combined) % self.bits)
        return found


def murmur3_long(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0, as an unsigned number."""
    first = second = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one = int.from_bytes(data[at : at + 8], "little")
        other = int.from_bytes(data[at + 8 : at + 16], "little")
        first ^= _mix_first(one)
        first = (_rotated(first, 27) + second) & _M64
        first = (first * 5 + 0x52DCE729) & _M64
        second ^= _mix_second(other)
        second = (_rotated(second, 31) + first) & _M64
        second = (second * 5 + 0x38495AB5) & _M64
    rest = data[whole:]
    second ^= _mix_second(int.from_bytes(rest[8:], "little"))
    first ^= _mix_first(int.from_bytes(rest[:8], "little"))
    first ^= len(data)
    second ^= len(data)
    first = (first + second) & _M64
    second = (second + first) & _M64
    return (_finished(first) + _finished(second)) & _M64


def _mix_first(value: int) -> int:
    return _rotated(value * _C1 & _M64, 31) * _C2 & _M64


def _mix_second(value: int) -> int:
    return _rotated(value * _C2 & _M64, 33) * _C1 & _M64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _M64


def _finished(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _M64
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _M64
    return value ^ value >> 33


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
