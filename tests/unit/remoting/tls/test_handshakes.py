"""Handshakes that are late, wrong, too many or given up: bounded, told, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from contextlib import AsyncExitStack

import pytest
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.tls import Authority
from tests.unit.remoting.tls.serving import (
    LOOPS,
    MakeLoop,
    Peer,
    client_context,
    connected,
    files_of,
    hello,
    run_on,
    serving,
)

from kerolox.remoting.server import RemotingServer
from kerolox.remoting.tls.handshakes import Handshakes

GARBAGE = [
    b"\x16",
    b"\x16\x03\x01\xff\xff" + bytes(70_000),
    b"\x16" + b"\xff" * 1000,
    b"\x16\x03\x01\x00\x05hello",
    b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\x03" * (1 << 14),
]


def handshakes_of(server: RemotingServer) -> Handshakes:
    assert server.tls is not None
    return server.tls.handshakes


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("part", [1, 5, 100])
def test_a_part_of_a_hello_is_closed_when_its_time_is_over(
    authority: Authority,
    make_loop: MakeLoop,
    part: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        limit = {"tls_server_handshake_timeout_millis": 50}
        async with serving(**limit, **files_of(authority)) as server:
            async with connected(server) as peer:
                peer.writer.write(hello()[:part])
                assert await peer.at_end()
            assert handshakes_of(server).counters.timed_out == 1
            assert handshakes_of(server).under_way == 0
            async with connected(server) as silent, connected(server) as plain:
                assert (await plain.ask()).body == b"x"
                # Whoever says nothing is no handshake.
                assert (await silent.ask()).body == b"x"

    run_on(make_loop, main())
    assert "within 0.05 s (tls.server.handshakeTimeoutMillis)" in caplog.text


async def test_a_silent_client_of_an_enforcing_port_has_the_time_of_a_handshake(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    limit = {"tls_server_handshake_timeout_millis": 50, "tls_server_mode": "enforcing"}
    async with serving(**limit, **files_of(authority)) as server, connected(server) as peer:
        assert await peer.at_end()
    assert "it began no TLS handshake within 0.05 s" in caplog.text


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_hello_that_comes_byte_by_byte_is_answered(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with serving(**files_of(authority)) as server, connected(server) as peer:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = client_context(authority).wrap_bio(
                incoming, outgoing, server_hostname="127.0.0.1"
            )
            while True:
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                else:
                    break
                for byte in outgoing.read():
                    peer.writer.write(bytes([byte]))
                    await peer.writer.drain()
                    await asyncio.sleep(0)
                async with asyncio.timeout(SECONDS_MAX):
                    incoming.write(await peer.reader.read(1 << 16))
            peer.writer.write(outgoing.read())
            await until(lambda: handshakes_of(server).counters.done == 1, what="the handshake")

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_behind_the_first_byte_ends_that_connection_alone(
    authority: Authority, make_loop: MakeLoop, data: bytes
) -> None:
    async def main() -> None:
        async with serving(**files_of(authority)) as server:
            async with connected(server, client_context(authority)) as other:
                async with connected(server) as peer:
                    peer.writer.write(data)
                    peer.writer.write_eof()
                    assert await peer.at_end()
                assert (await other.ask()).body == b"x"
            await until(lambda: not server.connections, what="the end of all connections")
            assert handshakes_of(server).counters.failed == 1
            assert (handshakes_of(server).under_way, handshakes_of(server).waiting) == (0, 0)

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_client_that_leaves_in_the_middle_is_told_and_forgotten(
    authority: Authority, make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(**files_of(authority)) as server:
            async with connected(server) as peer:
                peer.writer.write(hello())
                assert await peer.reader.read(1)
            await until(lambda: not server.connections, what="the end of the connection")
            assert handshakes_of(server).under_way == 0

    run_on(make_loop, main())
    assert "it closed the connection during the TLS handshake" in caplog.text


@pytest.mark.parametrize("make_loop", LOOPS)
def test_only_so_many_are_under_way_and_the_others_follow(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with serving(tls_server_handshakes_max=2, **files_of(authority)) as server:
            most = 0

            async def one() -> None:
                nonlocal most
                async with connected(server, client_context(authority)) as peer:
                    most = max(most, handshakes_of(server).under_way)
                    assert (await peer.ask()).body == b"x"

            await asyncio.gather(*(one() for _ in range(30)))
            assert most <= 2
            assert handshakes_of(server).counters.done == 30
            assert (handshakes_of(server).under_way, handshakes_of(server).waiting) == (0, 0)

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_slow_ones_make_room_while_others_wait(
    authority: Authority, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.remoting.tls.handshakes.PATIENCE_SECONDS", 0.05)

    async def main() -> None:
        settings = {"tls_server_handshakes_max": 2, **files_of(authority)}
        async with serving(**settings) as server, AsyncExitStack() as stack:
            for _ in range(2):
                slow = await stack.enter_async_context(connected(server))
                slow.writer.write(hello()[:100])
            await until(lambda: handshakes_of(server).under_way == 2, what="both under way")
            async with connected(server, client_context(authority)) as peer:
                assert (await peer.ask()).body == b"x"
            assert handshakes_of(server).counters.crowded_out >= 1

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_stop_during_handshakes_leaves_nothing_open(
    authority: Authority, make_loop: MakeLoop
) -> None:
    """Begun, in line, not begun by the client, and such that wait for the server's certificate."""

    async def main() -> None:
        for settings in (files_of(authority), {}):
            peers: list[Peer] = []
            async with AsyncExitStack() as stack:
                async with serving(tls_server_handshakes_max=2, **settings) as server:
                    for data in [hello(), hello()[:50], b"", b"\x16"] * 3:
                        peers.append(await stack.enter_async_context(connected(server)))
                        peers[-1].writer.write(data)
                    await until(lambda s=server: len(s.connections) == 12, what="all of them")
                    async with asyncio.timeout(5):
                        await server.stop()
                    assert not server.connections
                    assert (handshakes_of(server).under_way, handshakes_of(server).waiting) == (
                        0,
                        0,
                    )
                for peer in peers:
                    assert await peer.at_end()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        run_on(make_loop, main())
        gc.collect()


async def test_handshakes_take_turns_with_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time of its own, each iteration of the event loop has one step."""
    monkeypatch.setattr("kerolox.remoting.tls.handshakes.SLICE_SECONDS", 0.0)
    async with serving(**files_of(authority)) as server, AsyncExitStack() as stack:
        handshakes = handshakes_of(server)
        steps: list[int] = []
        step = handshakes._step

        def counted() -> None:
            before = len(handshakes._ready)
            step()
            steps.append(before - len(handshakes._ready))

        monkeypatch.setattr(handshakes, "_step", counted)
        for _ in range(20):
            peer = await stack.enter_async_context(connected(server))
            peer.writer.write(hello())
        await until(lambda: sum(steps) >= 20, what="a step of each")
        assert set(steps) == {1}
