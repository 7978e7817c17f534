"""Routes of what is in use are polled, and who has gone from them is greeted no more."""

from __future__ import annotations

import contextlib

import pytest

from kerolox.client import Producer, ProducerSettings
from kerolox.client.aio.network import cluster as cluster_module
from kerolox.client.aio.network import instance as instance_module
from kerolox.errors import KeroloxError, TopicRouteNotFoundError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
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


STATS = RequestCode.GET_TOPIC_STATS_INFO
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
QUICK = ProducerSettings(route_poll_interval_ms=10, heartbeat_interval_ms=10)


def asked_for(broker: FakeBroker, topic: str) -> int:
    return sum(each.ext_fields["topic"] == topic for each in broker.seen[ROUTE])


async def has_none(command: RemotingCommand) -> RemotingCommand:
    return command.response(ResponseCode.TOPIC_NOT_EXIST, "no such topic")


async def test_brokers_of_a_topic_that_is_gone_are_forgotten_and_found_again() -> None:
    async with (
        FakeBroker() as names,
        FakeBroker() as goes,
        Producer("p", names.address, settings=QUICK) as producer,
    ):
        names.routes["T"] = names.routes["U"] = route_body({"a": names.address}, queues=1)
        names.routes["G"] = route_body({"g": goes.address}, queues=1)
        goes.answers[STATS] = names.answers[STATS] = has_none
        for topic in "GUT":
            await producer.send(Message(topic, b"x"))
        await until(lambda: goes.seen[BEAT])
        [connection] = goes.connections
        polls = asked_for(names, "G")
        del names.routes["G"], names.routes["U"]
        await until(lambda: connection.closed)
        assert asked_for(names, "G") - polls >= cluster_module.GONE_POLLS
        seen, beats = len(goes.seen[BEAT]), len(names.seen[BEAT])
        # Of U, too, but T has its broker as well.
        await until(lambda: len(names.seen[BEAT]) > beats + 5)
        assert len(goes.seen[BEAT]) == seen
        assert not names.connections[0].closed
        with pytest.raises(TopicRouteNotFoundError):
            await producer.send(Message("G", b"x"))
        names.routes["G"] = route_body({"g": goes.address}, queues=1)
        await producer.send(Message("G", b"x"))
        await until(lambda: len(goes.seen[BEAT]) > seen)


async def test_no_broker_is_forgotten_that_has_the_topic_or_while_a_name_server_is_away() -> None:
    async with FakeBroker() as names, FakeBroker() as away, FakeBroker() as stays:
        both = f"{names.address};{away.address}"
        for each in (names, away):
            each.routes["T"] = route_body({"a": stays.address}, queues=1)
        async with Producer("p", both, settings=QUICK) as producer:
            await producer.send(Message("T", b"x"))
            # One name server was restarted, and the other one is not there.
            await away.server.stop()
            await until(lambda: len(names.seen[ROUTE]) > 1)
            names.routes.clear()
            stays.answers[STATS] = has_none
            polls = asked_for(names, "T")
            await until(lambda: asked_for(names, "T") > polls + 5 * cluster_module.GONE_POLLS)
            await producer.send(Message("T", b"x"))
            seen = len(stays.seen[BEAT])
            await until(lambda: len(stays.seen[BEAT]) > seen)
        # Both were restarted, and the broker has the topic.
        names.routes["T"] = route_body({"a": stays.address}, queues=1)
        del stays.answers[STATS]
        async with Producer("p", names.address, settings=QUICK) as producer:
            await producer.send(Message("T", b"x"))
            names.routes.clear()
            await until(lambda: len(stays.seen[STATS]) > 2)
            await producer.send(Message("T", b"x"))


async def test_a_consumer_greets_a_gone_broker_again_only_when_it_is_there() -> None:
    async with FakeBroker() as names, QueueBroker() as goes:
        names.routes["T"] = goes.routes["T"]
        goes.answers[STATS] = has_none
        settings = {"route_poll_interval_ms": 10, "heartbeat_interval_ms": 10}
        async with Consumer(names, **settings) as consumer:
            goes.members = names.members = [consumer.client_id]
            await until(lambda: consumer.assigned_queues == [MessageQueue("T", "a", 0)])
            names.routes.clear()
            cluster = consumer._cluster
            await until(lambda: cluster._missed.get("T", 0) > cluster_module.GONE_POLLS)
            assert consumer.assigned_queues == [MessageQueue("T", "a", 0)]
            seen = len(goes.seen[BEAT])
            await until(lambda: len(goes.seen[BEAT]) > seen, what="its connection is open")
            await goes.server.stop()
            await until(lambda: cluster.broker_addresses(["T"], masters_only=False) == [])


async def test_a_producer_finds_the_next_master_soon_after_its_own_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Routes are polled each 30 s otherwise."""
    monkeypatch.setattr(instance_module, "LOST_POLLS_MS", (10, 20, 40))
    async with FakeBroker() as names, FakeBroker() as elected:
        former = await FakeBroker().__aenter__()
        names.routes["T"] = route_body({"a": former.address}, queues=1)
        async with Producer("p", names.address) as producer:
            await producer.send(Message("T", b"x"))
            names.routes["T"] = route_body({"a": elected.address}, queues=1)
            await former.__aexit__()
            await until(lambda: producer_reaches(producer, elected))
            assert elected.seen[RequestCode.SEND_MESSAGE_V2]


async def producer_reaches(producer: Producer, broker: FakeBroker) -> bool:
    with contextlib.suppress(KeroloxError):
        await producer.send(Message("T", b"y"))
    return bool(broker.seen[RequestCode.SEND_MESSAGE_V2])
