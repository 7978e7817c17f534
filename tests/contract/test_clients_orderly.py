"""Reading in order, and by a loop, on our broker and on the Java broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from kerolox.client import ConsumeStatus, PushConsumer, PushConsumerSettings
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.contract.test_clients_consume import owned, until_committed
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Producer
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

QUEUES, EACH = 4, 30


async def send_numbers(producer: Producer, topic: str, start: int, count: int) -> None:
    """Numbers in order in each queue; the queues side by side."""

    async def fill(queue: object) -> None:
        for number in range(start, start + count):
            await producer.send(Message(topic, b"%d" % number), queue=queue)  # type: ignore[arg-type]

    await asyncio.gather(*(fill(queue) for queue in await producer.queues(topic)))


class Reader:
    """A member that reads in order and notes who was where at the same time."""

    numbers: dict[int, list[int]]
    busy: set[int]

    def __init__(self, name_server: str, group: str, topic: str, shared: Reader | None) -> None:
        self.numbers = defaultdict(list) if shared is None else shared.numbers
        self.busy = set() if shared is None else shared.busy
        settings = PushConsumerSettings(
            consume_from_where=FIRST, rebalance_interval_ms=200, suspend_current_queue_ms=10
        )
        self.count = 0
        self.consumer = PushConsumer(group, name_server, settings=settings)
        self.consumer.subscribe(topic, "*", self.listen, ordered=True)

    async def listen(self, messages: list[MessageExt]) -> ConsumeStatus | None:
        [message] = messages
        assert message.queue_id not in self.busy, "two listeners in a queue"
        self.busy.add(message.queue_id)
        await asyncio.sleep(0)
        self.busy.discard(message.queue_id)
        self.count += 1
        if int(message.body) % 10 == 5 and message.reconsume_times == 0:
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self.numbers[message.queue_id].append(int(message.body))
        return None


async def test_members_that_join_and_leave_read_each_queue_in_order_and_once(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    await send_numbers(producer, topic, 0, EACH)
    first = Reader(cluster.name_server, group, topic, None)
    second = Reader(cluster.name_server, group, topic, first)
    async with first.consumer:
        await until(lambda: first.count > EACH)
        async with second.consumer:
            await until(lambda: owned(second.consumer, topic) == QUEUES // 2)
            await send_numbers(producer, topic, EACH, EACH)
            await until(lambda: second.count > EACH)
        await until(lambda: owned(first.consumer, topic) == QUEUES)
        await send_numbers(producer, topic, 2 * EACH, EACH)
        await until(lambda: all(len(n) >= 3 * EACH for n in first.numbers.values()))
    # Each is done with once: a queue goes only after its listener, and with its offset stored.
    assert first.numbers == {queue: list(range(3 * EACH)) for queue in range(QUEUES)}
    await until_committed(cluster, group, topic, ([3 * EACH] * QUEUES).__eq__)


async def test_a_loop_reads_and_settles_what_no_listener_takes(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    await send_numbers(producer, topic, 0, 5)
    settings = PushConsumerSettings(consume_from_where=FIRST)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe(topic)
    seen: list[tuple[int, int, int]] = []
    async with consumer:
        async for message in consumer:
            seen.append((message.queue_id, int(message.body), message.reconsume_times))
            if message.body == b"3" and message.reconsume_times == 0:
                assert await consumer.nack(message, delay=1)
            else:
                assert await consumer.ack(message)
            if len(seen) == 5 * QUEUES + QUEUES:
                break
    expected = [(queue, number, 0) for queue in range(QUEUES) for number in range(5)]
    assert sorted(each for each in seen if not each[2]) == expected
    assert sorted(number for _, number, tries in seen if tries == 1) == [3] * QUEUES
    await until_committed(cluster, group, topic, ([5] * QUEUES).__eq__)
