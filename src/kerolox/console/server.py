"""Serves a console over HTTP, as a role of the command line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kerolox.addresses import join_address
from kerolox.console.app import application
from kerolox.errors import ConfigError
from kerolox.remoting.listening import listening_sockets

if TYPE_CHECKING:
    from kerolox.console.console import Console

__all__ = ["ConsoleServer"]

CONNECTIONS_MAX = 256
REQUEST_HEAD_BYTES_MAX = 32 * 1024
KEEP_ALIVE_SECONDS = 15
STOP_SECONDS = 2
BACKLOG = 128
REQUEST_SECONDS_MAX = 15.0
"""From a connection's begin, or its last answer, to the end of the next request's head."""
ANSWER_SECONDS_MAX = 120.0
"""From there to the last byte of the answer: an export to somebody who reads slowly."""
CHECKS_PER_TIMEOUT = 3
"""How often a connection is examined within the shorter of these times."""


class ConsoleServer:
    """One console on one port, with those that share its users."""

    def __init__(self, console: Console) -> None:
        """``console``: the first; its settings say how it is served.

        Raises:
            ConfigError: the certificate can't be used.
        """
        self._console = console
        settings = console.settings
        self._server = _Server(
            uvicorn.Config(
                application(console),
                log_config=None,
                access_log=False,
                lifespan="off",
                http=_TimedConnection,
                ws="none",
                server_header=False,
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=list(settings.trusted_proxies),
                limit_concurrency=CONNECTIONS_MAX,
                h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.private_key,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        """``host:port``, once it is started."""

    async def start(self) -> None:
        """Listen, and take samples; ConfigError: the address or the certificate can't be used."""
        settings = self._console.settings
        try:
            self._server.config.load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{settings.certificate}: no usable certificate: {error}") from error
        sockets = await listening_sockets(settings.host, settings.port, BACKLOG)
        self.address = join_address(*sockets[0].getsockname()[:2])
        try:
            for console in self._console.all:
                await console.start()
            self._task = asyncio.create_task(self._server.serve(sockets), name="console")
            listening = asyncio.create_task(self._server.listening.wait())
            await asyncio.wait((listening, self._task), return_when=asyncio.FIRST_COMPLETED)
            listening.cancel()
            if self._task.done():
                self._task.result()
                raise ConfigError("the console could not listen; its log says why")
        except BaseException:
            for each in sockets:
                each.close()
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening, let requests end for a little, release the rest."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait((self._task,), timeout=STOP_SECONDS + 1)
            self._task.cancel()
        await asyncio.gather(*(each.stop() for each in self._console.all))

    async def reload_settings(self) -> None:
        """Nothing: the users' file is read again by itself when it changes."""


class _TimedConnection(H11Protocol):
    """uvicorn's, which waits for ever for a first request, or for the rest of one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to examine it."""
        super().connection_made(transport)
        self._state: tuple[object, bool] = (None, False)
        self._since = self.loop.time()
        self._check()

    def _check(self) -> None:
        """Close it where the same request, or none, has been under way for too long."""
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        now = self.loop.time()
        if (cycle, is_answering) != self._state:
            self._state, self._since = (cycle, is_answering), now
        if now - self._since > (ANSWER_SECONDS_MAX if is_answering else REQUEST_SECONDS_MAX):
            self.transport.abort()
            return
        self.loop.call_later(REQUEST_SECONDS_MAX / CHECKS_PER_TIMEOUT, self._check)


class _Server(uvicorn.Server):
    """uvicorn's, which says when it listens and leaves signals to the command line."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield
