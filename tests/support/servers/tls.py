"""TLS in front of servers that speak none: certificates of an authority of our own, and a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives import serialization

from kerolox.addresses import split_address
from kerolox.remoting.listening import close_listeners
from tests.support.eventually import SECONDS_MAX, wait_until

if TYPE_CHECKING:
    from typing import Self

CHUNK_BYTES = 64 * 1024


class Authority:
    """Signs certificates of servers and clients; its files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = trustme.CA()
        self.ca = folder / "ca.pem"
        """The authority's own certificate."""
        self._made.cert_pem.write_to_path(str(self.ca))

    def files(
        self, name: str, *, expired: bool = False, days: int | None = None
    ) -> tuple[Path, Path]:
        """Certificate and key for a host name or an IP address; ``days``: valid for so many."""
        days = -1 if expired else days
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days or 0)
        issued = self._made.issue_cert(
            name.removeprefix("expired-"),
            not_before=datetime.datetime(2020, 1, 1),
            not_after=until if days is not None else None,
        )
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    @staticmethod
    def readable_key(key: Path) -> Path:
        """The same key in a form that Java reads, too."""
        readable = key.with_suffix(".pkcs8")
        readable.write_bytes(
            serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return readable

    def java_options(self, name: str = "127.0.0.1") -> tuple[str, ...]:
        """Those of a Java server that takes TLS only, and of the requests that it sends itself."""
        certificate, key = self.files(name)
        readable = self.readable_key(key)
        given = {
            "tls.server.mode": "enforcing",
            "tls.test.mode.enable": "false",
            "tls.server.certPath": certificate,
            "tls.server.keyPath": readable,
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.ca,
        }
        return tuple(f"-D{option}={value}" for option, value in given.items())

    def shake_hands(self, port: int) -> None:
        """Connect to a server of this machine that has a certificate of this authority, and close.

        A Java process loads its classes at the first handshake: on a busy machine that takes longer
        than clients wait.
        """
        context = ssl.create_default_context(cafile=str(self.ca))
        with (
            socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            pass

    def server(
        self,
        name: str = "127.0.0.1",
        *,
        expired: bool = False,
        days: int | None = None,
        asks_client: bool = False,
    ) -> ssl.SSLContext:
        """The context of a server with such a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files(name, expired=expired, days=days))
        if asks_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        return context


def locked(key: Path, password: bytes) -> bytes:
    """A private key's PEM, encrypted."""
    opened = serialization.load_pem_private_key(key.read_bytes(), None)
    return opened.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )


class TlsProxy:
    """Takes TLS connections, in a thread of its own, and passes on what they carry, both ways."""

    def __init__(
        self, context: ssl.SSLContext, target: str, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._context = context
        self._target = split_address(target)
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.taken = 0
        """Connections with a handshake."""

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{self._host}:{self._server.sockets[0].getsockname()[1]}"

    @property
    def open(self) -> int:
        """Connections that are there now."""
        return len(self._open)

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        self._server = started.result(SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()

    def hang_up(self) -> None:
        """Close all connections, and wait until they are gone."""
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(SECONDS_MAX)

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, self._host, self._port, ssl=self._context)

    async def _stop(self) -> None:
        assert self._server is not None
        await close_listeners([self._server])
        await self._hang_up()

    async def _hang_up(self) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.taken += 1
        self._open.add(task)
        try:
            behind_reader, behind_writer = await asyncio.open_connection(*self._target)
            ways = (_copy(reader, behind_writer), _copy(behind_reader, writer))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in tasks:
                    each.cancel()
                behind_writer.close()
        finally:
            self._open.discard(task)
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def wait_closed(proxy: TlsProxy) -> None:
    """Wait until no connection is open."""
    wait_until(lambda: proxy.open == 0, what="the end of all connections")
