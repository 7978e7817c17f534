"""The id that a producer gives to each message (``MessageClientIDSetter`` of RocketMQ).

Bytes, then upper-case hex: ip (4 or 16), process id (low 16 bits), a number that tells factories of
one process apart (4; Java puts a class loader's hash there), milliseconds since the first of the
month in local time (4), a counter (2). Two ids of one factory are equal only if 65,536 are made
within one millisecond.
"""

from __future__ import annotations

import ipaddress
import time
from typing import TYPE_CHECKING

from kerolox.codec.counters import MessageIds

if TYPE_CHECKING:
    from kerolox.codec.sending import MakeIds

CLOCK_STEP_BACK_MS_MAX = 1_000_000
"""A clock that steps back by less than this at the month's start counts as the start."""


def month_start_ms(now_ms: int) -> int:
    """The first millisecond of the month of ``now_ms``, in local time."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000


def next_month_start_ms(now_ms: int) -> int:
    """The first millisecond of the month after that of ``now_ms``, in local time."""
    local = time.localtime(now_ms / 1000)
    # mktime takes month 13 as January of the next year.
    return int(time.mktime((local.tm_year, local.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))) * 1000


class UniqueIdFactory:
    """Makes message ids for one client, at an IPv4 or IPv6 address. ``process_id``: only the low 16
    bits are used. ``salt``, its low 32 bits, tells this factory apart from others of the process.
    ``make_ids`` makes what counts the ids: that of the codec that uses them.
    """

    def __init__(
        self,
        host: str,
        process_id: int,
        salt: int,
        make_ids: MakeIds = MessageIds,
    ) -> None:
        packed = ipaddress.ip_address(host).packed
        fixed = packed + (process_id & 0xFFFF).to_bytes(2, "big")
        self._prefix = (fixed + (salt & 0xFFFFFFFF).to_bytes(4, "big")).hex().upper()
        self._start_ms = 0
        self._next_start_ms = 0
        self.ids = make_ids(self.head)
        """The ids, for codecs."""
        self.next = self.ids.next
        """Gives the next id at some milliseconds since the epoch."""

    def head(self, now_ms: int) -> str:
        """What all ids of a millisecond begin with; 4 hex digits follow, which count."""
        if now_ms >= self._next_start_ms:
            self._start_ms = month_start_ms(now_ms)
            self._next_start_ms = next_month_start_ms(now_ms)
        elapsed_ms = now_ms - self._start_ms
        if -CLOCK_STEP_BACK_MS_MAX < elapsed_ms < 0:
            elapsed_ms = 0
        return f"{self._prefix}{elapsed_ms & 0xFFFFFFFF:08X}"
