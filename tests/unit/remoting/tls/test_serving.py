"""Servers that speak TLS: what comes and goes is whole, on both loops, and who may connect how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.tls import Authority

from kerolox.namesrv.config import NamesrvConfig
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.remoting.server import RemotingServer, ServerConnection
from kerolox.remoting.tls.server_tls import ServerTls
from kerolox.security.tls import Tls, TlsSettings

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def echo(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
    return command.response(0, connection.certificate_subject or "", body=command.body)


@asynccontextmanager
async def serving(handler: Any = echo, **settings: Any) -> AsyncIterator[RemotingServer]:
    tls = ServerTls.of(NamesrvConfig(**settings))
    if tls is not None:
        tls.start()
    server = RemotingServer(handler, host="127.0.0.1", port=0, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        if tls is not None:
            await tls.stop()


async def ask(port: int, tls: Tls, body: bytes = b"x") -> RemotingCommand:
    client = RemotingClient(tls=tls, connect_timeout_seconds=SECONDS_MAX)
    try:
        request = RemotingCommand.request(1, body=body)
        return await client.invoke(f"127.0.0.1:{port}", request, timeout_seconds=SECONDS_MAX)
    finally:
        await client.close()


def run_on(make_loop: MakeLoop, main: Coroutine[object, None, None]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_port_serves_tls_and_plain_text(make_loop: MakeLoop) -> None:
    async def main() -> None:
        async with serving() as server:
            for tls in (False, TlsSettings(verify=False)):
                for size in (0, 1, 70_000, 3_000_000):
                    body = b"y" * size
                    assert (await ask(server.port, tls, body)).body == body

    run_on(make_loop, main())
