"""What a gRPC client can cost, over real sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.support.clients.grpc_peer import SERVICE, GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.test_calls import ENDPOINTS, message, resource, sent
from tests.unit.broker.grpc.test_clients import subscribing
from tests.unit.broker.grpc.test_receives import GROUP, receive

from kerolox.broker import ports
from kerolox.broker.broker import Broker
from kerolox.broker.grpc.port import GrpcPort
from kerolox.errors import ConfigError
from kerolox.kernel.http2 import Http2Event
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting import connection as remoting_connection
from kerolox.remoting.grpc import connection as grpc_connection
from kerolox.remoting.grpc import steps
from kerolox.remoting.grpc.wire import with_prefix
from kerolox.remoting.http2 import choice
from kerolox.remoting.http2.frames import END_HEADERS, PREFACE, FrameType, frame, settings_frame

GREETING = PREFACE + settings_frame(())


def server_of(broker: Broker) -> grpc_connection.GrpcConnection:
    [connection] = broker._ports.grpc.server.connections
    assert isinstance(connection, grpc_connection.GrpcConnection)
    return connection


def encoded(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    head = bytearray()
    for left in (number << 3 | 2, len(data)):
        while left > 0x7F:
            head.append(left & 0x7F | 0x80)
            left >>= 7
        head.append(left)
    return bytes(head) + data


@pytest.fixture
def gate(grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Requests of calls wait until it is set; to be asked for before the client."""
    opened = asyncio.Event()
    handler = GrpcPort._limited

    async def slow(*arguments: object) -> object:
        await opened.wait()
        return await handler(*arguments)

    monkeypatch.setattr(GrpcPort, "_limited", slow)
    return opened


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x10{}" + bytes(64),
        GREETING + frame(FrameType.PING, 0, 0, bytes(8)) * 3_000,
        GREETING + frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff" * 20),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_cut_off(
    client: GrpcPeer, grpc_broker: Broker, data: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc_broker.config.grpc_server_port)
    writer.write(data)
    async with asyncio.timeout(SECONDS_MAX):
        told = await reader.read()
    writer.close()
    assert told[3] == FrameType.SETTINGS
    assert frame(FrameType.GOAWAY, 0, 0)[3:5] in told
    # Others are served as ever.
    assert (await sent(client, message())).status.code == pb.OK


async def test_what_a_connection_brings_is_taken_a_little_at_a_time_and_in_order(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served meanwhile, and it is not read before all is taken."""
    server = server_of(grpc_broker)
    taken: list[int] = []
    take = server._take_event

    def taking(event: Http2Event) -> None:
        taken.append(event.stream_id)
        take(event)

    monkeypatch.setattr(server, "_take_event", taking)
    monkeypatch.setattr(steps, "SLICE_SECONDS_MAX", 0.0)
    request = pb.QueryRouteRequest(topic=resource("T"), endpoints=ENDPOINTS)
    async with grpc_peer(grpc_broker.config.grpc_server_port) as other:
        calls = [client.open("QueryRoute") for _ in range(100)]
        for call in calls:
            call.send(request, end=True)
        await until(lambda: taken)
        assert (await sent(other, message())).status.code == pb.OK
        assert len(taken) < 200
        assert server._paused
        for call in calls:
            [answer] = await call.messages()
            assert answer.status.code == pb.OK
    assert taken == [call.stream_id for call in calls] * 2
    assert not server._paused


async def test_a_message_too_long_is_refused_before_it_is_read(client: GrpcPeer) -> None:
    stream = client.open("SendMessage")
    client.send_data(stream.stream_id, b"\0\x7f\xff\xff\xff")
    assert await stream.messages() == []
    assert stream.status == 8
    assert (await sent(client, message())).status.code == pb.OK


async def test_calls_too_many_are_refused_and_the_others_go_on(
    grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(choice.http2_of(), streams_max=20)
    monkeypatch.setattr(choice, "http2_of", lambda _kernel: limited)
    async with grpc_peer(grpc_broker.config.grpc_server_port) as client:
        streams = [receive(client) for _ in range(20)]
        held = grpc_broker.parts.popping.held
        await until(lambda: len(held) == 20, what="the waits")
        # It was told, and does not keep to it.
        client.http2.remote_settings.max_concurrent_streams = 100
        client.http2.remote_settings.acknowledge()
        refused = receive(client)
        assert await refused.messages() == []
        assert refused.status is None
        for stream in streams:
            stream.cancel()
        await until(lambda: not len(held), what="their end")
        assert (await sent(client, message())).status.code == pb.OK


async def test_a_client_that_reads_nothing_loses_its_call(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window stays at 64 KiB."""
    monkeypatch.setattr(grpc_connection, "WAITING_BYTES_MAX", 100_000)
    for _ in range(4):
        await sent(client, message(body=bytes(60_000)))
    client.http2.acknowledge_received_data = lambda *_: None
    stream = receive(client)
    await stream.messages()
    assert stream.status is None
    client.metadata["x-mq-client-id"] = "another"
    assert server_of(grpc_broker).http2.kept_bytes == 0


async def test_a_connection_with_too_much_in_flight_is_not_read(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_connection, "IN_FLIGHT_BYTES_MAX", 10_000)
    stream = client.open("Telemetry")
    settings = pb.Settings(**subscribing())
    settings.user_agent.hostname = "x" * 12_000
    gate = asyncio.Event()
    handler = grpc_broker._ports.grpc._service._dispatch

    async def slow(*arguments: object) -> object:
        await gate.wait()
        return await handler(*arguments)

    monkeypatch.setattr(grpc_broker._ports.grpc._service, "_dispatch", slow)
    stream.send(pb.TelemetryCommand(settings=settings))
    connection = server_of(grpc_broker)
    await until(
        lambda: connection._paused & remoting_connection.PAUSED_BY_HANDLERS, what="the pause"
    )
    assert connection.memory_bytes() > 12_000
    gate.set()
    assert (await stream.message()).status.code == pb.OK
    stream.send(pb.TelemetryCommand(settings=pb.Settings(**subscribing())))
    assert (await stream.message()).status.code == pb.OK
    assert not connection._paused


async def test_a_command_of_telemetry_too_long_ends_the_stream(client: GrpcPeer) -> None:
    stream = client.open("Telemetry")
    settings = pb.Settings(**subscribing())
    settings.user_agent.hostname = "x" * 70_000
    stream.send(pb.TelemetryCommand(settings=settings))
    assert await stream.messages() == []
    assert stream.status == 3


async def test_a_call_that_breaks_a_rule_gives_up_what_it_waits_for(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    held = grpc_broker.parts.popping.held
    for lie in (b"\1\0\0\0\0", b"\0\x7f\xff\xff\xff", with_prefix(b"") * 65):
        stream = receive(client, end=False)
        await until(lambda: len(held) == 1, what="the wait")
        client.send_data(stream.stream_id, lie)
        assert await stream.messages() == []
        assert stream.status in (8, 12)
        await until(lambda: not len(held), what="its end")


async def test_a_call_that_was_reset_is_counted_until_it_is_handled(
    gate: asyncio.Event, client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream = client.call("SendMessage", pb.SendMessageRequest(messages=[message(body=bytes(9999))]))
    await until(lambda: server_of(grpc_broker).memory_bytes() > 9_999, what="the request")
    connection = server_of(grpc_broker)
    stream.cancel()
    await until(lambda: not connection.http2.stream_count, what="the reset")
    assert connection.memory_bytes() > 9_999
    gate.set()
    await until(lambda: not connection.memory_bytes(), what="the end of its handler")


async def test_what_calls_keep_is_nothing_when_they_are_over(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream, _ = await client.settled(**subscribing())
    waiting = receive(client)
    await until(lambda: len(grpc_broker.parts.popping.held) == 1, what="the wait")
    connection = server_of(grpc_broker)
    assert connection._in_flight_bytes >= 2 * grpc_connection.CALL_BYTES
    stream.cancel()
    waiting.cancel()
    await until(lambda: not connection._in_flight_bytes, what="their end")


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("AckMessage", b"\x1a\0" * 100_000, 8),
        ("AckMessage", b"\x1a\0" * 600_000, 8),
        ("SendMessage", b"\x0a\0" * 2_000_000, 8),
        # A message with keys of one letter.
        ("SendMessage", encoded(1, encoded(3, b"\x12\1k" * 700_000)), 8),
        ("SendMessage", encoded(1, encoded(2, b"") * 700_000), 8),
        ("QueryRoute", b"\x0a\xff\xff\xff\x07" + bytes(20_000), 13),
        ("QueryRoute", b"\x80" * 20_000, 13),
        ("QueryRoute", b"\x0f" * 20_000, 13),
    ],
)
async def test_a_message_of_too_many_fields_is_refused_before_it_is_one(
    client: GrpcPeer, name: str, data: bytes, status: int
) -> None:
    stream = client.open(name)
    client.send_data(stream.stream_id, with_prefix(data), end=True)
    assert await stream.messages() == []
    assert stream.status == status


async def test_keys_too_many_are_refused_before_they_are_examined(client: GrpcPeer) -> None:
    answer = await sent(client, message(keys=["k"] * 20_000))
    assert answer.status.code == pb.MESSAGE_PROPERTIES_TOO_LARGE


async def test_fields_that_nobody_knows_are_not_repeated(client: GrpcPeer) -> None:
    topic = pb.Resource.FromString(resource("T").SerializeToString() + encoded(99, b"unknown"))
    answer = await client.ask("QueryRoute", topic=topic, endpoints=ENDPOINTS)
    assert len(answer.message_queues) == 2
    assert b"unknown" not in answer.SerializeToString()


# -- deadlines --------------------------------------------------------------------------------
async def test_a_call_whose_request_does_not_come_ends_at_its_deadline(client: GrpcPeer) -> None:
    stream = client.open("QueryRoute", {"grpc-timeout": "20m"})
    client.flush()
    assert await stream.messages() == []
    assert stream.status == 4


async def test_a_call_that_comes_too_late_does_nothing(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream = client.call(
        "SendMessage", pb.SendMessageRequest(messages=[message()]), grpc_timeout="0n"
    )
    assert await stream.messages() == []
    assert stream.status == 4
    stream = receive(client, poll_seconds=None, metadata={"grpc-timeout": "8S"})
    held = grpc_broker.parts.popping.held
    await until(lambda: len(held) == 1, what="a receive that finds nothing")


async def test_a_deadline_ends_a_send_between_two_messages(
    gate: asyncio.Event, client: GrpcPeer, grpc_broker: Broker
) -> None:
    request = pb.SendMessageRequest(messages=[message(body=b"first"), message(body=b"second")])
    stream = client.call("SendMessage", request, grpc_timeout="50m")
    assert await stream.messages() == []
    assert stream.status == 4
    gate.set()
    connection = server_of(grpc_broker)
    await until(lambda: not connection.memory_bytes(), what="the end of its handler")
    received = [each.message.body for each in await receive(client).messages()]
    assert received.count(b"first") == 1
    assert b"second" not in received


async def test_a_deadline_ends_a_telemetry_stream_too(client: GrpcPeer) -> None:
    stream = client.open("Telemetry", {"grpc-timeout": "30m"})
    stream.send(pb.TelemetryCommand(settings=pb.Settings(**subscribing())))
    assert (await stream.message()).status.code == pb.OK
    assert await stream.messages() == []
    assert stream.status == 4


async def test_calls_that_end_leave_no_timer(client: GrpcPeer, grpc_broker: Broker) -> None:
    stream = receive(client)
    await until(lambda: len(grpc_broker.parts.popping.held) == 1, what="the wait")
    [call] = server_of(grpc_broker)._calls.values()
    assert call.timer is not None
    stream.cancel()
    await until(call.timer.cancelled, what="its end")


async def test_an_idle_connection_is_asked_first_while_it_has_calls(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    assert (await sent(client, message())).status.code == pb.OK
    connection = server_of(grpc_broker)
    assert connection.may_close_idle()
    await client.settled(**subscribing())
    assert not connection.may_close_idle()
    assert connection.http2.unanswered_pings == 1
    await until(lambda: not connection.http2.unanswered_pings, what="the answer")


async def test_requests_of_an_address_are_limited(tmp_path: Path) -> None:
    config = small_config(
        tmp_path, grpc_server_port=free_port(), max_requests_per_second_per_address=1
    )
    async with Broker(config) as broker, grpc_peer(config.grpc_server_port) as client:
        codes = []
        for _ in range(3):
            answer = await client.ask(
                "AckMessage",
                group=resource(GROUP),
                topic=resource("T"),
                entries=[
                    pb.AckMessageEntry(
                        receipt_handle=f"0 {broker.parts.now_ms()} 60000 0 0 broker-t 0 0 0"
                    )
                ],
            )
            codes.append(answer.status.code)
    assert codes[0] == pb.INVALID_RECEIPT_HANDLE
    assert pb.TOO_MANY_REQUESTS in codes[1:]


async def test_a_call_of_another_service_is_unimplemented(client: GrpcPeer) -> None:
    stream = client.open("QueryRoute", {":path": SERVICE.replace("Messaging", "Other") + "X"})
    stream.send(pb.QueryRouteRequest(endpoints=ENDPOINTS), end=True)
    assert await stream.messages() == []
    assert stream.status == 12


async def test_a_port_that_is_taken_stops_the_start_unless_it_may_lack(
    grpc_broker: Broker, tmp_path: Path
) -> None:
    taken = grpc_broker.config.grpc_server_port
    config = small_config(tmp_path / "other", grpc_server_port=taken)
    with pytest.raises(ConfigError, match=str(taken)):
        await Broker(config).start()
    async with Broker(config, may_lack_grpc=True) as other:
        assert str(taken) in other.why_no_grpc
        assert other.grpc_addresses == ()


async def test_without_its_packages_the_port_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "GRPC_PACKAGES", ("hpack", "no_such_package.at_all"))
    config = small_config(tmp_path, grpc_server_port=free_port())
    with pytest.raises(ConfigError, match=r"no_such_package.at_all: install kerolox\[grpc\]"):
        await Broker(config).start()
    async with Broker(config, may_lack_grpc=True) as broker:
        assert "install kerolox[grpc]" in broker.why_no_grpc


START = """
import asyncio, sys
from pathlib import Path
from kerolox.broker.broker import Broker
from tests.support.clients.peer import small_config

async def main():
    config = small_config(Path(sys.argv[1]), grpc_server_port=int(sys.argv[2]))
    async with Broker(config) as broker:
        assert broker.grpc_addresses
        late = {"hpack", "google.protobuf", "kerolox.broker.grpc.service"}
        print(sorted(late & sys.modules.keys()))

asyncio.run(main())
"""


def test_nothing_of_it_is_imported_before_a_client_comes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.stdout == "[]\n", done.stderr
