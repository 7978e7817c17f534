"""What a connection costs that is reset before the server took it up, or that can't be served: it
is not counted, no failure is reported, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.eventually import SECONDS_MAX, until
from tests.support.faults.resets import reset_at_once
from tests.support.kernels import KERNELS
from tests.support.servers.tls import Authority
from tests.unit.remoting.tls import serving as tls_serving

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.metrics.http import CONNECTIONS_MAX, HttpAnswer, HttpRequest, HttpServer
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.limits.requests import RequestLimits
from kerolox.remoting.server import ConnectionLimits, FastPath, RemotingServer, ServerConnection
from kerolox.remoting.tls.handshakes import Handshakes
from kerolox.remoting.tls.transport import TlsTransport

ROOM = 4
BOUNDS = ConnectionLimits(connections_max=ROOM)
"""Connections that the server takes."""

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


async def echo(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
    return command.response(0, body=command.body)


async def ask(port: int, **tls: Any) -> int:
    """The code of an answer over a new connection."""
    async with asyncio.timeout(SECONDS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **tls)
        try:
            writer.write(RemotingCommand(28, body=b"x").encode())
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return RemotingCommand.decode(await reader.readexactly(size)).code
        finally:
            writer.transport.abort()


async def served(port: int, **tls: Any) -> None:
    """Wait until a connection is served: asyncio's own loop takes those up that are reset, and
    learns of it only when it reads them."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                assert await ask(port, **tls) == 0
                return


def run_on(make_loop: MakeLoop, main: Coroutine[object, None, None]) -> list[Any]:
    """Run it; what the loop was told of failures."""
    failures: list[Any] = []
    with asyncio.Runner(loop_factory=make_loop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        runner.run(main)
    return failures


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but that there was no room for a moment."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= logging.WARNING and not each.name.endswith(".admission")
    ]


@pytest.mark.parametrize("make_loop", LOOPS)
def test_connections_that_are_reset_at_once_take_no_room(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        limits = RequestLimits()
        server = RemotingServer(
            echo, host="127.0.0.1", port=0, connection_limits=BOUNDS, limits=limits
        )
        await server.start()
        reset_at_once(server.port, 5 * ROOM)
        await served(server.port)
        await until(lambda: limits.counts.connections == 0)
        await server.stop()

    assert run_on(make_loop, main()) == []
    assert errors(caplog) == []


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("make_loop", LOOPS)
def test_connections_reset_before_tls_take_no_room(
    tmp_path: Path, make_loop: MakeLoop, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        limits = RequestLimits()
        more = {"connection_limits": BOUNDS, "limits": limits}
        files = tls_serving.files_of(authority)
        async with tls_serving.serving(more=more, tls_server_mode=mode, **files) as server:
            reset_at_once(server.port, 5 * ROOM)
            context = tls_serving.client_context(authority)
            await served(server.port, ssl=context, server_hostname="127.0.0.1")
            await until(lambda: limits.counts.connections == 0)

    assert run_on(make_loop, main()) == []
    assert errors(caplog) == []


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_connection_whose_kernel_fails_is_closed_and_gives_its_room_back(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(connection_id: int, host: bytes) -> Any:
        raise MemoryError("no room for a kernel")

    async def main() -> None:
        limits = RequestLimits()
        server = RemotingServer(
            echo,
            host="127.0.0.1",
            port=0,
            connection_limits=BOUNDS,
            limits=limits,
            fast_path=FastPath(fails),
        )
        await server.start()
        for _ in range(2 * ROOM):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ask(server.port)
        await until(lambda: limits.counts.connections == 0)
        assert limits.counts.connections_refused == 0
        await server.stop()

    assert run_on(make_loop, main()) == []
    assert "no room for a kernel" in caplog.text


def test_a_handshake_that_fails_as_nobody_expects_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    step, steps = TlsTransport.step, [0]

    def fails_first(self: TlsTransport) -> None:
        steps[0] += 1
        if steps[0] == 1:
            raise RuntimeError("as nobody expects")
        step(self)

    monkeypatch.setattr(TlsTransport, "step", fails_first)

    async def main() -> None:
        limits = RequestLimits()
        files = tls_serving.files_of(authority)
        async with tls_serving.serving(more={"limits": limits}, **files) as server:
            tls = {"ssl": tls_serving.client_context(authority), "server_hostname": "127.0.0.1"}
            with pytest.raises(ConnectionError):
                await ask(server.port, **tls)
            assert await ask(server.port, **tls) == 0
            await until(lambda: limits.counts.connections == 0)
            assert server.tls is not None
            handshakes: Handshakes = server.tls.handshakes
            assert (handshakes.under_way, handshakes.waiting) == (0, 0)

    assert run_on(asyncio.new_event_loop, main()) == []


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_broker_forgets_connections_that_are_reset_at_once(
    tmp_path: Path, kernel: str, make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig.load(
        None,
        store_path_root_dir=tmp_path / "store",
        listen_host="127.0.0.1",
        listen_port=0,
        namesrv_addr="",
        mapped_file_size_commit_log=1 << 20,
        max_connections=ROOM,
    )

    async def main() -> None:
        async with Broker(config, kernel=kernel) as broker:
            port = int(broker.address.rpartition(":")[2])
            caplog.clear()
            reset_at_once(port, 5 * ROOM)
            await served(port)
            await until(lambda: broker.parts.guards.limits.counts.connections == 0)

    assert run_on(make_loop, main()) == []
    assert errors(caplog) == []


@pytest.mark.asyncio
async def test_resets_take_no_room_on_the_port_of_metrics() -> None:
    async def figures(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"1")

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    server = HttpServer({"/metrics": figures})
    await server.open("127.0.0.1", 0, "metricsPromExporterPort")
    try:
        for _ in range(3):
            reset_at_once(server.port, CONNECTIONS_MAX // 2)
            await asyncio.sleep(0)

        async def answer() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.transport.abort()

        async def is_served() -> bool:
            return (await answer()).endswith(b"1")

        await until(is_served)
    finally:
        await server.close()
    assert failures == []
