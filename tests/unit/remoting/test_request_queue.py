"""How a client's requests share a connection: gathered, in order, within bounds of count and bytes.

The peer of most tests reads nothing until it is told to, as a broker does that stands still.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.support.eventually import SECONDS_MAX, until

from kerolox.errors import (
    ConnectionLostError,
    KeroloxError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.client import ClientConnection, RemotingClient
from kerolox.remoting.client_connection import BUFFER_BYTES_MAX, ONEWAY_PER_ITERATION_MAX
from kerolox.remoting.connection import WRITE_HIGH_WATER_BYTES
from kerolox.remoting.server import RemotingServer, ServerConnection

KIB, MIB = 1 << 10, 1 << 20
SOCKET_BYTES = 64 * KIB
PATIENT = 600.0
UNSENT_BYTES_MAX = WRITE_HIGH_WATER_BYTES + BUFFER_BYTES_MAX + MIB


class StandingPeer:
    """Accepts a connection, and reads when it is told to; answers each request that is no
    one-way with code 0. ``seen`` has the bodies in order."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.reads = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = asyncio.ensure_future(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            peer, _ = await loop.sock_accept(self._listener)
            self._tasks.append(asyncio.ensure_future(self._serve(peer)))

    async def _serve(self, peer: socket.socket) -> None:
        loop, decoder = asyncio.get_running_loop(), FrameDecoder()
        with peer:
            await self.reads.wait()
            while data := await loop.sock_recv(peer, MIB):
                answers = []
                for frame in decoder.feed(memoryview(data)):
                    command = RemotingCommand.decode(frame)
                    self.seen.append(command.body)
                    if not command.is_oneway:
                        answers.append(command.response().encode())
                await loop.sock_sendall(peer, b"".join(answers))

    async def close(self) -> None:
        tasks = [self._accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()


@asynccontextmanager
async def stream_position(**settings: int) -> AsyncIterator[tuple[StandingPeer, RemotingClient]]:
    peer = StandingPeer()
    client = RemotingClient(connect_timeout_seconds=SECONDS_MAX, **settings)
    try:
        yield peer, client
    finally:
        peer.reads.set()
        await client.close()
        await peer.close()


async def ask_too_much(
    client: RemotingClient, peer: StandingPeer
) -> list[asyncio.Task[RemotingCommand]]:
    """20 requests of a MiB each, begun; the connection is open."""
    asked = [
        asyncio.ensure_future(
            client.invoke(peer.address, request(bytes(MIB)), timeout_seconds=PATIENT)
        )
        for _ in range(20)
    ]
    await until(lambda: client.connection(peer.address))
    return asked


def connection_of(client: RemotingClient, address: str) -> ClientConnection:
    connection = client.connection(address)
    assert connection is not None
    return connection


def unsent(client: RemotingClient, address: str) -> int:
    return connection_of(client, address)._transport.get_write_buffer_size()


def request(body: bytes = b"x") -> RemotingCommand:
    return RemotingCommand.request(1, body=body)


async def answer(command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
    return command.response()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_requests_of_one_turn_leave_in_one_write(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    send = ClientConnection.send

    def counted(self: ClientConnection, data: bytes) -> None:
        writes.append(len(data))
        send(self, data)

    async def run() -> None:
        server = RemotingServer(answer, host="127.0.0.1", port=0)
        await server.start()
        address = f"127.0.0.1:{server.port}"
        async with RemotingClient(connect_timeout_seconds=SECONDS_MAX) as client:
            await client.invoke(address, request(), timeout_seconds=SECONDS_MAX)
            writes.clear()
            asked = (
                client.invoke(address, request(), timeout_seconds=SECONDS_MAX) for _ in range(100)
            )
            await asyncio.gather(*asked)
        await server.stop()

    monkeypatch.setattr(ClientConnection, "send", counted)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())
    assert len(writes) == 1


async def test_more_than_a_peer_takes_waits_and_arrives_in_order() -> None:
    async with stream_position() as (peer, client):
        bodies = [b"%06d" % number + bytes(100 * KIB) for number in range(800)]
        asked = [
            asyncio.ensure_future(
                client.invoke(peer.address, request(body), timeout_seconds=PATIENT)
            )
            for body in bodies
        ]
        await until(lambda: client.connection(peer.address))
        await until(lambda: connection_of(client, peer.address).blocked)
        assert unsent(client, peer.address) <= UNSENT_BYTES_MAX
        assert not any(task.done() for task in asked)
        peer.reads.set()
        answers = await asyncio.gather(*asked)
        assert {answer.code for answer in answers} == {0}
        assert [body[:6] for body in peer.seen] == [body[:6] for body in bodies]


async def test_requests_that_wait_for_room_end_at_their_own_time() -> None:
    async with stream_position() as (peer, client):
        patient = await ask_too_much(client, peer)
        await until(lambda: connection_of(client, peer.address).blocked)
        with pytest.raises(RequestTimeoutError, match="no capacity in time for request 1 to"):
            await client.invoke(peer.address, request(b"late"), timeout_seconds=0.05)
        with pytest.raises(RequestTimeoutError, match="one-way request 1"):
            await client.invoke_oneway(peer.address, request(b"late"), timeout_seconds=0.05)
        peer.reads.set()
        await asyncio.gather(*patient)
        assert b"late" not in peer.seen


async def test_a_request_that_is_cancelled_while_it_waits_is_not_sent() -> None:
    async with stream_position(open_calls_max=1) as (peer, client):
        first, second, third = (
            asyncio.ensure_future(
                client.invoke(peer.address, request(body), timeout_seconds=PATIENT)
            )
            for body in (b"1", b"2", b"3")
        )
        await until(lambda: client.connection(peer.address))
        await until(lambda: not connection_of(client, peer.address).has_capacity())
        second.cancel()
        peer.reads.set()
        await asyncio.gather(first, third)
        assert peer.seen == [b"1", b"3"]
        assert second.cancelled()


async def test_as_many_requests_are_unanswered_as_are_allowed_and_no_more() -> None:
    open_at_once: list[int] = []

    async def note(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
        [mine] = client._connections.values()
        open_at_once.append(len(mine.requests.calls))
        await asyncio.sleep(0)
        return command.response()

    server = RemotingServer(note, host="127.0.0.1", port=0)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    async with RemotingClient(open_calls_max=3, connect_timeout_seconds=SECONDS_MAX) as client:
        asked = (client.invoke(address, request(), timeout_seconds=PATIENT) for _ in range(50))
        assert len(await asyncio.gather(*asked)) == 50
    await server.stop()
    assert max(open_at_once) == 3


async def test_a_request_that_waits_for_its_answer_keeps_nothing_of_its_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []

    class Frame(bytes):
        def __del__(self) -> None:
            freed.append(len(self))

    encode = RemotingCommand.encode
    monkeypatch.setattr(RemotingCommand, "encode", lambda command: Frame(encode(command)))
    async with stream_position() as (peer, client):
        asked = asyncio.ensure_future(
            client.invoke(peer.address, request(bytes(KIB)), timeout_seconds=PATIENT)
        )
        await until(lambda: freed)
        assert freed[0] > KIB
        assert not asked.done()
        peer.reads.set()
        await asked


async def test_one_that_no_frame_holds_fails_alone_while_it_waits() -> None:
    async with stream_position(open_calls_max=1) as (peer, client):
        bodies = (b"1", bytes(17 * MIB), b"3")
        asked = [
            asyncio.ensure_future(
                client.invoke(peer.address, request(body), timeout_seconds=PATIENT)
            )
            for body in bodies
        ]
        await until(lambda: client.connection(peer.address))
        await until(lambda: not connection_of(client, peer.address).has_capacity())
        peer.reads.set()
        with pytest.raises(LocalProtocolError):
            await asked[1]
        await asyncio.gather(asked[0], asked[2])
        assert peer.seen == [b"1", b"3"]


async def test_one_that_goes_ahead_passes_those_that_wait_for_room() -> None:
    async with stream_position(open_calls_max=1) as (peer, client):
        asked = [
            asyncio.ensure_future(
                client.invoke(peer.address, request(body), timeout_seconds=PATIENT)
            )
            for body in (b"1", b"2", b"3")
        ]
        await until(lambda: client.connection(peer.address))
        await until(lambda: not connection_of(client, peer.address).has_capacity())
        heartbeat = asyncio.ensure_future(
            client.invoke(peer.address, request(b"now"), timeout_seconds=PATIENT, ahead=True)
        )
        await asyncio.sleep(0)
        peer.reads.set()
        await asyncio.gather(heartbeat, *asked)
        assert peer.seen == [b"1", b"now", b"2", b"3"]


async def test_requests_that_wait_for_room_end_with_their_connection() -> None:
    async with stream_position(open_calls_max=1) as (peer, client):
        asked = [
            asyncio.ensure_future(client.invoke(peer.address, request(), timeout_seconds=PATIENT))
            for _ in range(3)
        ]
        await until(lambda: client.connection(peer.address))
        connection = connection_of(client, peer.address)
        await until(lambda: not connection.has_capacity())
        connection.abort()
        ends: list[KeroloxError] = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [ConnectionLostError] * 3
        assert "before request 1" in str(ends[2])


async def test_a_client_that_closes_with_unsent_bytes_ends_when_its_peer_takes_them() -> None:
    async with stream_position() as (peer, client):
        asked = await ask_too_much(client, peer)
        connection = connection_of(client, peer.address)
        await until(lambda: connection.blocked)
        connection.close()
        peer.reads.set()
        await until(connection.gone.done)
        connection.abort()  # asyncio's transport would raise
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionLostError}


async def test_a_loop_of_one_way_requests_lets_others_have_their_turns() -> None:
    async with stream_position() as (peer, client):
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await client.invoke_oneway(peer.address, request(), timeout_seconds=PATIENT)
        beside = asyncio.ensure_future(other())
        for _ in range(10 * ONEWAY_PER_ITERATION_MAX):
            await client.invoke_oneway(peer.address, request(), timeout_seconds=PATIENT)
        beside.cancel()
        assert turns >= 9


async def test_one_way_requests_to_a_peer_that_takes_nothing_wait_at_the_bound() -> None:
    async with stream_position() as (peer, client):
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(100_000):
                body = b"%06d" % sent + bytes(KIB)
                await client.invoke_oneway(peer.address, request(body), timeout_seconds=PATIENT)
                sent += 1

        flooding = asyncio.ensure_future(flood())
        await until(lambda: client.connection(peer.address))
        await until(lambda: connection_of(client, peer.address).blocked)
        assert unsent(client, peer.address) <= UNSENT_BYTES_MAX
        before = sent
        peer.reads.set()
        await until(lambda: sent > before + 1_000)
        flooding.cancel()
        assert [int(body[:6]) for body in peer.seen] == list(range(len(peer.seen)))


async def test_answers_are_read_while_requests_wait_to_be_taken() -> None:
    async with stream_position() as (peer, client):
        asked = await ask_too_much(client, peer)
        connection = connection_of(client, peer.address)
        await until(lambda: connection.blocked)
        assert connection._transport.is_reading()
        peer.reads.set()
        await asyncio.gather(*asked)


async def test_handlers_of_a_servers_requests_run_in_a_task() -> None:
    async def on_request(command: RemotingCommand, _: ClientConnection) -> RemotingCommand:
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.sleep(0)
            return command.response(0, "in time")

    async def ask_back(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
        answer = await connection.request(RemotingCommand.request(40), timeout_seconds=PATIENT)
        return command.response(0, answer.remark)

    server = RemotingServer(ask_back, host="127.0.0.1", port=0)
    await server.start()
    async with RemotingClient(connect_timeout_seconds=SECONDS_MAX, on_request=on_request) as client:
        got = await client.invoke(
            f"127.0.0.1:{server.port}", request(), timeout_seconds=SECONDS_MAX
        )
    await server.stop()
    assert got.remark == "in time"
