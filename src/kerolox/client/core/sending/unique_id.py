"""The id that a producer gives to each message (``MessageClientIDSetter`` of RocketMQ).

Bytes, then upper-case hex: ip (4 or 16), process id (low 16 bits), a number that tells factories of
one process apart (4; Java puts a class loader's hash there), milliseconds since the first of the
month in local time (4), a counter (2). Two ids of one factory are equal only if 65,536 are made
within one millisecond.
"""

from __future__ import annotations

import ipaddress
import time

CLOCK_STEP_BACK_MS_MAX = 1_000_000
"""A clock that steps back by less than this at the month's start counts as the start."""


_HEX = [f"{number:02X}" for number in range(256)]


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
    """Makes message ids for one client.

    Args:
        host: our IP address, IPv4 or IPv6.
        process_id: only the low 16 bits are used.
        salt: tells this factory apart from others of the process; the low 32 bits are used.
    """

    def __init__(self, host: str, process_id: int, salt: int) -> None:
        packed = ipaddress.ip_address(host).packed
        fixed = packed + (process_id & 0xFFFF).to_bytes(2, "big")
        self._prefix = (fixed + (salt & 0xFFFFFFFF).to_bytes(4, "big")).hex().upper()
        self._counter = 0
        self._start_ms = 0
        self._next_start_ms = 0
        self._last_ms = -1
        self._last_head = ""

    def next(self, now_ms: int) -> str:
        """The next id; ``now_ms`` is milliseconds since the epoch."""
        if now_ms != self._last_ms:
            self._last_head = self._head(now_ms)
            self._last_ms = now_ms
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._last_head}{_HEX[counter >> 8]}{_HEX[counter & 0xFF]}"

    def _head(self, now_ms: int) -> str:
        """What all ids of a millisecond begin with."""
        if now_ms >= self._next_start_ms:
            self._start_ms = month_start_ms(now_ms)
            self._next_start_ms = next_month_start_ms(now_ms)
        elapsed_ms = now_ms - self._start_ms
        if -CLOCK_STEP_BACK_MS_MAX < elapsed_ms < 0:
            elapsed_ms = 0
        return f"{self._prefix}{elapsed_ms & 0xFFFFFFFF:08X}"
