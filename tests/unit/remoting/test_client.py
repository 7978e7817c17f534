"""The client's rules, against servers on the loopback."""

from __future__ import annotations

import asyncio
import re
import struct
from contextlib import asynccontextmanager

import pytest
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.up import deaf_address
from tests.unit.codec.rig import CODECS, NAMES

from kerolox.codec.sending import SendCodec
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import ClientConnection, RemotingClient
from kerolox.remoting.server import RemotingServer, ServerConnection

ECHO, NOTHING, HANG_UP, ASK_BACK = 1, 2, 3, 4


async def handler(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand | None:
    match command.code:
        case 1:
            return command.response(0, body=command.body)
        case 3:
            connection.close()
        case 4:
            answer = await connection.request(RemotingCommand.request(40), timeout_seconds=30)
            return command.response(0, answer.remark)
    return None


@asynccontextmanager
async def pair(**settings: object):
    server = RemotingServer(handler, host="127.0.0.1", port=0)
    await server.start()
    client = RemotingClient(**{"connect_timeout_seconds": 30.0, **settings})
    try:
        yield server, client, f"127.0.0.1:{server.port}"
    finally:
        await client.close()
        await server.stop()


async def test_many_requests_share_one_connection_and_get_their_own_answers() -> None:
    async with pair() as (server, client, address):
        bodies = [str(i).encode() for i in range(500)]
        answers = await asyncio.gather(
            *(
                client.invoke(
                    address, RemotingCommand.request(ECHO, body=body), timeout_seconds=30.0
                )
                for body in bodies
            )
        )
        assert [answer.body for answer in answers] == bodies
        assert len(server.connections) == 1


async def test_answers_in_another_order_find_their_requests() -> None:
    gates = [asyncio.Event() for _ in range(5)]

    async def answer(command: RemotingCommand, connection: object) -> RemotingCommand:
        number = int(command.body)
        if number + 1 < len(gates):
            await gates[number + 1].wait()  # the one behind is answered first
        gates[number].set()
        return command.response(body=command.body)

    server = RemotingServer(answer, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with RemotingClient() as client:
            address = f"127.0.0.1:{server.port}"
            requests = [RemotingCommand.request(ECHO, body=b"%d" % n) for n in range(len(gates))]
            answers = await asyncio.gather(
                *(client.invoke(address, each, timeout_seconds=30.0) for each in requests)
            )
        assert [each.body for each in answers] == [each.body for each in requests]
    finally:
        await server.stop()


async def test_no_connection_is_an_error_that_names_the_address() -> None:
    with deaf_address() as address:
        async with RemotingClient() as client:
            with pytest.raises(ConnectError, match=rf"{address}: Connection refused"):
                await client.invoke(address, RemotingCommand.request(ECHO))


@pytest.mark.parametrize("address", ["", "localhost", ":9876", "host:", "host:port", "host:99999"])
async def test_an_address_that_is_none_is_a_connect_error(address: str) -> None:
    async with RemotingClient() as client:
        with pytest.raises(ConnectError, match="write host:port"):
            await client.invoke(address, RemotingCommand.request(ECHO))


async def test_no_response_is_a_timeout_that_names_the_request() -> None:
    async with pair() as (_, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        with pytest.raises(RequestTimeoutError, match=f"request 2 to {address}"):
            await client.invoke(address, RemotingCommand.request(NOTHING), timeout_seconds=0.05)
        assert (await client.invoke(address, RemotingCommand.request(ECHO))).code == 0


async def test_a_shorter_deadline_counts_beside_a_longer_one() -> None:
    async with pair() as (_, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        long = asyncio.ensure_future(
            client.invoke(address, RemotingCommand.request(NOTHING), timeout_seconds=30)
        )
        with pytest.raises(RequestTimeoutError):
            await client.invoke(address, RemotingCommand.request(NOTHING), timeout_seconds=0.05)
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long


async def test_a_lost_connection_ends_its_requests_and_the_next_one_reconnects() -> None:
    async with pair() as (_, client, address):
        waiting = asyncio.ensure_future(client.invoke(address, RemotingCommand.request(NOTHING)))
        with pytest.raises(ConnectionLostError, match="request 3"):
            await client.invoke(address, RemotingCommand.request(HANG_UP))
        with pytest.raises(ConnectionLostError, match="request 2"):
            await waiting
        assert (await client.invoke(address, RemotingCommand.request(ECHO))).code == 0


async def test_a_server_that_sends_no_frames_ends_the_connection(caplog) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">ii", -5, 0))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with RemotingClient() as client:
        with pytest.raises(ConnectionLostError):
            await client.invoke(f"127.0.0.1:{port}", RemotingCommand.request(ECHO))
    server.close()
    assert re.search("frame (of|length) -5 ", caplog.text)


async def test_a_response_that_nobody_waits_for_is_dropped() -> None:
    async with pair() as (server, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        [connection] = server.connections
        connection.send_command(RemotingCommand(0, opaque=4711, flag=1))
        assert (await client.invoke(address, RemotingCommand.request(ECHO))).code == 0


async def test_requests_of_the_server_go_to_the_handler() -> None:
    async def on_request(
        command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        return command.response(0, f"asked {command.code}")

    async with pair(on_request=on_request) as (_, client, address):
        answer = await client.invoke(address, RemotingCommand.request(ASK_BACK))
        assert answer.remark == "asked 40"


async def test_one_way_requests_have_the_flag_and_return_at_once() -> None:
    seen = asyncio.Queue[RemotingCommand]()

    async def note(command: RemotingCommand, _: ServerConnection) -> RemotingCommand | None:
        seen.put_nowait(command)
        return command.response()

    server = RemotingServer(note, host="127.0.0.1", port=0)
    await server.start()
    async with RemotingClient() as client:
        await client.invoke_oneway(f"127.0.0.1:{server.port}", RemotingCommand.request(ECHO))
        async with asyncio.timeout(SECONDS_MAX):
            assert (await seen.get()).is_oneway
    await server.stop()


async def test_requests_beyond_the_bound_wait_and_time_out() -> None:
    async with pair(open_calls_max=1) as (_, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        first = asyncio.ensure_future(
            client.invoke(address, RemotingCommand.request(NOTHING), timeout_seconds=0.2)
        )
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeoutError):
            await client.invoke(address, RemotingCommand.request(NOTHING), timeout_seconds=0.05)
        with pytest.raises(RequestTimeoutError):
            await first


async def test_a_command_that_no_frame_holds_is_refused_before_it_is_sent() -> None:
    async with pair() as (_, client, address):
        with pytest.raises(LocalProtocolError, match="the limit is 16777216"):
            await client.invoke(address, RemotingCommand.request(ECHO, body=bytes(16 << 20)))


async def test_a_closed_client_refuses_and_ends_what_is_open() -> None:
    async with pair() as (_, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        waiting = asyncio.ensure_future(client.invoke(address, RemotingCommand.request(NOTHING)))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await client.invoke(address, RemotingCommand.request(ECHO))


async def test_callers_are_told_when_a_connection_closes() -> None:
    gone: list[str] = []
    async with pair(on_disconnect=gone.append) as (server, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        server.connections[0].close()
        await until(lambda: gone)
        assert gone == [address]


async def test_a_silent_connection_is_closed_and_opened_again_on_use() -> None:
    async with pair(idle_seconds_max=0.4) as (server, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))
        await until(lambda: not server.connections)
        assert (await client.invoke(address, RemotingCommand.request(ECHO))).code == 0


async def test_a_connection_that_leads_nowhere_is_replaced(monkeypatch, caplog) -> None:
    monkeypatch.setattr("kerolox.remoting.core.client_requests.SILENT_SECONDS_MAX", 0.1)
    async with pair() as (server, client, address):
        # The peer's machine is gone: nothing that is written comes to a reader, nobody says so.
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        [dead] = server.connections
        dead._transport.pause_reading()
        with pytest.raises(RequestTimeoutError):
            await client.invoke(address, RemotingCommand(ECHO), timeout_seconds=0.2)
        await until(lambda: address not in client._connections)
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        assert "silent" in caplog.text


async def test_a_connection_that_leads_nowhere_is_replaced_though_requests_wait_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.remoting.core.client_requests.SILENT_SECONDS_MAX", 0.3)
    async with pair() as (server, client, address):
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        [dead] = server.connections
        dead._transport.pause_reading()
        async with asyncio.timeout(SECONDS_MAX):
            while address in client._connections:
                # The last one of them may be under way when the connection is closed.
                with pytest.raises((RequestTimeoutError, ConnectionLostError)):
                    await client.invoke(address, RemotingCommand(ECHO), timeout_seconds=0.05)
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0


async def test_one_slow_answer_does_not_cost_a_connection_that_is_alive(monkeypatch) -> None:
    monkeypatch.setattr("kerolox.remoting.core.client_requests.SILENT_SECONDS_MAX", 0.05)
    monkeypatch.setattr("kerolox.remoting.client_connection._SECOND_CHECK_SECONDS", 0.0)
    async with pair() as (server, client, address):
        slow = asyncio.ensure_future(
            client.invoke(address, RemotingCommand(NOTHING), timeout_seconds=0.3)
        )
        while not slow.done():
            assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
            await asyncio.sleep(0.02)
        with pytest.raises(RequestTimeoutError):
            await slow
        [connection] = client._connections.values()
        # A second check would be over with the answer.
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        assert not connection.closed
        assert len(server.connections) == 1


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_opaques_wrap_as_a_signed_int(codec: SendCodec) -> None:
    opaques = codec.Opaques(0x7FFFFFFE)
    assert [opaques.allocate() for _ in range(3)] == [0x7FFFFFFE, 0x7FFFFFFF, -0x80000000]


async def test_an_opaque_that_is_still_open_is_not_given_again() -> None:
    async with pair() as (_, client, address):
        waiting = asyncio.ensure_future(client.invoke(address, RemotingCommand.request(NOTHING)))
        await asyncio.sleep(0)
        await until(lambda: any(len(c.requests.calls) for c in client._connections.values()))
        client._opaques = client.codec.Opaques(0)
        answers = [await client.invoke(address, RemotingCommand.request(ECHO)) for _ in range(2)]
        assert [answer.opaque for answer in answers] == [1, 2]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_client_in_a_loop_that_is_not_its_own_says_so() -> None:
    async with pair() as (_, client, address):
        await client.invoke(address, RemotingCommand.request(ECHO))

        def elsewhere() -> None:
            asyncio.run(client.invoke(address, RemotingCommand.request(ECHO)))

        with pytest.raises(ClientError, match="another event loop"):
            await asyncio.to_thread(elsewhere)
        await client.invoke(address, RemotingCommand.request(ECHO))
