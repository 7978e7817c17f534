"""What brokers keep back: delayed messages until their time, halves of open transactions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from starlette.responses import Response

from kerolox.admin import (
    Access,
    broker_runtime,
    broker_settings,
    describe_topic,
    duration_ms,
    get_offset,
)
from kerolox.admin.asking import answers_of
from kerolox.admin.messages.reading import read_messages
from kerolox.clock import now_ms
from kerolox.console.rendering import preview_text
from kerolox.console.visit import Visit
from kerolox.errors import NotFoundError, TopicRouteNotFoundError
from kerolox.message import MessageExt, MessageQueue
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP

__all__ = ["delayed", "transactions"]

SHOWN_MAX = 50
HALVES_READ_MAX, OPS_READ_MAX = 2_000, 10_000
_LEVEL_OFFSET = "scheduleMessageOffset_"


@dataclass(frozen=True, slots=True)
class Level:
    """The messages of one delay level on one broker."""

    broker: str
    number: int
    delay_ms: int
    next_offset: int
    """Of the message that is delivered next."""
    end_offset: int

    @property
    def waiting(self) -> int:
        """How many wait."""
        return max(self.end_offset - self.next_offset, 0)


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """The open transactions of one broker."""

    halves: list[MessageExt]
    read: int
    is_all: bool
    """False: there was more than is read for a page."""


async def delayed(visit: Visit) -> Response:
    """Levels with how many wait; of one level the next messages."""
    masters = await visit.console.cluster.masters()
    found, failed = await answers_of(
        masters, lambda name: _levels(visit.admin.access, name, masters[name])
    )
    levels = [level for each in found.values() for level in each]
    broker, number = visit.asked("broker"), visit.number("level", 0)
    chosen = next((e for e in levels if (e.broker, e.number) == (broker, number)), None)
    messages = [] if chosen is None else await _next(visit.admin.access, chosen)
    return visit.page(
        "delayed.html",
        levels=[level for level in levels if level.waiting],
        failed=failed,
        chosen=chosen,
        messages=messages,
        now_ms=now_ms(),
        preview=preview_text,
    )


async def transactions(visit: Visit) -> Response:
    """Halves that are neither committed nor rolled back."""
    masters = await visit.console.cluster.masters()
    found, failed = await answers_of(
        masters, lambda name: _open_halves(visit.admin.access, name, masters[name])
    )
    return visit.page(
        "transactions.html",
        brokers=found,
        failed=failed,
        now_ms=now_ms(),
        most=HALVES_READ_MAX,
        preview=preview_text,
    )


async def _levels(access: Access, broker: str, address: str) -> list[Level]:
    values = (await broker_runtime(access, address)).values
    delays = (await broker_settings(access, address)).get("messageDelayLevel", "").split()
    bounds = {
        each.queue.queue_id: (each.min_offset, each.max_offset)
        for each in (await describe_topic(access, SCHEDULE_TOPIC)).queues
        if each.queue.broker_name == broker
    }
    levels = []
    for number, text in enumerate(delays, 1):
        first, end = bounds.get(number - 1, (0, 0))
        # A broker tells no offset of a level of which it has delivered nothing yet.
        told = values.get(f"{_LEVEL_OFFSET}{number}", "").partition(",")[0]
        begin = max(int(told), first) if told.isascii() and told.isdigit() else first
        with contextlib.suppress(ValueError):
            levels.append(Level(broker, number, duration_ms(text), begin, end))
    return levels


async def _next(access: Access, level: Level) -> list[MessageExt]:
    found = read_messages(
        access,
        SCHEDULE_TOPIC,
        broker_name=level.broker,
        queue_id=level.number - 1,
        offset=level.next_offset,
        max_messages=SHOWN_MAX,
    )
    return [message async for message in found]


async def _open_halves(access: Access, broker: str, address: str) -> OpenHalves:
    """Halves from where the broker's check is, without those that an op message ends."""
    begins = [
        max(await get_offset(access, TRANSACTION_GROUP, queue, broker=address), 0)
        for queue in (MessageQueue(HALF_TOPIC, broker, 0), MessageQueue(OP_HALF_TOPIC, broker, 0))
    ]
    halves = await _from(access, HALF_TOPIC, broker, begins[0], HALVES_READ_MAX)
    ops = await _from(access, OP_HALF_TOPIC, broker, begins[1], OPS_READ_MAX) if halves else []
    ended = {
        int(text)
        for op in ops
        # RocketMQ 5 has several offsets in one.
        for text in op.body.decode("ascii", "replace").split(",")
        if text.isascii() and text.isdigit() and len(text) < 19
    }
    return OpenHalves(
        [half for half in halves if half.queue_offset not in ended],
        len(halves),
        len(halves) < HALVES_READ_MAX and len(ops) < OPS_READ_MAX,
    )


async def _from(
    access: Access, topic: str, broker: str, offset: int, most: int
) -> list[MessageExt]:
    try:
        found = read_messages(
            access, topic, broker_name=broker, queue_id=0, offset=offset, max_messages=most
        )
        return [message async for message in found]
    except (TopicRouteNotFoundError, NotFoundError):
        return []
