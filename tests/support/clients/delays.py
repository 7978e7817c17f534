"""Delayed messages at a steady rate while their broker is killed once; when each of them came."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.client import Producer, ProducerSettings, PullConsumer
from kerolox.errors import KeroloxError
from kerolox.message import Message
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.servers.up import Up

__all__ = ["Delays", "Outage", "run"]

TOPIC = "Delayed"
TICK_SECONDS = 0.025
QUIET_SECONDS_MAX = SECONDS_MAX
"""How long after the last one is due nothing may come before what is missing is lost."""


@dataclass(frozen=True)
class Outage:
    """When the broker was killed and when it answered again, ms since the epoch."""

    killed_ms: int
    ready_ms: int


@dataclass
class Delays:
    """What became of the messages, by body."""

    delay_ms: dict[bytes, int] = field(default_factory=dict)
    asked_ms: dict[bytes, int] = field(default_factory=dict)
    """When the first try to send it began."""
    acknowledged_ms: dict[bytes, int] = field(default_factory=dict)
    came_ms: dict[bytes, list[int]] = field(default_factory=dict)
    """Store times under the real topic: one, or more when it was delivered again."""
    outage: Outage | None = None

    @property
    def lost(self) -> set[bytes]:
        """Acknowledged and never delivered."""
        return self.acknowledged_ms.keys() - self.came_ms.keys()

    @property
    def early(self) -> dict[bytes, int]:
        """Delivered before their time: by how many ms."""
        by = {
            body: self.asked_ms[body] + self.delay_ms[body] - min(times)
            for body, times in self.came_ms.items()
        }
        return {body: early for body, early in by.items() if early > 0}

    @property
    def again(self) -> int:
        """Deliveries beyond the first."""
        return sum(len(times) - 1 for times in self.came_ms.values())

    def late_ms(self) -> list[int]:
        """By how much each came late, in order, of those that were not due in the outage."""
        late = []
        for body, acknowledged in self.acknowledged_ms.items():
            due = acknowledged + self.delay_ms[body]
            down = self.outage is not None and (
                self.outage.killed_ms <= due <= self.outage.ready_ms
                or self.asked_ms[body] <= self.outage.ready_ms <= acknowledged
            )
            if not down and body in self.came_ms:
                late.append(max(min(self.came_ms[body]) - due, 0))
        return sorted(late)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def run(
    up: Up,
    *,
    count: int,
    rate: int,
    delays_ms: Sequence[int],
    kill_after: int | None,
    has_levels: bool = True,
) -> Delays:
    """Send ``count`` messages at ``rate`` a second, of all levels in turn, and wait for all.

    Args:
        up: the broker; it is killed and started again once ``kill_after`` were acknowledged.
        count: messages in all.
        rate: messages a second.
        delays_ms: the delay of level 1, 2 ...; the broker's setting must say the same.
        kill_after: acknowledged messages before the kill; None: no kill.
        has_levels: the delays are those of levels; else the timer counts them.
    """
    found = Delays()
    settings = ProducerSettings(send_timeout_ms=1_000)
    async with Producer("delays", up.namesrv, settings=settings) as producer:
        await producer.create_topic(TOPIC, queues=4)
        sends = [
            asyncio.ensure_future(
                _send(producer, found, number, rate, delays_ms, has_levels=has_levels)
            )
            for number in range(count)
        ]
        if kill_after is not None:
            await until(lambda: len(found.acknowledged_ms) >= kill_after)
            killed = _now_ms()
            up.kill()
            await asyncio.to_thread(up.start)
            found.outage = Outage(killed, _now_ms())
        await asyncio.gather(*sends)
    await _collect(up, found)
    return found


async def _send(
    producer: Producer,
    found: Delays,
    number: int,
    rate: int,
    delays_ms: Sequence[int],
    *,
    has_levels: bool,
) -> None:
    await asyncio.sleep(number / rate)
    level = number % len(delays_ms) + 1
    body = b"%d" % number
    found.delay_ms[body] = delays_ms[level - 1]
    found.asked_ms[body] = _now_ms()
    while body not in found.acknowledged_ms:
        try:
            if has_levels:
                await producer.send(Message(TOPIC, body, delay_level=level))
            else:
                after = delays_ms[level - 1] / 1_000
                await producer.send(Message(TOPIC, body), deliver_after=after)
        except KeroloxError:
            await asyncio.sleep(TICK_SECONDS)
        else:
            found.acknowledged_ms[body] = _now_ms()


async def _collect(up: Up, found: Delays) -> None:
    """Read the topic until all are there."""
    last_due = max(at + found.delay_ms[body] for body, at in found.acknowledged_ms.items())
    deadline_ms = last_due + int(QUIET_SECONDS_MAX * 1000)
    async with PullConsumer("delays", up.namesrv) as consumer:
        queues = await consumer.queues(TOPIC)
        offsets = dict.fromkeys(queues, 0)
        while found.lost and _now_ms() < deadline_ms:
            results = [
                await consumer.pull(queue, offset, max_messages=32)
                for queue, offset in offsets.items()
            ]
            offsets = dict(zip(queues, (each.next_offset for each in results), strict=True))
            for message in (message for each in results for message in each.messages):
                found.came_ms.setdefault(message.body, []).append(message.store_timestamp)
            if not any(each.messages for each in results):
                await asyncio.sleep(TICK_SECONDS)
