"""Routes of what is in use are polled, and who has gone from them is greeted no more."""

from __future__ import annotations

from kerolox.client import Producer, ProducerSettings
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

BEAT = RequestCode.HEART_BEAT


async def test_a_push_consumer_reads_the_queues_that_its_route_gets_later() -> None:
    async with (
        QueueBroker(count=3) as broker,
        Consumer(broker, route_poll_interval_ms=10) as consumer,
    ):
        await until(lambda: consumer.assigned_queues == [MessageQueue("T", "a", 0)])
        broker.routes["T"] = route_body({"a": broker.address}, queues=2)
        await until(lambda: len(consumer.got) == 6)
        assert consumer.assigned_queues == [MessageQueue("T", "a", number) for number in (0, 1)]
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        await until(lambda: consumer.assigned_queues == [MessageQueue("T", "a", 0)])


async def test_heartbeats_go_to_all_brokers_of_the_routes_and_to_no_others() -> None:
    async with QueueBroker() as stays, QueueBroker() as goes:
        stays.routes["T"] = route_body({"a": stays.address, "b": goes.address}, queues=1)
        async with Consumer(stays, route_poll_interval_ms=10, heartbeat_interval_ms=10) as consumer:
            goes.members = stays.members
            await until(lambda: len(stays.seen[BEAT]) >= 3 and len(goes.seen[BEAT]) >= 3)
            stays.routes["T"] = route_body({"a": stays.address}, queues=1)
            await until(lambda: consumer.assigned_queues == [MessageQueue("T", "a", 0)])
            # One may have been on its way when the route came.
            seen = len(stays.seen[BEAT])
            await until(lambda: len(stays.seen[BEAT]) >= seen + 2)
            last = len(goes.seen[BEAT])
            await until(lambda: len(stays.seen[BEAT]) >= seen + 6)
            assert len(goes.seen[BEAT]) == last


async def test_an_idle_producer_greets_a_master_that_comes_back() -> None:
    settings = ProducerSettings(route_poll_interval_ms=10, heartbeat_interval_ms=10)
    async with FakeBroker() as broker, Producer("p", broker.address, settings=settings) as producer:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        await producer.send(Message("T", b"x"))
        # The master is away: the route has a slave alone.
        broker.routes["T"] = broker.routes["T"].replace(b"{0:", b"{1:")
        await until(lambda: producer._plans.get("T") is None)
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        seen = len(broker.seen[BEAT])
        await until(lambda: len(broker.seen[BEAT]) > seen)


async def test_each_topic_has_its_own_round_of_queues_and_a_random_start() -> None:
    starts: set[int] = set()
    async with FakeBroker() as broker:
        for topic in "TU":
            broker.routes[topic] = route_body({"a": broker.address}, queues=4)
        for _ in range(16):
            async with Producer("p", broker.address) as producer:
                sent = {topic: list[int]() for topic in "TU"}
                for topic in "TTUTUUTU":
                    result = await producer.send(Message(topic, b"x"))
                    sent[topic].append(result.queue.queue_id)
            for round_of_topic in sent.values():
                first = round_of_topic[0]
                assert round_of_topic == [(first + number) % 4 for number in range(4)]
                starts.add(first)
    assert len(starts) > 1
