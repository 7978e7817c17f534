"""What clients do beside the sends and pulls: routes, heartbeats, addresses that go."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from kerolox.client import Producer, ProducerSettings
from kerolox.client.aio.network.background import PeriodicTasks
from kerolox.client.aio.network.cluster import Cluster
from kerolox.client.core.routes import TopicRoute
from kerolox.errors import ConnectError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import dumps, loads
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

CLOSED_PORT = "127.0.0.1:1"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first heartbeat does not wait for a second."""
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", 20)


def route(**addresses: Any) -> TopicRoute:
    """A route over brokers, each given as its addresses by id."""
    return TopicRoute.parse(
        b'{"brokerDatas":['
        + b",".join(
            b'{"brokerName":"%s","cluster":"c","brokerAddrs":{%s}}'
            % (name.encode(), b",".join(b'"%d":"%s"' % (i, a.encode()) for i, a in ids.items()))
            for name, ids in addresses.items()
        )
        + b'],"queueDatas":[]}'
    )


def cluster_of(*name_servers: str) -> Cluster:
    return Cluster(name_servers, client_id="me", api_timeout_ms=1_000)


async def test_a_client_that_is_made_opens_nothing_and_starts_no_thread() -> None:
    # One that another test left may end meanwhile.
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    producer = Producer("group", CLOSED_PORT)
    assert producer._cluster is None
    assert set(threading.enumerate()) <= threads
    assert asyncio.all_tasks() <= tasks


async def test_routes_and_heartbeats_go_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    first: dict[str, int] = {}

    def note(
        self: PeriodicTasks,
        interval_ms: int,
        action: object,
        what: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        seen[what] = interval_ms, first_ms

    def note_first(self: PeriodicTasks, after_ms: int, action: object, what: str) -> None:
        first[what] = after_ms

    monkeypatch.setattr(PeriodicTasks, "every", note)
    monkeypatch.setattr(PeriodicTasks, "once", note_first)
    async with Producer("group", CLOSED_PORT):
        assert seen.pop("overdue requests") == (1_000, 0)
        assert seen == {"route poll": (30_000, None), "heartbeat": (30_000, None)}
        assert first == {"route poll": 10, "heartbeat": 1_000}


@pytest.mark.usefixtures("quick")
async def test_a_producer_that_sends_nothing_is_known_to_the_brokers_too() -> None:
    # The first heartbeat may come before the first route.
    settings = ProducerSettings(heartbeat_interval_ms=10)
    async with FakeBroker() as broker:
        broker.routes["TBW102"] = route_body({"a": broker.address}, perm=7)
        async with Producer("group", broker.address, settings=settings) as producer:
            await until(lambda: broker.seen[RequestCode.HEART_BEAT])
            body = loads(broker.seen[RequestCode.HEART_BEAT][0].body)
            assert body["clientID"] == producer.client_id
            assert body["producerDataSet"] == [{"groupName": "group"}]
            assert body["consumerDataSet"] == []
        assert broker.seen[RequestCode.UNREGISTER_CLIENT]


@pytest.mark.usefixtures("quick")
async def test_heartbeats_go_on_by_themselves_after_one_failed(caplog: Any) -> None:
    settings = ProducerSettings(heartbeat_interval_ms=10)
    async with FakeBroker() as broker:
        broker.routes["TBW102"] = route_body({"a": broker.address, "down": CLOSED_PORT})
        with caplog.at_level(logging.WARNING):
            async with Producer("group", broker.address, settings=settings):
                await until(lambda: len(broker.seen[RequestCode.HEART_BEAT]) >= 3)
        assert f"to {CLOSED_PORT} failed" in caplog.text


async def test_heartbeats_of_producers_go_to_masters_those_of_consumers_to_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", 3_600_000)
    beat = RequestCode.HEART_BEAT
    async with QueueBroker() as master, FakeBroker() as slave:
        nodes = {0: master.address, 1: slave.address}
        queues = {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
        brokers = {"brokerAddrs": nodes, "brokerName": "a", "cluster": "c"}
        master.routes["T"] = dumps({"brokerDatas": [brokers], "queueDatas": [queues]})
        async with Producer("group", master.address) as producer:
            await producer.send(Message("T", b"x"))
            await producer._heartbeat()
        assert (len(master.seen[beat]), len(slave.seen[beat])) == (1, 0)
        async with Consumer(master):
            assert len(master.seen[beat]) > 1
            assert slave.seen[beat]


async def test_a_broker_that_no_route_has_any_more_is_forgotten() -> None:
    cluster = cluster_of(CLOSED_PORT)
    cluster.learn("T", route(a={0: "10.0.0.1:1"}, b={0: "10.0.0.2:1", 1: "10.0.0.3:1"}))
    cluster.learn("U", route(b={0: "10.0.0.2:1", 1: "10.0.0.3:1"}))
    cluster.learn("T", route(a={0: "10.0.0.1:1"}))
    assert cluster.master_address("b") == "10.0.0.2:1"
    cluster.learn("U", route(a={0: "10.0.0.1:1"}))
    assert cluster.master_address("b") is None
    assert cluster.broker_addresses(["T", "U"], masters_only=False) == ["10.0.0.1:1"]
    await cluster.close()


async def test_the_last_route_told_says_a_brokers_addresses_even_if_it_is_not_new() -> None:
    cluster = cluster_of(CLOSED_PORT)
    pair = route(a={0: "10.0.0.1:1", 1: "10.0.0.2:1"})
    cluster.learn("T", pair)
    # While the roles are changed. The topic is gone with the next change, and no route comes.
    cluster.learn("%RETRY%g", route(a={0: "10.0.0.2:1"}))
    assert cluster.master_address("a") == "10.0.0.2:1"
    cluster.learn("T", pair)
    assert cluster.master_address("a") == "10.0.0.1:1"
    assert cluster.broker_addresses(["T"], masters_only=False) == ["10.0.0.1:1", "10.0.0.2:1"]
    await cluster.close()


async def test_sends_go_to_the_master_only_and_reads_to_the_node_that_is_wanted() -> None:
    cluster = cluster_of(CLOSED_PORT)
    cluster.learn("T", route(a={0: "10.0.0.1:1", 1: "10.0.0.2:1"}, b={1: "10.0.0.3:1"}))
    assert cluster.master_address("a") == "10.0.0.1:1"
    assert cluster.master_address("b") is None
    assert cluster.read_address("a") == "10.0.0.1:1"
    assert cluster.read_address("a", 1) == "10.0.0.2:1"
    assert cluster.read_address("b", 0) == "10.0.0.3:1"
    await cluster.close()


async def test_name_server_and_broker_share_the_pool_of_connections() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with Producer("group", broker.address) as producer:
            await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(10)))
            assert list(producer._open_cluster().remoting._connections) == [broker.address]
        assert len(broker.connections) == 1


async def test_a_broker_that_is_not_in_the_route_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.ROUTE_POLL_FIRST_MS", 60_000)
    async with FakeBroker() as first, FakeBroker() as second:
        first.routes["T"] = route_body({"a": first.address})
        async with Producer("group", first.address) as producer:
            await producer.send(Message("T", b"x"))
            first.routes["T"] = route_body({"a": first.address, "new": second.address})
            for _ in range(3):
                await producer.send(Message("T", b"y"), queue=MessageQueue("T", "new", 1))
        assert len(second.seen[RequestCode.SEND_MESSAGE_V2]) == 3
        asked = first.seen[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert len([command for command in asked if command.ext_fields["topic"] == "T"]) == 2


async def test_a_slow_broker_is_avoided_when_that_is_switched_on() -> None:
    settings = ProducerSettings(latency_fault_enable=True)
    async with FakeBroker() as name_server:
        name_server.routes["T"] = route_body({"a": name_server.address, "down": CLOSED_PORT})
        async with Producer("group", name_server.address, settings=settings) as producer:
            for _ in range(12):
                result = await producer.send(Message("T", b"x"))
                assert result.queue.broker_name == "a"
            assert producer._faults is not None
            assert not producer._faults.is_available("down")
            await producer.send_oneway(Message("T", b"x"))
            with pytest.raises(ConnectError):
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "down", 0))
