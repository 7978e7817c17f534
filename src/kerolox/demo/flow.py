"""Producer → broker → consumer group, all at once: send every flight, count every delivery."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.client import Producer, PushConsumer, PushConsumerSettings, split_batches
from kerolox.errors import KeroloxError
from kerolox.message import ConsumeFromWhere, Message, MessageExt

if TYPE_CHECKING:
    from kerolox.demo.report import Progress

QUEUES = 8
CONSUMERS = 2
BATCH_MESSAGES = 200
BATCHES_IN_FLIGHT = 8
DONE_SECONDS_MAX = 30.0
STALL_SECONDS_MAX = 30.0
GROUP = "flight-counters"


@dataclass
class FlowCounts:
    """What the stage saw."""

    acknowledged: int = 0
    stored: int = 0
    """Sum over the queues of maximum minus minimum offset."""
    deliveries: Counter[str] = field(default_factory=Counter)
    """Deliveries by the producer's unique key."""
    by_consumer: list[int] = field(default_factory=list)
    send_seconds: float = 0.0
    consume_seconds: float = 0.0


async def flow(
    name_server: str, topic: str, messages: Iterable[Message], total: int, progress: Progress
) -> FlowCounts:
    """Send ``messages`` while a group of consumers counts them; ends when all have arrived.
    KeroloxError: a send fails, or nothing arrives any more although something is missing.
    """
    counts = FlowCounts(by_consumer=[0] * CONSUMERS)
    async with Producer("flight-reporters", name_server) as producer:
        await producer.create_topic(topic, queues=QUEUES)
        await _wait_until(lambda: _has_queues(producer, topic), "the topic's route")
        consumers = [_consumer(name_server, topic, index, counts) for index in range(CONSUMERS)]
        try:
            for consumer in consumers:
                await consumer.start()
            # Queues that change hands while messages flow would be delivered twice in part.
            await _wait_until(lambda: _is_shared(consumers, topic), "the group's share-out")
            await _send_and_count(producer, messages, total, counts, progress)
        finally:
            for consumer in consumers:
                await consumer.close()
        for queue in await producer.queues(topic):
            counts.stored += await producer.max_offset(queue) - await producer.min_offset(queue)
    return counts


async def _send_and_count(
    producer: Producer,
    messages: Iterable[Message],
    total: int,
    counts: FlowCounts,
    progress: Progress,
) -> None:
    started = time.monotonic()
    sending = asyncio.create_task(_send_all(producer, messages, counts))
    try:
        last, last_change = -1, started
        while not (sending.done() and len(counts.deliveries) >= total):
            progress.show(
                f"sent {counts.acknowledged:,} of {total:,}, consumed {len(counts.deliveries):,}"
            )
            await asyncio.sleep(0.1)
            if sending.done():
                sending.result()
                counts.send_seconds = counts.send_seconds or time.monotonic() - started
            arrived = counts.deliveries.total()
            if arrived != last:
                last, last_change = arrived, time.monotonic()
            elif time.monotonic() - last_change > STALL_SECONDS_MAX:
                raise KeroloxError(
                    f"{total - len(counts.deliveries):,} messages did not arrive: nothing was "
                    f"delivered for {STALL_SECONDS_MAX:g} s"
                )
        counts.send_seconds = counts.send_seconds or time.monotonic() - started
        counts.consume_seconds = time.monotonic() - started
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_all(producer: Producer, messages: Iterable[Message], counts: FlowCounts) -> None:
    batches = split_batches(messages, count_max=BATCH_MESSAGES)

    async def worker() -> None:
        # Workers share one iterator, so that only as many batches exist as are in flight.
        for batch in batches:
            result = await producer.send_batch(batch)
            if not result.is_ok:
                raise KeroloxError(f"a batch was answered {result.status.name}")
            counts.acknowledged += len(result.offset_message_id.split(","))

    await asyncio.gather(*(worker() for _ in range(BATCHES_IN_FLIGHT)))


def _consumer(name_server: str, topic: str, index: int, counts: FlowCounts) -> PushConsumer:
    async def count(messages: list[MessageExt]) -> None:
        counts.deliveries.update([message.unique_key for message in messages])
        counts.by_consumer[index] += len(messages)

    settings = PushConsumerSettings(
        consume_batch_max=32,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        instance_name=f"counter-{index}",
    )
    consumer = PushConsumer(GROUP, name_server, settings=settings)
    consumer.subscribe(topic, "*", count)
    return consumer


async def _has_queues(producer: Producer, topic: str) -> bool:
    try:
        return len(await producer.queues(topic)) == QUEUES
    except KeroloxError:
        return False


async def _is_shared(consumers: list[PushConsumer], topic: str) -> bool:
    owned = [
        [queue for queue in consumer.assigned_queues if queue.topic == topic]
        for consumer in consumers
    ]
    return all(owned) and sum(map(len, owned)) == len({q for each in owned for q in each}) == QUEUES


async def _wait_until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + DONE_SECONDS_MAX
    while not await condition():
        if time.monotonic() > deadline:
            raise KeroloxError(f"{what} did not settle within {DONE_SECONDS_MAX:g} s")
        await asyncio.sleep(0.05)
