"""Requests of a controller, counted as RocketMQ's metrics count them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from kerolox.protocol.codes import RequestCode

LATENCY_ENDS_US = (
    *(float(step * 10**power) for power in range(7) for step in (1, 3, 5)),
    10_000_000.0,
)
"""Upper ends of the buckets of ``request_latency``, microseconds, as RocketMQ has them."""

_TYPES: Mapping[int, str] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: "CONTROLLER_ALTER_SYNC_STATE_SET",
    RequestCode.CONTROLLER_ELECT_MASTER: "CONTROLLER_ELECT_MASTER",
    RequestCode.CONTROLLER_REGISTER_BROKER: "CONTROLLER_REGISTER_BROKER",
    RequestCode.CONTROLLER_GET_REPLICA_INFO: "CONTROLLER_GET_REPLICA_INFO",
    RequestCode.CONTROLLER_GET_METADATA_INFO: "CONTROLLER_GET_METADATA_INFO",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: "CONTROLLER_GET_SYNC_STATE_DATA",
    RequestCode.BROKER_HEARTBEAT: "CONTROLLER_BROKER_HEARTBEAT",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "CONTROLLER_UPDATE_CONTROLLER_CONFIG",
    RequestCode.GET_CONTROLLER_CONFIG: "CONTROLLER_GET_CONTROLLER_CONFIG",
    RequestCode.CLEAN_BROKER_DATA: "CONTROLLER_CLEAN_BROKER_DATA",
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: "CONTROLLER_GET_NEXT_BROKER_ID",
    RequestCode.CONTROLLER_APPLY_BROKER_ID: "CONTROLLER_APPLY_BROKER_ID",
}
"""``request_type`` by code, as RocketMQ writes them; others are not counted."""


class RequestCounts:
    """How many requests ended how, and how long they took."""

    def __init__(self) -> None:
        """None did."""
        self.totals = Counter[tuple[str, str]]()
        """By ``request_type`` and ``request_handle_status``."""
        self.buckets: dict[str, list[int]] = {}
        self.microseconds = Counter[str]()

    def ended(self, code: int, status: str, seconds: float) -> None:
        """A request did. ``status``: ``success``, ``failed`` or ``timeout``."""
        kind = _TYPES.get(code)
        if kind is None:
            return
        self.totals[kind, status] += 1
        if status == "success":
            counts = self.buckets.setdefault(kind, [0] * (len(LATENCY_ENDS_US) + 1))
            counts[bisect_left(LATENCY_ENDS_US, seconds * 1e6)] += 1
            self.microseconds[kind] += round(seconds * 1e6)
