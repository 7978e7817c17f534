"""The wall clock, in RocketMQ's unit."""

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


_STEADY_FROM_NS = time.time_ns() - time.monotonic_ns()


def steady_ms() -> int:
    """Milliseconds since the epoch, as they are counted on evenly from the start of this process:
    when the wall clock is set, forth or back, this one is not. For durations and deadlines."""
    return (_STEADY_FROM_NS + time.monotonic_ns()) // 1_000_000


def uptime_ms() -> int:
    """Milliseconds that nobody sets, from a start that all processes of one boot of a Linux machine
    share."""
    return time.monotonic_ns() // 1_000_000
