"""The server's rules, over real sockets on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import replace
from functools import partial

import pytest
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.just_accepted import STEPS, ends_with_it

from kerolox.errors import (
    ConfigError,
    ConnectionLostError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from kerolox.kernel.feed import FED_MORE, FED_READY
from kerolox.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting import connection as connection_module
from kerolox.remoting.connection import CAN_RESET
from kerolox.remoting.server import (
    ACCEPTS_PER_ITERATION,
    ConnectionLimits,
    FastPath,
    RemotingServer,
    ServerConnection,
)

ECHO, WAIT, FAIL, NOTHING, BIG, REFUSE = 1, 2, 3, 4, 5, 6


class Peer:
    """A client made of a raw socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(command.encode() for command in commands))

    async def receive(self) -> RemotingCommand:
        async with asyncio.timeout(SECONDS_MAX):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return RemotingCommand.decode(await self.reader.readexactly(size))

    async def at_end(self) -> bool:
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


def request(code: int, opaque: int = 0, **settings: object) -> RemotingCommand:
    return RemotingCommand(code, opaque=opaque, **settings)


class Handler:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.calls = 0

    async def __call__(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        self.calls += 1
        match command.code:
            case 1:
                return command.response(0, "echo", body=command.body)
            case 2:
                await self.gate.wait()
                return command.response(0, "waited")
            case 3:
                raise ValueError("out of order")
            case 5:
                return command.response(0, body=bytes(1 << 20))
            case 6:
                await asyncio.sleep(0)
                raise TopicNotFoundError("no such topic")
        return None


@contextlib.asynccontextmanager
async def serving(**settings: object):
    handler = settings.pop("handler", None) or Handler()
    server = RemotingServer(handler, host="127.0.0.1", port=0, **settings)
    await server.start()
    writers = []

    async def connect() -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        return Peer(reader, writer)

    try:
        yield server, handler, connect
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


async def test_a_response_has_the_opaque_and_the_encoding_of_its_request() -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        binary = request(ECHO, -7, body=b"x", serialize_type=SerializeType.ROCKETMQ)
        peer.send(binary, request(ECHO, 8))
        first, second = await peer.receive(), await peer.receive()
        assert (first.opaque, first.serialize_type, first.body) == (
            -7,
            SerializeType.ROCKETMQ,
            b"x",
        )
        assert (second.opaque, second.serialize_type) == (8, SerializeType.JSON)
        assert first.flag == second.flag == FLAG_RESPONSE


async def test_a_request_cut_into_single_bytes_is_answered() -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        for byte in request(ECHO, 3, body=b"slow").encode():
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
        assert (await peer.receive()).body == b"slow"


async def test_a_handler_that_waits_does_not_hold_up_the_others() -> None:
    async with serving() as (_, handler, connect):
        peer = await connect()
        peer.send(request(WAIT, 1), request(ECHO, 2))
        assert (await peer.receive()).opaque == 2
        handler.gate.set()
        assert (await peer.receive()).remark == "waited"


async def test_an_error_of_a_handler_is_code_1_with_its_name(caplog) -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        peer.send(request(FAIL, 1))
        answer = await peer.receive()
        assert (answer.code, answer.remark) == (1, "ValueError: out of order")
    assert "request 3" in caplog.text


async def test_a_broker_error_of_a_handler_is_the_answer_of_its_code() -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        peer.send(request(REFUSE, 1))
        answer = await peer.receive()
        assert (answer.code, answer.remark) == (17, "no such topic")


async def test_neither_one_way_requests_nor_none_are_answered() -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        peer.send(
            request(ECHO, 1, flag=FLAG_ONEWAY),
            request(FAIL, 2, flag=FLAG_ONEWAY),
            request(NOTHING, 3),
            request(ECHO, 4),
        )
        assert (await peer.receive()).opaque == 4


@pytest.mark.parametrize(
    "lengths",
    [
        struct.pack(">iI", 16 * 1024 * 1024 + 1, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 3, 0),
        struct.pack(">iI", 100, 97),
        struct.pack(">iI", 15_000_000, (4 << 20) + 1),
    ],
    ids=["too long", "negative", "too short", "longer header than frame", "header too long"],
)
async def test_a_frame_that_can_not_be_closes_only_its_connection(lengths: bytes, caplog) -> None:
    async with serving() as (_, _handler, connect):
        bad, good = await connect(), await connect()
        bad.send(request(ECHO, 1))
        bad.writer.write(lengths)
        assert (await bad.receive()).opaque == 1
        assert await bad.at_end()
        good.send(request(ECHO, 2))
        assert (await good.receive()).opaque == 2
    assert "closing 127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x05nope!",
        b"\x00\x00\x00\x0e" + b'{"code":"ten"}',
        b"\x00\x00\x00\x02" + b"[]",
        b"\x07\x00\x00\x02{}",
        b"\x01\x00\x00\x04\x00\x01\x00\x01",
        b"\x00\x00\x00\x04\xff\xfe\xfd\xfc",
    ],
    ids=["no JSON", "wrong type", "no object", "unknown encoding", "cut binary", "no UTF-8"],
)
async def test_a_header_that_can_not_be_read_closes_the_connection(frame: bytes, caplog) -> None:
    async with serving() as (_, _handler, connect):
        peer = await connect()
        peer.send(request(ECHO, 1))
        peer.writer.write(struct.pack(">i", len(frame)) + frame)
        assert (await peer.receive()).opaque == 1
        assert await peer.at_end()
    assert "closing 127.0.0.1:" in caplog.text


async def test_a_truncated_frame_is_dropped_with_its_connection() -> None:
    async with serving() as (server, handler, connect):
        peer = await connect()
        peer.writer.write(request(ECHO).encode()[:-3])
        peer.writer.write_eof()
        assert await peer.at_end()
        assert (server.connections, handler.calls) == ([], 0)


async def test_requests_beyond_the_bound_wait_for_a_handler_to_finish() -> None:
    async with serving(connection_limits=ConnectionLimits(in_flight_max=2)) as (
        _,
        handler,
        connect,
    ):
        peer = await connect()
        peer.send(*(request(WAIT, i) for i in range(5)), request(ECHO, 9))
        await until(lambda: handler.calls == 2)
        handler.gate.set()
        answers = [await peer.receive() for _ in range(6)]
        assert sorted(answer.opaque for answer in answers) == [0, 1, 2, 3, 4, 9]


async def test_bytes_beyond_the_bound_wait_for_a_handler_to_finish(monkeypatch) -> None:
    monkeypatch.setattr(connection_module, "IN_FLIGHT_BYTES_MAX", 100_000)
    async with serving() as (server, handler, connect):
        peer = await connect()
        peer.send(*(request(WAIT, i, body=bytes(60_000)) for i in range(5)), request(ECHO, 9))
        await until(lambda: handler.calls == 2 and server.connections[0]._paused)
        other = await connect()
        other.send(request(ECHO, 7))
        assert (await other.receive()).opaque == 7
        assert handler.calls == 3
        handler.gate.set()
        answers = [await peer.receive() for _ in range(6)]
        assert sorted(answer.opaque for answer in answers) == [0, 1, 2, 3, 4, 9]


async def test_a_peer_that_does_not_read_is_not_read() -> None:
    async with serving() as (server, handler, connect):
        peer = await connect()
        peer.send(*(request(BIG, i) for i in range(64)))
        paused = connection_module.PAUSED_BY_WRITES
        await until(lambda: server.connections and server.connections[0]._paused & paused)
        peer.send(request(ECHO, 99, body=bytes(1 << 20)))
        assert handler.calls <= 64
        assert [(await peer.receive()).opaque for _ in range(64)] == list(range(64))
        assert (await peer.receive()).opaque == 99
        assert handler.calls == 65


async def test_the_requests_of_one_connection_let_those_of_others_in_between() -> None:
    async with serving() as (_, handler, connect):
        greedy, other = await connect(), await connect()
        other.send(request(ECHO, 1))
        assert (await other.receive()).opaque == 1
        greedy.send(*(request(ECHO, i) for i in range(5000)))
        await until(lambda: handler.calls > 1)
        other.send(request(ECHO, 2))
        assert (await other.receive()).opaque == 2
        assert handler.calls < 4000, "the other one had to wait for all of them"
        answers = [(await greedy.receive()).opaque for _ in range(5000)]
        assert answers == list(range(5000))


async def test_big_chunks_are_read_a_few_in_each_turn_of_the_loop_and_in_order() -> None:
    turns = [0]
    resumed: list[tuple[int, int]] = []

    class Waiting:
        def __init__(self, number: int) -> None:
            self.number = number

        def resume_reading(self) -> None:
            resumed.append((turns[0], self.number))

    async with serving() as (server, _, _):
        for number in range(10):
            server.queue_read(Waiting(number), 1 << 18)
        assert not resumed
        while len(resumed) < 10:
            turns[0] += 1
            await asyncio.sleep(0)
            assert turns[0] < 100
    first = resumed[0][0]
    assert resumed == [(first + number // 4, number) for number in range(10)]


async def test_a_connection_is_examined_again_when_something_comes_or_goes() -> None:
    async with serving() as (server, handler, connect):
        peer = await connect()
        peer.send(request(ECHO, 1))
        await peer.receive()
        [connection] = server.connections
        assert connection.is_counted
        server.memory_limiter.check()
        assert not connection.is_counted
        peer.send(request(WAIT, 2, body=bytes(1000)))
        await until(lambda: handler.calls == 2)
        assert server.memory_limiter.check() >= 1000
        handler.gate.set()
        await peer.receive()
        assert server.memory_limiter.check() == 0
        connection.send(request(ECHO, 3).encode())
        assert connection.is_counted


async def test_big_frames_of_many_connections_all_arrive() -> None:
    body = bytes(range(256)) * 4096
    async with serving() as (_, handler, connect):
        peers = [await connect() for _ in range(12)]
        for number, peer in enumerate(peers):
            peer.send(request(ECHO, number, body=body), request(ECHO, number, body=body))
        for number, peer in enumerate(peers):
            for _ in range(2):
                answer = await peer.receive()
                assert (answer.opaque, answer.body) == (number, body)
        assert handler.calls == 24


async def test_a_peer_that_takes_nothing_is_cut_off(monkeypatch, caplog) -> None:
    monkeypatch.setattr(connection_module, "WRITE_BYTES_MAX", 8 << 20)
    async with serving() as (server, _handler, connect):
        peer = await connect()
        peer.send(request(ECHO))
        await peer.receive()
        [connection] = server.connections
        for _ in range(20):
            connection.send(bytes(4 << 20))
            if connection.closed:
                break
        await until(lambda: not server.connections)
    assert "bytes unread" in caplog.text


async def test_a_silent_connection_is_closed() -> None:
    async with serving(connection_limits=ConnectionLimits(idle_seconds_max=0.1)) as (
        _,
        _handler,
        connect,
    ):
        assert await (await connect()).at_end()


async def test_the_server_asks_the_client() -> None:
    async def handler(
        command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        answer = await connection.request(RemotingCommand.request(40), timeout_seconds=30)
        return command.response(0, answer.remark)

    async with serving(handler=handler) as (_, _handler, connect):
        peer = await connect()
        peer.send(request(1, 77))
        asked = await peer.receive()
        assert asked.code == 40
        peer.send(asked.response(0, "here I am"))
        answer = await peer.receive()
        assert (answer.opaque, answer.remark) == (77, "here I am")


async def test_a_client_that_does_not_answer_the_server_times_out_or_is_lost() -> None:
    async with serving() as (server, _handler, connect):
        peer = await connect()
        await until(lambda: server.connections)
        [connection] = server.connections
        with pytest.raises(RequestTimeoutError, match="request 40"):
            await connection.request(RemotingCommand.request(40), timeout_seconds=0.02)
        waiting = asyncio.ensure_future(
            connection.request(RemotingCommand.request(40), timeout_seconds=30)
        )
        await peer.receive()
        peer.writer.close()
        with pytest.raises(ConnectionLostError):
            await waiting
        with pytest.raises(ConnectionLostError):
            await connection.request(RemotingCommand.request(40), timeout_seconds=30)


async def test_a_connection_is_announced_when_it_closes() -> None:
    seen: list[str] = []

    def note(connection: ServerConnection) -> None:
        seen.append(connection.remote_address)

    async with serving(on_close=note) as (_, _handler, connect):
        peer = await connect()
        host, port = peer.writer.get_extra_info("sockname")
        peer.writer.close()
        await until(lambda: bool(seen))
        assert seen == [f"{host}:{port}"]


async def test_a_connection_too_many_is_closed_and_the_others_go_on(caplog) -> None:
    async with serving(connection_limits=ConnectionLimits(connections_max=1)) as (
        _,
        _handler,
        connect,
    ):
        first = await connect()
        first.send(request(ECHO, 1))
        await first.receive()
        assert await (await connect()).at_end()
        first.send(request(ECHO, 2))
        assert (await first.receive()).opaque == 2
    assert "there are 1 connections already" in caplog.text


async def test_connections_that_come_at_once_are_accepted_a_few_in_an_iteration() -> None:
    async with serving() as (server, _handler, connect):
        first = await connect()
        first.send(request(ECHO, 1))
        await first.receive()
        with contextlib.ExitStack() as opened:
            for _ in range(40):
                opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            grown, count = [], len(server.connections)
            async with asyncio.timeout(SECONDS_MAX):
                while len(server.connections) < 41:
                    await asyncio.sleep(0)
                    grown.append(len(server.connections) - count)
                    count += grown[-1]
        # asyncio of Python 3.12 accepts one more.
        assert max(grown) <= ACCEPTS_PER_ITERATION + 1


async def test_a_connection_that_would_take_the_last_descriptors_is_closed(
    caplog, monkeypatch
) -> None:
    async with serving() as (server, _handler, connect):
        first = await connect()
        first.send(request(ECHO, 1))
        await first.receive()
        monkeypatch.setattr(server._admission, "_descriptors_max", 0)
        assert await (await connect()).at_end()
        first.send(request(ECHO, 2))
        assert (await first.receive()).opaque == 2
    assert "raise the limit (ulimit -n)" in caplog.text


async def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async with serving() as (server, handler, _connect):
        with pytest.raises(ConfigError, match=rf"port {server.port} .* in use .* choose another"):
            await RemotingServer(handler, host="127.0.0.1", port=server.port).start()


async def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ConfigError, match="can't be listened on"):
        await RemotingServer(Handler(), host="192.0.2.1", port=0).start()


async def test_stop_ends_waiting_handlers_and_closes_connections() -> None:
    async with serving() as (server, handler, connect):
        peer = await connect()
        peer.send(request(WAIT, 1))
        await until(lambda: handler.calls)
        # Nothing opens the gate: the handler would wait for ever.
        async with asyncio.timeout(SECONDS_MAX):
            await server.stop()
        assert await peer.at_end()
        await server.stop()


def until_reset(peer: socket.socket) -> bytes:
    """What comes before the connection is reset."""
    data = bytearray()
    try:
        while piece := peer.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        return bytes(data)
    raise AssertionError("it just ended")


@pytest.mark.parametrize("steps", STEPS)
async def test_a_connection_that_is_just_accepted_ends_with_a_stop(steps: int) -> None:
    async with serving() as (server, _, _):

        async def stop() -> None:
            await server.stop()
            assert not server.connections

        assert await ends_with_it(server.port, steps, stop)


async def test_a_request_that_a_stop_interrupts_is_answered_with_code_14() -> None:
    async with serving() as (server, handler, _connect):
        with socket.create_connection(("127.0.0.1", server.port), SECONDS_MAX) as peer:
            peer.sendall(request(WAIT, 7).encode() + request(WAIT, 8, flag=FLAG_ONEWAY).encode())
            await until(lambda: handler.calls == 2)
            await server.stop()
            answer = RemotingCommand.decode(peer.recv(4096)[4:])
            assert (answer.opaque, answer.code) == (7, ResponseCode.SERVICE_NOT_AVAILABLE)
            assert "it stops" in str(answer.remark)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)


@pytest.mark.skipif(not CAN_RESET, reason="this system does not say what has arrived")
async def test_a_stop_resets_a_connection_when_all_its_answers_have_arrived() -> None:
    # The end of a stream would leave Java clients waiting for the request that nobody reads.
    async with serving(connection_limits=ConnectionLimits(in_flight_max=1)) as (
        server,
        handler,
        _connect,
    ):
        with socket.create_connection(("127.0.0.1", server.port), SECONDS_MAX) as peer:
            peer.sendall(request(BIG, 1).encode() + request(WAIT, 2).encode())
            await until(lambda: handler.calls == 2)
            peer.sendall(request(ECHO, 3).encode())
            stopping = asyncio.ensure_future(server.stop())
            data = await asyncio.to_thread(until_reset, peer)
            await stopping
    (size,) = struct.unpack_from(">i", data)
    second = RemotingCommand.decode(data[8 + size :])
    assert (size > 1 << 20, second.opaque, handler.calls) == (True, 2, 2)


async def test_a_stop_waits_in_vain_for_a_peer_that_takes_nothing(monkeypatch) -> None:
    monkeypatch.setattr("kerolox.remoting.server.STOP_SECONDS_MAX", 0.05)
    async with serving() as (server, handler, _connect):
        with socket.create_connection(("127.0.0.1", server.port), SECONDS_MAX) as peer:
            peer.sendall(b"".join(request(BIG, each).encode() for each in range(8)))
            await until(lambda: handler.calls and server.connections[0].blocked)
            async with asyncio.timeout(SECONDS_MAX):
                await server.stop()
            assert server.connections == []


class FakeKernel:
    """Answers each chunk from a script: tuples of what ``feed`` gives."""

    def __init__(self, script: list[tuple[bytes, list[bytes] | None, int, str | None]]) -> None:
        self.script, self.fed, self.closed = script, [], False
        self.unfinished_bytes = 0

    def feed(self, data: bytes, size: int) -> tuple[bytes, list[bytes] | None, int, str | None]:
        self.fed.append(bytes(data[:size]))
        return self.script.pop(0) if self.script else (b"", None, 0, None)

    def close(self) -> None:
        self.closed = True


@contextlib.asynccontextmanager
async def fed_by(*script: tuple[bytes, list[bytes] | None, int, str | None]):
    kernel = FakeKernel(list(script))
    identity = []

    def feeder(connection_id: int, born_host: bytes) -> FakeKernel:
        identity.append((connection_id, born_host))
        return kernel

    async with serving(fast_path=FastPath(feeder)) as (server, _handler, connect):
        peer = await connect()
        yield server, kernel, peer, identity


async def test_the_kernel_answers_hot_frames_and_hands_up_cold_ones() -> None:
    cold = request(ECHO, 5, body=b"cold").encode()[4:]
    hot = request(0, 4, flag=FLAG_RESPONSE).encode()
    async with fed_by((hot, [cold], 0, None)) as (_, kernel, peer, identity):
        peer.writer.write(b"anything")
        assert (await peer.receive()).opaque == 4
        assert (await peer.receive()).body == b"cold"
        assert kernel.fed == [b"anything"]
        [(_connection_id, born_host)] = identity
        assert born_host[:4] == bytes([127, 0, 0, 1])
        peer.writer.close()
        await until(lambda: kernel.closed)


async def test_frames_that_the_kernel_kept_are_fed_before_more_is_read() -> None:
    part = [request(0, i, flag=FLAG_RESPONSE).encode() for i in range(3)]
    script = (
        (part[0], None, FED_MORE, None),
        (part[1], None, FED_MORE, None),
        (part[2], None, 0, None),
    )
    async with fed_by(*script) as (_, kernel, peer, _identity):
        peer.writer.write(b"first")
        assert [(await peer.receive()).opaque for _ in range(3)] == [0, 1, 2]
        peer.writer.write(b"second")
        await until(lambda: len(kernel.fed) == 4)
        assert kernel.fed == [b"first", b"", b"", b"second"]


async def test_a_framing_error_of_the_kernel_closes_after_its_answers(caplog) -> None:
    hot = request(0, 4, flag=FLAG_RESPONSE).encode()
    async with fed_by((hot, None, 0, "frame of -1 bytes")) as (_, _kernel, peer, _identity):
        peer.writer.write(b"anything")
        assert (await peer.receive()).opaque == 4
        assert await peer.at_end()
    assert "frame of -1 bytes" in caplog.text


async def test_answers_that_become_ready_later_are_delivered() -> None:
    async with fed_by((b"", None, FED_READY, None)) as (server, _kernel, peer, identity):
        answer = request(0, 8, flag=FLAG_RESPONSE).encode()
        deliver = partial(server.deliver, identity[0][0], answer)
        server.fast_path = replace(server.fast_path, on_ready=deliver)
        peer.writer.write(b"anything")
        assert (await peer.receive()).opaque == 8
        server.deliver(12345, answer)


async def test_a_slow_reader_gets_all_that_the_kernel_kept() -> None:
    big = request(0, 1, flag=FLAG_RESPONSE, body=bytes(4 << 20)).encode()
    script = [(big, None, FED_MORE, None)] * 5 + [(big, None, 0, None)]
    async with fed_by(*script) as (server, kernel, peer, _identity):
        peer.writer.write(b"x")
        await until(lambda: server.connections and server.connections[0]._paused)
        for _ in range(6):
            assert len((await peer.receive()).body) == 4 << 20
        assert kernel.script == []
