"""Messages of answers that their client has not read: they come again soon, on each kernel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from h2.settings import SettingCodes
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.test_calls import message, sent
from tests.unit.broker.grpc.test_clients import subscribing
from tests.unit.broker.grpc.test_receives import GROUP, acked, answer_of, is_out, receive

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import renewals
from kerolox.protocol.bodies import TopicConfig
from kerolox.remoting.connection import CAN_RESET
from kerolox.remoting.grpc import connection, steps
from kerolox.remoting.http2.frames import DEFAULT_WINDOW, WINDOW_MAX, ErrorCode, reset

RENEWED = {"invisible_seconds": None, "auto_renew": True}
COUNT = 4


@pytest_asyncio.fixture(params=KERNELS)
async def broker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Broker]:
    monkeypatch.setattr(renewals, "GIVEN_BACK_MS", 1)
    port = free_port()
    config = small_config(tmp_path, grpc_server_port=port, max_requests_per_second_per_address=0)
    async with Broker(config, kernel=request.param) as started:
        topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
        started.parts.tables.topics.put(topic)
        started.parts.tables.offsets.commit(GROUP, "T", 0, 0, "test")
        async with grpc_peer(port) as peer:
            # The kernel has the queue after this, where it is native.
            await sent(peer, message())
            _, found = await answer_of(receive(peer))
            await acked(peer, *found)
        yield started


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[GrpcPeer]:
    async with grpc_peer(broker.config.grpc_server_port) as peer:
        await peer.settled(**subscribing())
        yield peer


async def filled(client: GrpcPeer, size: int = 1) -> None:
    for number in range(COUNT):
        await sent(client, message(body=bytes(size), message_id=f"id-{number}"))


def unread(broker: Broker) -> int:
    return broker._ports.grpc.stats.unread


async def come_again(broker: Broker, client: GrpcPeer, count: int = COUNT) -> None:
    await until(lambda: unread(broker) == count, what="messages are given back")
    ids: set[str] = set()
    while len(ids) < count:
        _, found = await answer_of(receive(client, **RENEWED))
        ids |= {each.system_properties.message_id for each in found}
    assert ids == {f"id-{number}" for number in range(count)}
    assert unread(broker) == count


async def test_a_call_is_cancelled_whose_answer_waits_for_windows(
    broker: Broker, client: GrpcPeer
) -> None:
    await filled(client)
    async with grpc_peer(broker.config.grpc_server_port) as other:
        other.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        other.flush()
        stream = receive(other, **RENEWED)
        await until(lambda: is_out(broker), what="the messages are out")
        stream.cancel()
        await come_again(broker, client)


async def test_a_call_is_cancelled_whose_answer_is_on_its_way(
    broker: Broker, client: GrpcPeer
) -> None:
    await filled(client)
    stream = receive(client, **RENEWED)
    await answer_of(stream)
    client._transport.write(reset(stream.stream_id, ErrorCode.CANCEL))
    await come_again(broker, client)


async def test_a_connection_ends_before_a_cancelled_call_has_its_turn(
    broker: Broker, client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(client)
    with monkeypatch.context() as nobodys_turn:
        async with grpc_peer(broker.config.grpc_server_port) as other:
            other.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            other.flush()
            stream = receive(other, **RENEWED)
            await until(lambda: is_out(broker), what="the messages are out")
            nobodys_turn.setattr(steps, "SLICE_SECONDS_MAX", 0.0)
            nobodys_turn.setattr(connection, "EVENTS_PER_STEP", 0)
            stream.cancel()
            connections = broker._ports.grpc.server.connections
            await until(lambda: any(each._events for each in connections), what="a reset waits")
            [server] = (each for each in connections if each._events)
            server.abort()
        await until(lambda: unread(broker), what="the messages are given back")
    await come_again(broker, client)


async def test_a_stream_that_is_closed_after_its_end_keeps_its_messages(
    broker: Broker, client: GrpcPeer
) -> None:
    await filled(client)
    stream = receive(client, **RENEWED)
    _, found = await answer_of(stream)
    client._transport.write(reset(stream.stream_id, ErrorCode.NO_ERROR))
    for each in found:
        await acked(client, each)
    assert not is_out(broker)
    assert unread(broker) == 0


async def test_a_message_that_is_done_does_not_come_again(broker: Broker, client: GrpcPeer) -> None:
    await filled(client)
    stream = receive(client, **RENEWED)
    _, found = await answer_of(stream)
    for each in found[1:]:
        await acked(client, each)
    client._transport.write(reset(stream.stream_id, ErrorCode.CANCEL))
    await until(lambda: unread(broker), what="a message is given back")
    _, [again] = await answer_of(receive(client, **RENEWED))
    assert again.system_properties.message_id == "id-0"
    assert unread(broker) == 1


@pytest.mark.parametrize("size", [1, 60_000])
async def test_a_connection_ends_whose_answer_waits(
    broker: Broker, client: GrpcPeer, size: int
) -> None:
    """For windows, or in buffers of sockets."""
    await filled(client, size)
    async with grpc_peer(broker.config.grpc_server_port) as other:
        is_large = size > 1
        window = WINDOW_MAX if is_large else 0
        other.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        if is_large:
            other.http2.increment_flow_control_window(WINDOW_MAX - DEFAULT_WINDOW)
        other.flush()
        sock = other._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stream = receive(other, **RENEWED)
        other._transport.pause_reading()
        await until(lambda: is_out(broker), what="the message is out")
        assert not stream.is_over
        other.close()
    await come_again(broker, client)


@pytest.mark.skipif(not CAN_RESET, reason="this system does not say what has arrived")
async def test_what_is_given_back_arrives_no_more(broker: Broker, client: GrpcPeer) -> None:
    """Not even at a client that reads again after the broker has closed the connection."""
    await filled(client, 8_000)
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        # So the answer stays in the buffers of the broker's system.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(("127.0.0.1", broker.config.grpc_server_port))
        transport, other = await loop.create_connection(GrpcPeer, sock=sock)
        stream = receive(other, **RENEWED)
        transport.pause_reading()
        await until(lambda: is_out(broker), what="the messages are out")
        connections = broker._ports.grpc.server.connections
        [server] = (each for each in connections if each.peer == sock.getsockname())
        await until(lambda: server.http2.taken_bytes > COUNT * 8_000, what="they are sent")
        assert not server._transport.get_write_buffer_size()
        server.abort()
        await until(lambda: unread(broker) == COUNT, what="messages are given back")
        other.flush = lambda: None  # A word of the client would end it as well.
        transport.resume_reading()
        await other.gone
        assert len([each for each in await stream.messages() if each.message.body]) < COUNT
    await come_again(broker, client)


async def test_an_answer_that_was_read_stays_with_a_client_whose_connection_ends(
    broker: Broker, client: GrpcPeer
) -> None:
    await filled(client)
    async with grpc_peer(broker.config.grpc_server_port) as other:
        _, found = await answer_of(receive(other, **RENEWED))
    before = len(broker._ports.grpc.server.connections)
    await until(
        lambda: len(broker._ports.grpc.server.connections) < before or before == 1,
        what="the connection is gone",
    )
    for each in found:
        await acked(client, each)
    assert not is_out(broker)
    assert unread(broker) == 0
