"""Avoiding slow brokers: RocketMQ's latency fault tolerance, off unless it is switched on.

How long a send took decides how long its broker is avoided (:data:`AVOID_MS_BY_LATENCY_MS`); a
failed send counts as :data:`FAILED_LATENCY_MS`. A broker is never shut out: when all are being
avoided, one of the better half is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kerolox.client.core.sending.queue_choice import QueueChooser
    from kerolox.message import MessageQueue

AVOID_MS_BY_LATENCY_MS = (
    (50, 0),
    (100, 0),
    (550, 30_000),
    (1_000, 60_000),
    (2_000, 120_000),
    (3_000, 180_000),
    (15_000, 600_000),
)
"""From a latency on, how long to avoid the broker (``latencyMax``, ``notAvailableDuration``)."""

FAILED_LATENCY_MS = 30_000
"""What a send counts for that got no good answer."""

BROKERS_MAX = 10_000
"""Brokers that are remembered; the one noted first goes."""


class _Fault(NamedTuple):
    latency_ms: float
    available_from_ms: float


def avoid_ms(latency_ms: float) -> int:
    """How long a broker is avoided after a send that took so long."""
    avoid = 0
    for least_ms, duration_ms in AVOID_MS_BY_LATENCY_MS:
        if latency_ms >= least_ms:
            avoid = duration_ms
    return avoid


class LatencyFaults:
    """The latency of brokers, as one producer measured it (``MQFaultStrategy``)."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """``now_ms``: a clock that never goes back."""
        self._now_ms = now_ms
        self._faults: dict[str, _Fault] = {}
        self._next = 0

    def note(self, broker_name: str, latency_ms: float, *, failed: bool = False) -> None:
        """A send to this broker took so long, or failed."""
        until = self._now_ms() + avoid_ms(FAILED_LATENCY_MS if failed else latency_ms)
        if broker_name not in self._faults and len(self._faults) >= BROKERS_MAX:
            del self._faults[next(iter(self._faults))]
        self._faults[broker_name] = _Fault(latency_ms, until)

    def is_available(self, broker_name: str) -> bool:
        """The broker need not be avoided now."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.available_from_ms <= self._now_ms()

    def choose(self, chooser: QueueChooser) -> MessageQueue:
        """The next queue of an available broker; if there is none, one of the least bad."""
        for _ in chooser.queues:
            queue = chooser.next()
            if self.is_available(queue.broker_name):
                return queue
        broker_name = self._least_bad()
        queues = [queue for queue in chooser.queues if queue.broker_name == broker_name]
        if queues:
            return queues[self._next % len(queues)]
        # It has no queue of this topic (any more); the next choice examines another one.
        self._faults.pop(broker_name, None)
        return chooser.next()

    def _least_bad(self) -> str:
        """In turn the brokers of the better half (``pickOneAtLeast``); some are known."""
        now = self._now_ms()
        ranked = sorted(
            self._faults,
            key=lambda name: (self._faults[name].available_from_ms > now, *self._faults[name]),
        )
        self._next += 1
        return ranked[self._next % max(len(ranked) // 2, 1)]
