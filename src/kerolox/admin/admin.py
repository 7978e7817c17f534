"""``Admin``: connections to a cluster, and a method for each question of operators."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from kerolox import owners
from kerolox.admin._requests.consumers import ConsumerRequests
from kerolox.admin._requests.messages import MessageRequests
from kerolox.admin._requests.reports import ReportRequests
from kerolox.admin._requests.servers import ServerRequests
from kerolox.admin._requests.topics import TopicRequests
from kerolox.admin.asking import fresh
from kerolox.client.aio.network.access import TIMEOUT_SECONDS, Access
from kerolox.client.aio.network.addressing import sources_of
from kerolox.client.aio.settings import ClientSettings
from kerolox.client.core.arguments import name_server_text
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from kerolox.remoting.client import RemotingClient

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT_SECONDS_MAX = 3_600.0


class Admin(TopicRequests, ConsumerRequests, ServerRequests, MessageRequests, ReportRequests):
    """Asks brokers and name servers what ``mqadmin`` asks (``DefaultMQAdminExt``).

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async with Admin("127.0.0.1:9876") as admin:
            for group in await admin.list_groups():
                print(group, (await admin.group_progress(group)).lag)

    Names of topics and groups are those that brokers know: who uses a namespace writes it before
    them. Routes are asked for each time, so an answer is never older than the question.
    """

    def __init__(
        self,
        name_server: str | Iterable[str] = "",
        *,
        settings: ClientSettings | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            settings: credentials, TLS, hooks, as of other clients.
            timeout_seconds: time limit of one request; some of the methods give more.

        Raises:
            ConfigError: the name server or the time limit is illegal.
        """
        if not 0 < timeout_seconds <= TIMEOUT_SECONDS_MAX:
            raise ConfigError(
                f"timeout_seconds is {timeout_seconds!r}; it must be more than 0 and at most "
                f"{TIMEOUT_SECONDS_MAX:g}"
            )
        self.settings: ClientSettings = settings or ClientSettings()
        self.timeout_seconds = timeout_seconds
        given = name_server_text(name_server)
        self._name_servers, self._address_server = sources_of(given, self.settings)
        self._made_in = owners.generation()
        self._shared: Access | None = None
        self._access: Access | None = None
        self._remoting: RemotingClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @classmethod
    def on(cls, access: Access) -> Self:
        """One that asks through connections that others own, for example those of
        ``kerolox.connect``. It needs no start, and its close leaves them open.

        Args:
            access: their way to a cluster.
        """
        admin = cls(access.name_servers, timeout_seconds=access.timeout_seconds)
        admin._shared = access
        return admin

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._is_open else "not started"
        return f"<Admin {';'.join(self.name_servers)}, {state}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """``host:port`` of each name server."""
        if self._access is not None:
            return self._access.name_servers
        return self._shared.name_servers if self._shared is not None else self._name_servers

    async def start(self) -> None:
        """Make ready; nothing is connected before the first question.

        Raises:
            ClientClosedError: it was closed before; make a new one.
            ConfigError: a file of the TLS settings can't be used.
        """
        if self._closed:
            raise ClientClosedError("the Admin is closed; make a new one")
        if self._is_open:
            return
        self._check_process()
        names = self._name_servers
        if self._address_server is not None:
            names = await self._address_server.fetch() or names
        if self._closed or self._is_open:  # meanwhile
            return
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._remoting = RemotingClient(
            rpc_hook=settings.rpc_hook,
            credentials=settings.credentials,
            tls=settings.tls,
            serialize_type=settings.header_encoding,
        )
        self._access = Access(self._remoting, names, self.timeout_seconds)

    async def close(self) -> None:
        """Close all connections of its own, within two seconds. Idempotent; questions that are open
        end with ClientClosedError."""
        self._closed = True
        remoting, self._remoting = self._remoting, None
        self._access = self._shared = None
        if remoting is None or self._made_in != owners.generation():
            return
        if self._loop is asyncio.get_running_loop():
            # Whoever is cancelled here leaves no connection behind.
            try:
                await remoting.close()
            except BaseException:
                remoting.abort()
                raise

    @property
    def access(self) -> Access:
        """Its way to the cluster, for the functions of ``kerolox.admin``.

        Raises:
            ClientClosedError: it is not started, or closed.
        """
        return self._open()

    @property
    def _is_open(self) -> bool:
        return self._access is not None or self._shared is not None

    def _open(self) -> Access:
        if self._shared is not None:
            return fresh(self._shared)
        self._check_process()
        if self._access is None:
            what = "closed; make a new one" if self._closed else "not started"
            raise ClientClosedError(f"the Admin is {what}; use it in an async with statement")
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(owners.in_other_loop("Admin"))
        return self._access

    def _check_process(self) -> None:
        if self._made_in != owners.generation():
            raise ClientError(owners.in_child("Admin"))
