"""A server that speaks TLS, and clients that do as they like."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.tls import Authority

from kerolox.namesrv.config import NamesrvConfig
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import RemotingServer, ServerConnection
from kerolox.remoting.tls.server_tls import ServerTls

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


async def echo(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
    return command.response(0, connection.certificate_subject or "", body=command.body)


def files_of(authority: Authority, name: str = "127.0.0.1", **more: Any) -> dict[str, Any]:
    """Settings of a server with a certificate of that name."""
    certificate, key = authority.files(name, **more)
    return {"tls_server_cert_path": str(certificate), "tls_server_key_path": str(key)}


def asking(authority: Authority, wish: str = "require") -> dict[str, Any]:
    """Settings of a server that asks clients for certificates."""
    return {
        "tls_server_need_client_auth": wish,
        "tls_server_auth_client": True,
        "tls_server_trust_cert_path": str(authority.ca),
    }


@asynccontextmanager
async def serving(
    handler: Any = echo, *, watch_seconds: float = 0.5, more: Any = None, **settings: Any
) -> AsyncIterator[RemotingServer]:
    """A server with these TLS settings; ``more`` is for the server itself."""
    tls = ServerTls(NamesrvConfig(**settings), watch_seconds=watch_seconds)
    tls.start()
    server = RemotingServer(handler, host="127.0.0.1", port=0, tls=tls, **(more or {}))
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
        await tls.stop()


def client_context(
    authority: Authority | None = None, show: tuple[Any, Any] | None = None
) -> ssl.SSLContext:
    """Trusts the authority, or anybody; shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority.ca)
    if show is not None:
        context.load_cert_chain(*show)
    return context


class Peer:
    """A client made of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, body: bytes = b"", code: int = 1) -> None:
        self.writer.write(RemotingCommand(code, body=body).encode())

    async def receive(self) -> RemotingCommand:
        async with asyncio.timeout(SECONDS_MAX):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return RemotingCommand.decode(await self.reader.readexactly(size))

    async def ask(self, body: bytes = b"x") -> RemotingCommand:
        self.send(body)
        return await self.receive()

    async def at_end(self) -> bool:
        """Whether the server says no more; what it said is skipped."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except OSError:
                pass
            return True


@asynccontextmanager
async def connected(
    server: RemotingServer, context: ssl.SSLContext | None = None, **more: Any
) -> AsyncIterator[Peer]:
    if context is not None:
        more = {"ssl": context, "server_hostname": "127.0.0.1", **more}
    async with asyncio.timeout(SECONDS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **more)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


def hello(context: ssl.SSLContext | None = None) -> bytes:
    """What a client begins TLS with."""
    outgoing = ssl.MemoryBIO()
    made = (context or client_context()).wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        made.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def run_on(make_loop: MakeLoop, main: Coroutine[object, None, None]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main)
