"""The metrics of the port for gRPC, as Prometheus's own parser reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.conftest import prepared
from tests.unit.broker.grpc.test_calls import message, sent
from tests.unit.broker.grpc.test_clients import publishing, subscribing
from tests.unit.broker.grpc.test_receives import acked, answer_of, one, receive
from tests.unit.broker.test_exposition import PROM, Served

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import renewals
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.http2.server_side import STREAMS_MAX

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class MeasuredBroker(Served):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker


@pytest_asyncio.fixture
async def measured(tmp_path: Path) -> AsyncIterator[MeasuredBroker]:
    config = small_config(tmp_path, grpc_server_port=free_port(), **PROM)
    async with Broker(config) as started:
        await prepared(started)
        yield MeasuredBroker(started)


@pytest_asyncio.fixture
async def client(measured: MeasuredBroker) -> AsyncIterator[GrpcPeer]:
    async with grpc_peer(measured.broker.config.grpc_server_port) as peer:
        yield peer


def calls(found: Figures, name: str = "count") -> dict[tuple[str, str, str], float]:
    """By request code, response code and result."""
    return {
        (pairs["request_code"], pairs["response_code"], pairs["result"]): value
        for (metric, labels), value in found.items()
        if metric == f"rocketmq_rpc_latency_{name}"
        for pairs in (dict(labels),)
    }


async def test_calls_are_counted_by_name_and_code_with_the_time_that_they_took(
    measured: MeasuredBroker, client: GrpcPeer
) -> None:
    for topic in ("X", "X", "F"):
        await sent(client, message(topic, kind=pb.TRANSACTION))
    assert (await answer_of(receive(client, poll_seconds=5)))[0] == pb.MESSAGE_NOT_FOUND
    found = await measured.figures()
    assert calls(found) == {
        ("send_message", "ok", "success"): 2,
        ("send_message", "message_property_conflict_with_type", "success"): 1,
        ("receive_message", "message_not_found", "success"): 1,
    }
    labels = (
        ("le", "+Inf"),
        ("protocol_type", "grpc"),
        ("request_code", "send_message"),
        ("response_code", "ok"),
        ("result", "success"),
    )
    assert found["rocketmq_rpc_latency_bucket", labels] == 2
    assert all(value > 0 for value in calls(found, "sum").values())


@pytest.mark.parametrize("kernel", KERNELS)
async def test_calls_that_a_kernel_answers_are_counted_as_others(
    kernel: str, tmp_path: Path
) -> None:
    port = free_port()
    config = small_config(
        tmp_path, grpc_server_port=port, max_requests_per_second_per_address=0, **PROM
    )
    async with Broker(config, kernel=kernel) as started, grpc_peer(port) as client:
        await prepared(started)
        for _ in range(3):
            # The first receive of a queue is Python's.
            await sent(client, message(born_host="here"))
            await acked(client, await one(client))
        by_kernel = {path.rpartition("/")[2] for path, *_ in started.parts.store.call_times()}
        found = await MeasuredBroker(started).figures()
    names = ("SendMessage", "ReceiveMessage", "AckMessage")
    assert by_kernel == (set(names) if kernel == "native" else set())
    labels = ("send_message", "receive_message", "ack_message")
    assert calls(found) == {(name, "ok", "success"): 3 for name in labels}
    assert all(value > 0 for value in calls(found, "sum").values())


async def test_each_answer_to_settings_is_counted(
    measured: MeasuredBroker, client: GrpcPeer
) -> None:
    stream, _ = await client.settled(**subscribing())
    for settings in (publishing("T"), subscribing(kind=99)):
        stream.send(pb.TelemetryCommand(settings=pb.Settings(**settings)))
        await stream.message()
    assert calls(await measured.figures()) == {
        ("telemetry", "ok", "success"): 2,
        ("telemetry", "unrecognized_client_type", "success"): 1,
    }


async def test_what_is_open_and_waits_is_measured(
    measured: MeasuredBroker, client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await measured.figures())["rocketmq_proxy_up", (("proxy_mode", "local"),)] == 1
    client.metadata["x-mq-client-version"] = "5.0.6"
    await client.settled(**subscribing())
    async with grpc_peer(measured.broker.config.grpc_server_port, "other") as other:
        await other.settled(**publishing("T"))
        await sent(client, message())
        await one(client, invisible_seconds=None, auto_renew=True)
        monkeypatch.setattr(renewals, "AHEAD_MS", 61_000)
        monkeypatch.setattr(renewals, "STEPS_MS", (180_000,))
        await measured.broker._ports.grpc._service.renewals.run()
        waiting = receive(client)
        await until(lambda: len(measured.broker.parts.popping.held) == 1, what="the wait")
        found = await measured.figures()
    assert {
        name: found[f"kerolox_grpc_{name}", ()]
        for name in (
            *("connections", "streams", "clients", "waiting_receives"),
            *("renewed_messages", "renewals_total"),
        )
    } == {
        "connections": 2,
        "streams": 3,
        "clients": 2,
        "waiting_receives": 1,
        "renewed_messages": 1,
        "renewals_total": 1,
    }
    online = {
        dict(labels).get("version"): dict(labels)
        for name, labels in found
        if name.endswith("consumer_connections")
    }
    assert online["5.0.6"]["protocol_type"] == "grpc"
    waiting.cancel()

    async def is_over() -> bool:
        return ("receive_message", "message_not_found", "cancelled") in calls(
            await measured.figures()
        )

    await until(is_over, what="the end of the receive")


async def test_what_is_refused_and_closed_has_a_reason(
    measured: MeasuredBroker, client: GrpcPeer
) -> None:
    stream = client.call("Telemetry", pb.TelemetryCommand(), **{":path": "/no.Service/Nothing"})
    assert await stream.message() is None
    async with grpc_peer(measured.broker.config.grpc_server_port) as other:
        other._transport.write(b"\0\0\1\0\0\0\0\0\0x")  # DATA of no stream
        await other.gone
    async with grpc_peer(measured.broker.config.grpc_server_port) as other:
        # All before it has heard how many it may open.
        opened = [other.open("Telemetry") for _ in range(STREAMS_MAX + 3)]
        other.flush()
        await until(lambda: sum(each.is_over for each in opened) == 3, what="the refusals")
    found = await measured.figures()
    assert found["kerolox_grpc_calls_refused_total", (("reason", "UNIMPLEMENTED"),)] == 1
    assert found["kerolox_grpc_calls_refused_total", (("reason", "REFUSED_STREAM"),)] == 3
    assert found["kerolox_grpc_connections_closed_total", (("reason", "PROTOCOL_ERROR"),)] == 1
