"""Comparing the end of a slave's log with what its master sends: where to begin, what is equal.

Equal bytes prove a common history only when a whole record is among them: it has its own offset,
its store time and its host. A blank, or the middle of a large body, may be equal by chance.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from kerolox.broker.replication.wire import ReplicationError
from kerolox.protocol.records import MESSAGE_MAGIC, RECORD_BYTES_MIN, parse_record

COMPARED_BYTES = 64 * 1024
"""Of the end of the slave's log, which the master sends anew: they have to be equal."""
SCAN_BYTES = 1 << 20
"""Of the log, examined together for a record."""

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big")
_MAGIC_AT = 4
_HEAD = Struct(">I24xq")
"""Size and own physical offset of a record."""


class ReadableLog(Protocol):
    """The log of a slave, to be read."""

    @property
    def min_physical_offset(self) -> int:
        """Where it begins."""

    @property
    def max_physical_offset(self) -> int:
        """Behind its last whole record."""

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Its bytes from an offset on, of one file."""


class DivergedError(ReplicationError):
    """The logs of master and slave are not the same.

    Attributes:
        equal_to: below this physical offset they are; -1: nothing that was compared is.
        has_others: the master has other bytes, not only fewer.
    """

    def __init__(self, text: str, equal_to: int, *, has_others: bool = False) -> None:
        super().__init__(text)
        self.equal_to = equal_to
        self.has_others = has_others


class LogGoneError(ReplicationError):
    """The master has deleted what comes next for the slave."""


def begin_of(log: ReadableLog, low: int, top: int, back: int) -> int:
    """Where to begin so that at least ``back`` bytes before ``top`` are compared, and a record is
    among them; never below ``low``."""
    begin = max(low, top - back)
    while begin > low and not holds_record(log, begin, top):
        back *= 2
        begin = max(low, top - back)
    return begin


def holds_record(log: ReadableLog, begin: int, end: int) -> bool:
    """Whether a whole record stands anywhere in [begin, end)."""
    at = begin
    while at + RECORD_BYTES_MIN <= end:
        data = log.read_log(at, min(SCAN_BYTES, end - at))
        if not data:
            return False
        found = data.find(_MAGIC, _MAGIC_AT)
        while found >= 0:
            if _is_record(log, at + found - _MAGIC_AT, end):
                return True
            found = data.find(_MAGIC, found + 1)
        # A magic may be cut by the end of what was read; no record crosses the end of a file.
        is_cut = len(data) == SCAN_BYTES
        at += len(data) - (len(_MAGIC) + _MAGIC_AT if is_cut else 0)
    return False


def _is_record(log: ReadableLog, at: int, end: int) -> bool:
    head = log.read_log(at, _HEAD.size)
    if len(head) < _HEAD.size:
        return False
    size, own_offset = _HEAD.unpack(head)
    # A body may be full of what looks like heads: no more than these bytes is read of each.
    if own_offset != at or not RECORD_BYTES_MIN <= size <= end - at:
        return False
    data = log.read_log(at, size)
    return parse_record(data, 0, len(data), at) is not None


def equal_count(one: bytes | memoryview, other: bytes | memoryview) -> int:
    """How many bytes are equal from the first on."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    # The first difference is at low or behind it, and before high.
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
