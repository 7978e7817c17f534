"""The timer log: a unit for each message that waits (``TimerLog``, folder ``timerlog``).

Files have a fixed length and are named after the position where they begin. A unit is big-endian
and never crosses a file::

    size 4 (52) | position of the unit before it in its slot 8 | magic 4 | time of writing 8 |
    delay from it 4 | offset of the message in the commit log 8 | its size 4 |
    hash of its topic 4 | 0 8

A blank unit ends a file: the bytes that are left 4, 0 8, magic 4. So 16 bytes stay after each unit.
Zeros follow what is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

from kerolox.protocol.records import BLANK_MAGIC

FILE_BYTES = 100 * 1024 * 1024
"""``mappedFileSizeTimerLog``."""

UNIT = struct.Struct(">iqiqiqiiq")
BLANK = struct.Struct(">iqI")
FILE_BYTES_MIN = UNIT.size + BLANK.size

_MAGIC_BITS = 0xF


class UnitMagic(IntFlag):
    """What a unit is for."""

    DEFAULT = 1
    """A message; all have it."""
    ROLL = 2
    """Its moment is not yet that of the message, which goes to the timer's topic again."""
    DELETE = 4
    """A command to delete a message of the same slot."""


DEFAULT, ROLL, DELETE = map(int, (UnitMagic.DEFAULT, UnitMagic.ROLL, UnitMagic.DELETE))
"""As numbers, of which the operators cost less."""


class TimerUnit(NamedTuple):
    """One unit."""

    previous: int
    """Position of the unit before it in its slot; -1: it is the first."""
    magic: int
    """A :class:`UnitMagic`."""
    write_ms: int
    """Time of the wheel's writer when it was written."""
    delay_ms: int
    """From ``write_ms`` to its moment; negative where that was over."""
    offset: int
    """Of the message in the commit log."""
    size: int
    """Bytes of the message."""
    topic_hash: int = 0
    """``hashCode`` of its topic."""

    @property
    def time_ms(self) -> int:
        """Its moment, in milliseconds since the epoch."""
        return self.write_ms + self.delay_ms

    @property
    def weight(self) -> int:
        """What it counts in its slot."""
        return -1 if self.magic & DELETE else 1

    def pack(self) -> bytes:
        """As it is in the file; struct.error: a number is too large for its place."""
        return UNIT.pack(UNIT.size, *self, 0)


def place(position: int, file_bytes: int = FILE_BYTES) -> tuple[int, bytes]:
    """Where the next unit goes, behind ``position``, the end of the log, and what has to be written
    before it: the blank unit that ends the file there; empty where the unit follows what is there.
    ``file_bytes``: of each file, :data:`FILE_BYTES_MIN` at least.
    """
    left = file_bytes - position % file_bytes
    if left >= UNIT.size + BLANK.size:
        return position, b""
    return position + left, BLANK.pack(left, 0, BLANK_MAGIC)


def last_unit_at(file_bytes: int = FILE_BYTES) -> int:
    """Where the last unit of a full file begins (``getOffsetForLastUnit``): what it leads to is the
    newest message that the file knows."""
    return (file_bytes - BLANK.size) // UNIT.size * UNIT.size - UNIT.size


def unit_at(data: bytes | memoryview, at: int, position: int) -> TimerUnit | None:
    """The unit of a file, or of the begin of it, at a place in it, which is at ``position`` in the
    log; None: there is none, but zeros, a blank or damage.
    """
    if at < 0 or at + UNIT.size > len(data):
        return None
    return _sound(UNIT.unpack_from(data, at), position)


def _sound(fields: tuple[int, ...], position: int) -> TimerUnit | None:
    """The unit of these numbers, if they can be one's. RocketMQ examines the size and the magic
    alone; a chain that leads forward would have no end."""
    unit_size, previous, magic, write_ms, delay_ms, offset, size, topic_hash, _ = fields
    is_sound = (
        unit_size == UNIT.size
        and 0 < magic <= _MAGIC_BITS
        and -1 <= previous < position
        and write_ms > 0
        and offset >= 0
        and size > 0
    )
    if not is_sound:
        return None
    return TimerUnit(previous, magic, write_ms, delay_ms, offset, size, topic_hash)


class TimerLogFile:
    """The units of one file, in their order.

    Attributes:
        end: position behind the last unit that was given.
        is_full: a blank unit follows there, or the file has no place for another one: the log goes
            on in the next file. Else it ends, or is damaged there.
    """

    def __init__(self, data: bytes | memoryview, start: int, file_bytes: int | None = None) -> None:
        """It was not read yet. ``data``: the file, or what there is of it before a hole at its end.
        ``start``: position of the file in the log. ``file_bytes``: how long the file is; None: as
        long as ``data``.
        """
        self._data = data
        self._start = start
        self._file_bytes = len(data) if file_bytes is None else file_bytes
        self.end = start
        self.is_full = False

    def __iter__(self) -> Iterator[tuple[int, TimerUnit]]:
        """Each unit with its position, up to the first that can't be one."""
        self.end, self.is_full = self._start, False
        whole = len(self._data) // UNIT.size * UNIT.size
        for fields in UNIT.iter_unpack(memoryview(self._data)[:whole]):
            unit = _sound(fields, self.end)
            if unit is None:
                break
            yield self.end, unit
            self.end += UNIT.size
        at = self.end - self._start
        left = self._file_bytes - at
        self.is_full = left < BLANK.size or (
            at + BLANK.size <= len(self._data)
            and BLANK.unpack_from(self._data, at) == (left, 0, BLANK_MAGIC)
        )
