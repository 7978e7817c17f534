"""Servers that speak TLS: what comes and goes is whole, on both loops, within the same bounds."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.eventually import until
from tests.support.servers.tls import Authority
from tests.unit.remoting.tls.serving import (
    LOOPS,
    MakeLoop,
    client_context,
    connected,
    files_of,
    run_on,
    serving,
)

from kerolox.errors import ConfigError
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import ConnectionLimits

BODIES = [bytes([size % 251]) * size for size in (0, 1, 70_000, 3_000_000)]


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_port_serves_tls_and_plain_text(authority: Authority, make_loop: MakeLoop) -> None:
    async def main() -> None:
        async with serving(**files_of(authority)) as server:
            for context in (None, client_context(authority)):
                async with connected(server, context) as peer:
                    for body in BODIES:
                        assert (await peer.ask(body)).body == body

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_many_frames_in_flight_come_back_in_order(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with (
            serving(**files_of(authority)) as server,
            connected(server, client_context(authority)) as peer,
        ):
            bodies = [bytes([index % 251]) * (index * 37 % 5000) for index in range(2000)]
            for body in bodies:
                peer.send(body)
            assert [(await peer.receive()).body for _ in bodies] == bodies

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("is_secure", [True, False])
def test_a_reader_that_takes_nothing_is_cut_off_alike(
    authority: Authority, make_loop: MakeLoop, is_secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.remoting.connection.WRITE_BYTES_MAX", 8 << 20)

    async def main() -> None:
        context = client_context(authority) if is_secure else None
        async with serving(**files_of(authority)) as server, connected(server, context) as peer:
            await peer.ask()
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            connection = server.connections[0]
            for _ in range(40):
                if connection.closed:
                    break
                connection.send(bytes(1 << 20))
                if connection.blocked and not connection.closed:
                    assert connection.memory_bytes() >= 4 << 20
                await asyncio.sleep(0)
            await until(lambda: not server.connections, what="the end of the connection")

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_slow_reader_holds_up_its_own_requests_and_goes_on(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with (
            serving(**files_of(authority)) as server,
            connected(server, client_context(authority)) as peer,
        ):
            await peer.ask()
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(24):
                peer.send(bytes(1 << 20))
            await until(lambda: server.connections[0].blocked, what="full buffers")
            assert server.connections[0].memory_bytes() < 32 << 20
            peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(24):
                assert len((await peer.receive()).body) == 1 << 20

    run_on(make_loop, main())


async def test_the_memory_limiter_closes_one_that_never_ends_its_frame(
    authority: Authority,
) -> None:
    async with (
        serving(
            more={"connection_limits": ConnectionLimits(memory_bytes_max=1 << 20)},
            **files_of(authority),
        ) as server,
        connected(server, client_context(authority)) as peer,
        connected(server, client_context(authority)) as other,
    ):
        await other.ask()
        peer.writer.write(RemotingCommand(1, body=bytes(4 << 20)).encode()[:-100])
        assert await peer.at_end()
        assert (await other.ask()).body == b"x"


@pytest.mark.parametrize("make_loop", LOOPS)
def test_records_of_one_byte_make_whole_frames_in_several_turns(
    authority: Authority, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.remoting.tls.transport.RECORDS_PER_SLICE", 64)

    async def main() -> None:
        async with (
            serving(**files_of(authority)) as server,
            connected(server, client_context(authority)) as peer,
        ):
            body = bytes(range(256)) * 16
            frame = RemotingCommand(1, body=body).encode()
            for _ in range(3):
                for at in range(len(frame)):
                    peer.writer.write(frame[at : at + 1])
            for _ in range(3):
                assert (await peer.receive()).body == body

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_client_that_takes_leave_is_gone(authority: Authority, make_loop: MakeLoop) -> None:
    async def main() -> None:
        async with (
            serving(**files_of(authority)) as server,
            connected(server, client_context(authority)) as peer,
        ):
            await peer.ask()
            peer.writer.close()
            await until(lambda: not server.connections, what="the end of the connection")

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_broken_record_ends_its_connection_and_is_told(
    authority: Authority, make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            serving(**files_of(authority)) as server,
            connected(server, client_context(authority)) as peer,
        ):
            await peer.ask()
            # Below the client's own TLS.
            descriptor = peer.writer.get_extra_info("socket").fileno()
            os.write(descriptor, b"\x17\x03\x03\x00\x20" + bytes(32))
            assert await peer.at_end()
            await until(lambda: not server.connections, what="the end of the connection")

    run_on(make_loop, main())
    assert "its TLS is broken" in caplog.text


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_stop_ends_connections_with_tls_in_bounded_time(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with serving(**files_of(authority)) as server, AsyncExitStack() as stack:
            for _ in range(20):
                context = client_context(authority)
                peer = await stack.enter_async_context(connected(server, context))
                await peer.ask()
            async with asyncio.timeout(10):
                await server.stop()
            assert not server.connections

    run_on(make_loop, main())


async def test_a_file_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tls_server_cert_path": str(tmp_path / "gone")}
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath: .*gone can't be read"):
        async with serving(**settings):
            pass
