"""How far the timer is (``TimerCheckpoint``, file ``config/timercheck``; answer to
GET_TIMER_CHECK_POINT, 60). Big-endian longs, in a file of a page::

    time of the last slot that was delivered | flushed end of the timer log |
    end in the timer topic's queue | the same of the master |
    state version | time | counter   of the data version

RocketMQ takes an answer that ends before the data version, too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FILE_BYTES = 4096
_WITHOUT_VERSION = struct.Struct(">qqqq")
_WHOLE = struct.Struct(">qqqqqqq")


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

    def encode(self) -> bytes:
        """As the wire has it.

        Raises:
            struct.error: a number is no long.
        """
        return _WHOLE.pack(*self)

    def file(self) -> bytes:
        """The file."""
        return self.encode().ljust(FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes | memoryview) -> TimerCheckpoint:
    """Read a file or an answer.

    Raises:
        ValueError: it is too short, or a number is negative, which none can be.
    """
    if len(data) < _WITHOUT_VERSION.size:
        raise ValueError(
            f"a timer checkpoint has {len(data)} bytes, and at least {_WITHOUT_VERSION.size} are "
            "expected"
        )
    layout = _WHOLE if len(data) >= _WHOLE.size else _WITHOUT_VERSION
    found = TimerCheckpoint(*layout.unpack_from(data))
    if min(found) < 0:
        raise ValueError(f"a timer checkpoint has a negative number: {found}")
    return found
