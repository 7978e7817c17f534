"""Which queue the next message goes to: round robin, away from brokers that failed or are slow, or
by what the user chooses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kerolox.client.core.routes import ROOM_END
from kerolox.errors import MessageRejectedError
from kerolox.message import Message, MessageQueue, java_hash


class QueueChooser:
    """Goes round the queues of one topic, of which there is one at least. ``start``: any number;
    where the round starts (a random one spreads producers).
    """

    def __init__(self, queues: Sequence[MessageQueue], *, start: int) -> None:
        if not queues:
            raise ValueError("no queue to choose from")
        self.queues = tuple(queues)
        self.upcoming = (start + 1) % len(self.queues)
        """The number of the next one; whoever uses it sets the one behind it (:meth:`advance`)."""

    def advance(self) -> None:
        """The next one is used."""
        self.upcoming = (self.upcoming + 1) % len(self.queues)

    def next(self, tried: Sequence[str] = ()) -> MessageQueue:
        """The next queue of a broker that was not tried; if there is none, of another one than
        the last that was; if there is only that, of it."""
        for avoided in (tried, tried[-1:]) if tried else ():
            for _ in self.queues:
                queue = self._taken()
                if queue.broker_name not in avoided:
                    return queue
        return self._taken()

    def _taken(self) -> MessageQueue:
        queue = self.queues[self.upcoming]
        self.advance()
        return queue


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
    """The latency of brokers, as one producer measured it (``MQFaultStrategy``).

    How long a send took decides how long its broker is avoided. A broker is never shut out: when
    all are being avoided, one of the better half is taken.
    """

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


Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""The choice of a message's queue, for ``selector=`` of a send.

The queues that it gets are in the order that Java's producers see: by broker name, then by number;
where the name servers have an ordered-topic setting, in its order. So Java and Kerolox choose
alike.
"""

OrderingKey = str | int
"""What keeps messages in order: those with the same key go to the same queue."""


def key_hash(key: OrderingKey) -> int:
    """``hashCode`` of a key in Java: a text as ``String``; a number as ``Integer`` where it is one,
    else as ``Long``. MessageRejectedError: it is neither a text nor a number of 64 bits.
    """
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
        raise MessageRejectedError(
            f"key {key!r} is neither a text nor a number of 64 bits; give str(...) of it"
        )
    if -(2**31) <= key < 2**31:
        return key
    low = (key ^ (key & 0xFFFF_FFFF_FFFF_FFFF) >> 32) & 0xFFFF_FFFF
    return low - 2**32 if low >= 2**31 else low


def queue_by_key(queues: Sequence[MessageQueue], key: OrderingKey) -> MessageQueue:
    """The queue of a key: the absolute remainder of its hash code (``SelectMessageQueueByHash``),
    see :func:`key_hash`.
    """
    return queues[abs(key_hash(key)) % len(queues)]


def select_by_hash(key: OrderingKey) -> Selector:
    """One queue for all messages of a key, as Java's ``SelectMessageQueueByHash`` with that key.

    Another number of queues gives keys other queues; an ordered-topic setting keeps their number
    when a broker is away.

    Args:
        key: a text or a number of 64 bits.

    Raises:
        MessageRejectedError: it is something else.
    """
    code = abs(key_hash(key))
    return lambda queues, message: queues[code % len(queues)]


def select_by_random() -> Selector:
    """Any queue (``SelectMessageQueueByRandom``)."""
    return lambda queues, message: random.choice(queues)


def select_by_machine_room(*rooms: str) -> Selector:
    """Any queue of the brokers in some machine rooms, which their names begin with
    (``room1@broker-a``). Java's ``SelectMessageQueueByMachineRoom`` is left to do; its consumers
    know rooms by the same names (``AllocateMessageQueueByMachineRoom``).

    A send raises :class:`MessageRejectedError` when no broker of the topic is in them.
    """
    beginnings = tuple(f"{room}{ROOM_END}" for room in rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.startswith(beginnings)]
        if not near:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise MessageRejectedError(
                f"no broker of topic {message.topic!r} is in machine room {' or '.join(rooms)};"
                f" its brokers are {names}"
            )
        return random.choice(near)

    return select
