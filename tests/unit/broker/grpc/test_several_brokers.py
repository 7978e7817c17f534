"""Clients of gRPC at a cluster: routes name every broker, and calls reach the one that has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.support.clients.grpc_peer import grpc_peer
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.roles.cluster import Cluster, cluster_of

from kerolox.broker.grpc import routes as grpc_routes
from kerolox.broker.tables import routes
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.routing.routes import TopicRoute, route_request
from kerolox.remoting.client import RemotingClient

from .test_calls import ENDPOINTS, message, resource, sent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kerolox.broker.broker import Broker

pytestmark = pytest.mark.asyncio

TWO = pb.Endpoints(scheme=pb.IPv4, addresses=[ENDPOINTS.addresses[0], pb.Address(host="b", port=1)])


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers are asked for each route."""
    monkeypatch.setattr(routes, "FRESH_SECONDS", 0.0)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A name server, and no broker yet."""
    async with cluster_of(tmp_path, KERNELS[-1]) as made:
        yield made


async def started(
    cluster: Cluster, name: str, *topics: str, queues: int = 2, **more: Any
) -> Broker:
    """A broker with topics, and with a port for gRPC unless ``more`` says otherwise."""
    more = {"broker_name": f"broker-{name}", "grpc_server_port": free_port(), **more}
    broker = await cluster.start(name, **more)
    for topic in topics:
        put(broker, topic, queues)
    await broker.parts.peers.registration.now(timeout_seconds=10)
    return broker


def put(broker: Broker, topic: str, queues: int, **more: Any) -> None:
    broker.parts.tables.topics.put(
        TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, **more)
    )


async def asked(broker: Broker, name: str, endpoints: pb.Endpoints = ENDPOINTS, **more: Any) -> Any:
    async with grpc_peer(broker.config.grpc_server_port) as client:
        return await client.ask(name, endpoints=endpoints, **more)


def shown(endpoints: pb.Endpoints) -> str:
    return ";".join(f"{each.host}:{each.port}" for each in endpoints.addresses)


def places(queues: Any) -> list[tuple[str, int, str, int]]:
    """Broker, its id, where it is reached, and the number of each queue."""
    return [
        (each.broker.name, each.broker.id, shown(each.broker.endpoints), each.id) for each in queues
    ]


async def route_of(
    broker: Broker, topic: str = "T", endpoints: pb.Endpoints = ENDPOINTS
) -> list[tuple[str, int, str, int]]:
    answer = await asked(broker, "QueryRoute", endpoints, topic=resource(topic))
    assert answer.status.code == pb.OK, answer.status.message
    return places(answer.message_queues)


async def assignments_of(
    broker: Broker, topic: str = "T", group: str = "g", endpoints: pb.Endpoints = ENDPOINTS
) -> list[tuple[str, int, str, int]]:
    answer = await asked(
        broker, "QueryAssignment", endpoints, topic=resource(topic), group=resource(group)
    )
    assert answer.status.code == pb.OK, answer.status.message
    return places(each.message_queue for each in answer.assignments)


def at(broker: Broker) -> str:
    return f"127.0.0.1:{broker.config.grpc_server_port}"


async def test_a_route_names_each_broker_where_it_takes_grpc(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await started(cluster, "a", "T", queues=1), await started(cluster, "b", "T")
    await started(cluster, "c", "T", grpc_server_port=0)
    dialled = shown(ENDPOINTS)
    of_b = [("broker-b", 0, at(b), 0), ("broker-b", 0, at(b), 1)]
    for _ in range(2):
        assert await route_of(a) == [("broker-a", 0, dialled, 0), *of_b]
    assert await route_of(b) == [
        ("broker-a", 0, at(a), 0),
        *((name, number, dialled, queue) for name, number, _, queue in of_b),
    ]
    put(a, "T", 2)
    # Whoever tries the next queue after a failure meets another broker.
    await until_route(b, [("broker-a", 0), ("broker-b", 0), ("broker-a", 1), ("broker-b", 1)])
    # Each broker says once which one is missing.
    assert caplog.text.count("broker broker-c has no port for gRPC") == 2


async def test_assignments_are_the_same_whichever_broker_is_asked(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "T"), await started(cluster, "b", "T", queues=1)
    ordered = SubscriptionGroupConfig(group_name="ordered", consume_message_orderly=True)
    for broker in (a, b):
        broker.parts.tables.groups.put(ordered)
        every = [("broker-a", 0, at(a), -1), ("broker-b", 0, at(b), -1)]
        assert await assignments_of(broker) == every
        assert await assignments_of(broker, group="ordered") == [
            ("broker-a", 0, at(a), 0),
            ("broker-a", 0, at(a), 1),
            ("broker-b", 0, at(b), 0),
        ]


async def test_a_broker_without_others_is_where_the_request_says(cluster: Cluster) -> None:
    a = await started(cluster, "a", "T", queues=1, grpc_advertised_address="a.example.com:443")
    for endpoints in (ENDPOINTS, TWO):
        assert await route_of(a, "T", endpoints) == [("broker-a", 0, shown(endpoints), 0)]
        assert await assignments_of(a, endpoints=endpoints) == [
            ("broker-a", 0, shown(endpoints), -1)
        ]
    # A broker beside it is one of other topics, too.
    b = await started(cluster, "b")
    assert await route_of(a) == [("broker-a", 0, "a.example.com:443", 0)]
    assert await route_of(b) == [("broker-a", 0, "a.example.com:443", 0)]


async def test_several_addresses_of_a_client_are_those_of_no_broker(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "T", queues=1), await started(cluster, "b", "T", queues=1)
    for broker in (a, b):
        assert await route_of(broker, "T", TWO) == [
            ("broker-a", 0, at(a), 0),
            ("broker-b", 0, at(b), 0),
        ]


async def test_a_topic_of_others_is_found_at_any_broker(cluster: Cluster) -> None:
    a, b = await started(cluster, "a"), await started(cluster, "b", "T", queues=1)
    answer = await asked(a, "QueryRoute", topic=resource("T"))
    [queue] = answer.message_queues
    assert places([queue]) == [("broker-b", 0, at(b), 0)]
    types = [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]
    assert list(queue.accept_message_types) == types
    assert await assignments_of(a) == await assignments_of(b) == [("broker-b", 0, at(b), -1)]
    answer = await asked(a, "QueryRoute", topic=resource("Nowhere"))
    assert answer.status.code == pb.TOPIC_NOT_FOUND


async def test_a_topic_of_brokers_without_grpc_is_not_found_and_says_which(
    cluster: Cluster,
) -> None:
    a = await started(cluster, "a")
    await started(cluster, "b", "T", grpc_server_port=0)
    answer = await asked(a, "QueryRoute", topic=resource("T"))
    assert answer.status.code == pb.TOPIC_NOT_FOUND
    assert "set grpcServerPort of broker-b" in answer.status.message


@pytest.mark.parametrize(
    "entry", ["", "grpc://", "grpc://host", "grpc://a b:1", "grpc://h:70000", "f:1"]
)
async def test_an_address_that_is_none_is_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    a = await started(cluster, "a", "T", queues=1)
    monkeypatch.setattr("kerolox.broker.services.registration.grpc_entry", lambda address: entry)
    await started(cluster, "b", "T")
    assert await route_of(a) == [("broker-a", 0, shown(ENDPOINTS), 0)]


async def test_brokers_come_and_go_and_topics_widen(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "T", queues=1), await started(cluster, "b", "T", queues=1)
    assert len(await route_of(a)) == 2
    put(b, "T", 3)
    await until_route(a, [("broker-a", 0), *[("broker-b", n) for n in range(3)]])
    await cluster.stop("b")
    await until_route(a, [("broker-a", 0)])
    await started(cluster, "c", "T", queues=1)
    await until_route(a, [("broker-a", 0), ("broker-c", 0)])


async def until_route(broker: Broker, wanted: list[tuple[str, int]]) -> None:
    async def is_so() -> bool:
        return [(name, number) for name, _, _, number in await route_of(broker)] == wanted

    await until(is_so)


async def test_what_an_operator_took_off_at_the_name_server_is_not_written(
    cluster: Cluster,
) -> None:
    a, b = await started(cluster, "a", "T", queues=1), await started(cluster, "b", "T", queues=1)
    for name in ("broker-a", "broker-b"):
        assert sum(cluster.namesrv.routes.wipe_write_permission(name))
    for broker in (a, b):
        answer = await asked(broker, "QueryRoute", topic=resource("T"))
        assert {each.permission for each in answer.message_queues} == {pb.READ}


async def test_without_its_name_servers_a_broker_names_what_it_knew(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "T", queues=1), await started(cluster, "b", "T", queues=1)
    assert [name for name, *_ in await route_of(a)] == ["broker-a", "broker-b"]
    await cluster.namesrv.stop()
    assert [name for name, *_ in await route_of(a)] == ["broker-a", "broker-b"]
    # Of what was never asked for it knows its own.
    assert [name for name, *_ in await route_of(b)] == ["broker-b"]


async def test_a_slave_names_its_master_and_takes_its_place(cluster: Cluster) -> None:
    a = await started(cluster, "a", "T", queues=1)
    slave = await started(cluster, "s", broker_name="broker-a", broker_role="SLAVE", broker_id=1)
    b = await started(cluster, "b", "T", queues=1)
    await cluster.until_following("s")
    await slave.parts.peers.replication.tables.take_from(cluster.at("a"))
    of_b = ("broker-b", 0, at(b), 0)
    for broker in (slave, b):
        assert (await route_of(broker, "T", TWO)) == [("broker-a", 0, at(a), 0), of_b]
    await cluster.stop("a")
    await until_route(b, [("broker-a", 0), ("broker-b", 0)])
    assert await route_of(b, "T", TWO) == [("broker-a", 1, at(slave), 0), of_b]
    assert await route_of(slave, "T", TWO) == [("broker-a", 1, at(slave), 0), of_b]
    # Who may not be popped from is assigned to nobody.
    for broker in (slave, b):
        assert await assignments_of(broker) == [("broker-b", 0, at(b), -1)]
    await cluster.admin.promote_broker(cluster.at("s"), accept_loss=True)
    for broker in (slave, b):
        assert await route_of(broker, "T", TWO) == [("broker-a", 0, at(slave), 0), of_b]
        assert len(await assignments_of(broker)) == 2


async def test_a_message_is_taken_back_at_any_broker(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "Elsewhere"), await started(cluster, "b", "T")
    async with grpc_peer(b.config.grpc_server_port) as client:
        made = message("T", kind=pb.DELAY, delivery_seconds=int(time.time()) + 60)
        [entry] = (await sent(client, made)).entries
    async with grpc_peer(a.config.grpc_server_port) as client:
        handle = entry.recall_handle
        answer = await client.ask("RecallMessage", topic=resource("T"), recall_handle=handle)
        assert (answer.status.code, answer.message_id) == (pb.OK, entry.message_id)
        other = await client.ask("RecallMessage", topic=resource("Elsewhere"), recall_handle=handle)
        assert "topic not match" in other.status.message
        await cluster.stop("b")
        gone = await client.ask("RecallMessage", topic=resource("T"), recall_handle=handle)
        assert gone.status.code == pb.TOPIC_NOT_FOUND


@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK])
async def test_a_transaction_is_ended_at_any_broker(cluster: Cluster, resolution: int) -> None:
    a, b = await started(cluster, "a"), await started(cluster, "b", "T")
    async with grpc_peer(b.config.grpc_server_port) as client:
        [entry] = (await sent(client, message("T", kind=pb.TRANSACTION))).entries
    parts = {
        "topic": resource("T"),
        "message_id": entry.message_id,
        "transaction_id": entry.transaction_id,
        "resolution": resolution,
        "source": pb.SOURCE_CLIENT,
    }
    async with grpc_peer(a.config.grpc_server_port) as client:
        elsewhere = entry.transaction_id.replace("broker-b", "broker-c")
        refused = await client.ask("EndTransaction", **{**parts, "transaction_id": elsewhere})
        assert refused.status.code == pb.INVALID_TRANSACTION_ID
        assert "at broker broker-c" in refused.status.message
        answer = await client.ask("EndTransaction", **parts)
        assert answer.status.code == pb.OK, answer.status.message
        again = await client.ask("EndTransaction", **parts)
    stored = [each.max_offset for each in b.parts.store.queues() if each.topic == "T"]
    assert sum(stored) == (resolution == pb.COMMIT)
    assert again.status.code == answer.status.code


async def test_a_receipt_of_another_broker_is_refused_by_its_name(cluster: Cluster) -> None:
    a, b = await started(cluster, "a", "T"), await started(cluster, "b", "T")
    async with grpc_peer(b.config.grpc_server_port) as client:
        await sent(client, message("T"))
        stream = client.call(
            "ReceiveMessage",
            pb.ReceiveMessageRequest(
                group=resource("g"),
                message_queue=pb.MessageQueue(
                    topic=resource("T"), broker=pb.Broker(name="broker-b")
                ),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=1,
                invisible_duration={"seconds": 30},
                long_polling_timeout={"seconds": 5},
            ),
        )
        [received] = [each.message for each in await stream.messages() if each.HasField("message")]
    receipt = received.system_properties.receipt_handle
    entry = {"message_id": received.system_properties.message_id, "receipt_handle": receipt}
    for broker, code in ((a, pb.INVALID_RECEIPT_HANDLE), (b, pb.OK)):
        async with grpc_peer(broker.config.grpc_server_port) as client:
            answer = await client.ask(
                "AckMessage", topic=resource("T"), group=resource("g"), entries=[entry]
            )
        assert answer.status.code == code
        if code != pb.OK:
            assert "the message is at broker broker-b" in answer.status.message


async def test_the_queues_of_an_answer_are_bounded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _b = await started(cluster, "a", "T"), await started(cluster, "b", "T")
    size = (await asked(a, "QueryRoute", topic=resource("T"))).ByteSize()
    monkeypatch.setattr(grpc_routes, "ROUTE_BYTES_MAX", size // 2)
    answer = await asked(a, "QueryRoute", topic=resource("T"))
    assert answer.status.code == pb.ILLEGAL_ACCESS_POINT
    assert "take more than" in answer.status.message


async def test_clients_of_remoting_see_no_filter_server(cluster: Cluster) -> None:
    a = await started(cluster, "a", "T")
    async with RemotingClient() as client:
        answer = await client.invoke(cluster.address, route_request("T"), timeout_seconds=10)
    route = TopicRoute.parse(answer.body)
    assert route.filter_servers == {}
    assert route.grpc_addresses == {cluster.at("a"): at(a)}
