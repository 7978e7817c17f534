"""How far the timer is (``TimerCheckpoint``, file ``config/timercheck``; answer to
GET_TIMER_CHECK_POINT, 60). Big-endian longs, in a file of a page::

    time of the last slot that was delivered | flushed end of the timer log |
    end in the timer topic's queue | the same of the master |
    state version | time | counter   of the data version

RocketMQ takes an answer that ends before the data version, too.

Behind that the file has a part of our own, which RocketMQ leaves alone: what is delivered of slots
that are read twice, since the clock was set back. It counts while the numbers before it are the
same::

    "KXTP" | number of pairs 4 | the seven longs again | moment, position of each pair

So does the end of the page, which says that the run that wrote it went on::

    "KXTO" | the seven longs again
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FILE_BYTES = 4096
_WITHOUT_VERSION = struct.Struct(">qqqq")
_WHOLE = struct.Struct(">qqqqqqq")
_PASSED_AT = 64
_PASSED_HEAD = struct.Struct(">4si")
_PASSED_MAGIC = b"KXTP"
_PAIR = struct.Struct(">qq")
_PAIRS_AT = _PASSED_AT + _PASSED_HEAD.size + _WHOLE.size
_OPEN_MAGIC = b"KXTO"
_OPEN_AT = FILE_BYTES - len(_OPEN_MAGIC) - _WHOLE.size
PASSED_MAX = (_OPEN_AT - _PAIRS_AT) // _PAIR.size
"""Pairs that the file has space for."""


class TimerCheckpoint(NamedTuple):
    """Offsets are entries of the queue, positions bytes, times milliseconds since the epoch."""

    last_read_ms: int = 0
    """``lastReadTimeMs``: all slots before it are delivered; a slave has its master's."""
    log_end: int = 0
    """``lastTimerLogFlushPos``: the timer log is on the disk up to there."""
    queue_offset: int = 0
    """``lastTimerQueueOffset``: entries before it are in the timer log."""
    master_queue_offset: int = 0
    """``masterTimerQueueOffset``: how far the master is; its own on a master."""
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0
    passed: tuple[tuple[int, int], ...] = ()
    """Slots before a moment are delivered up to a position of the timer log; the last pair has the
    first moment. Of the file alone."""
    is_open: bool = False
    """More may be delivered than it says: the run that wrote it went on. Of the file alone."""

    def encode(self) -> bytes:
        """As the wire has it; struct.error: a number is no long."""
        return _WHOLE.pack(*self[:7])

    def file(self) -> bytes:
        """The file."""
        numbers, passed = self.encode(), self.passed[-PASSED_MAX:]
        own = _PASSED_HEAD.pack(_PASSED_MAGIC, len(passed)) + numbers if passed else b""
        pairs = b"".join(_PAIR.pack(*pair) for pair in passed)
        page = (numbers.ljust(_PASSED_AT, b"\0") + own + pairs).ljust(_OPEN_AT, b"\0")
        return (page + (_OPEN_MAGIC + numbers if self.is_open else b"")).ljust(FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes | memoryview) -> TimerCheckpoint:
    """Read a file or an answer; ValueError: it is too short, or a number is negative, which none
    can be.
    """
    if len(data) < _WITHOUT_VERSION.size:
        raise ValueError(
            f"a timer checkpoint has {len(data)} bytes, and at least {_WITHOUT_VERSION.size} are "
            "expected"
        )
    layout = _WHOLE if len(data) >= _WHOLE.size else _WITHOUT_VERSION
    found = TimerCheckpoint(*layout.unpack_from(data))
    if min(found[:7]) < 0:
        raise ValueError(f"a timer checkpoint has a negative number: {found}")
    is_open = data[_OPEN_AT:FILE_BYTES] == _OPEN_MAGIC + data[: _WHOLE.size]
    return found._replace(passed=_passed(data), is_open=is_open)


def _passed(data: bytes | memoryview) -> tuple[tuple[int, int], ...]:
    if len(data) < FILE_BYTES:
        return ()
    magic, count = _PASSED_HEAD.unpack_from(data, _PASSED_AT)
    copied_at = _PASSED_AT + _PASSED_HEAD.size
    is_current = data[copied_at : copied_at + _WHOLE.size] == data[: _WHOLE.size]
    if magic != _PASSED_MAGIC or not is_current or not 0 < count <= PASSED_MAX:
        return ()
    return tuple(_PAIR.unpack_from(data, _PAIRS_AT + n * _PAIR.size) for n in range(count))
