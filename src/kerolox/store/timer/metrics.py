"""How many messages wait, by topic (``TimerMetrics``: ``config/timermetrics``, answer to
GET_TIMER_METRICS, 61)."""

from __future__ import annotations

import msgspec

from kerolox.protocol.bodies import decode_body, encode_body
from kerolox.protocol.names import Int64, TopicName


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class TimerVersion(_Struct, frozen=True, kw_only=True):
    """``DataVersion`` of RocketMQ 5."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0


class TopicWaiting(_Struct, frozen=True, kw_only=True):
    """The messages of a topic."""

    count: Int64 = 0
    time_stamp: Int64 = 0
    """Of the last change, in milliseconds since the epoch."""


class TimerMetrics(_Struct, frozen=True, kw_only=True):
    """The file."""

    data_version: TimerVersion = TimerVersion()
    timing_count: dict[TopicName, TopicWaiting] = {}

    def encode(self) -> bytes:
        """As RocketMQ writes it, on one line. Errors: see :func:`encode_body`."""
        return encode_body(self)


def decode_metrics(data: bytes | memoryview) -> TimerMetrics:
    """Read a file or an answer; BodyError: it is malformed."""
    return decode_body(data, TimerMetrics)
