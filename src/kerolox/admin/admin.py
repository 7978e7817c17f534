"""``Admin``: connections to a cluster, and a method for each question of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kerolox.admin.acl import AclRequests
from kerolox.admin.consumers.popped import PoppedRequests
from kerolox.admin.controllers import ControllerRequests
from kerolox.admin.messages.dead_letters import DeadLetterRequests
from kerolox.admin.messages.finding import MessageQueryRequests
from kerolox.admin.messages.halves import HalfMessageRequests
from kerolox.admin.messages.sending import MessageSendRequests
from kerolox.admin.offset_moves import OffsetMoveRequests
from kerolox.admin.reports.export import ExportRequests
from kerolox.admin.reports.monitor import MonitorRequests
from kerolox.admin.roles.changing import RoleRequests
from kerolox.admin.roles.retiring import RetirementRequests
from kerolox.admin.topic_changes.update import TopicUpdateRequests
from kerolox.client.aio.network.access import TIMEOUT_SECONDS, Access
from kerolox.client.aio.network.identity import NAME_SERVER_VARIABLE
from kerolox.client.core.arguments import name_server_text
from kerolox.client.core.checking import checked
from kerolox.errors import ClientClosedError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.admin.own_connection import AdminConnection
    from kerolox.client.aio.connection import Connection
    from kerolox.client.aio.settings import ClientSettings

TIMEOUT_SECONDS_MAX = 3_600.0


@checked()
class Admin(
    TopicUpdateRequests,
    OffsetMoveRequests,
    PoppedRequests,
    MessageQueryRequests,
    MessageSendRequests,
    HalfMessageRequests,
    DeadLetterRequests,
    AclRequests,
    ControllerRequests,
    RoleRequests,
    RetirementRequests,
    MonitorRequests,
    ExportRequests,
):
    """Asks brokers and name servers what ``mqadmin`` asks (``DefaultMQAdminExt``).

    Use it in one event loop, as an async context manager or with :meth:`start` and
    :meth:`close`::

        async with Admin("127.0.0.1:9876") as admin:
            for group in await admin.list_groups():
                print(group, (await admin.group_progress(group)).lag)

    Names of topics and groups are those that brokers know: who uses a namespace writes it before
    them. It asks for routes each time, so an answer is never older than the question.
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
        self.timeout_seconds = timeout_seconds
        self._where = name_server_text(name_server) or f"${NAME_SERVER_VARIABLE}"
        # Who asks through connections of others needs no clients.
        from kerolox.admin.own_connection import AdminConnection

        self._connection: AdminConnection | None = AdminConnection(name_server, settings=settings)
        self._shared: Access | Connection | None = None
        self._access: Access | None = None
        self._closed = False

    @classmethod
    def on(cls, access: Access | Connection) -> Self:
        """One that asks through connections that others own, for example those of
        ``kerolox.connect``. It needs no start, and its close leaves them open.

        Args:
            access: their way to a cluster, or who has it once it is started.
        """
        admin = cls.__new__(cls)
        admin.timeout_seconds = TIMEOUT_SECONDS
        admin._connection, admin._shared, admin._access = None, access, None
        admin._where, admin._closed = f"on {access!r}", False
        return admin

    def __repr__(self) -> str:
        return f"<Admin {self._where}{', closed' if self._closed else ''}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make ready; nothing is connected before the first question.

        Raises:
            ClientClosedError: it was closed before; make a new one.
            ConfigError: a file of the TLS settings can't be used.
        """
        if self._closed:
            raise ClientClosedError("the Admin is closed; make a new one")
        if self._connection is not None:
            await self._connection.start()

    async def close(self) -> None:
        """Close the connections of its own, within five seconds. Idempotent; questions that are
        open end with an error."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    @property
    def access(self) -> Access:
        """Its way to the cluster, for requests that it has no method for.

        Raises:
            ClientClosedError: it is not started, or closed.
        """
        if self._closed:
            raise ClientClosedError("the Admin is closed; make a new one")
        source = self._shared or self._connection
        assert source is not None
        way = source if isinstance(source, Access) else source.access
        # One of our own, since a client's has the routes that it learnt before. It is kept, since
        # it knows which name server answers.
        access = self._access
        if (
            access is None
            or access.remoting is not way.remoting
            or access.name_servers != way.name_servers
        ):
            access = Access(way.remoting, way.name_servers, self.timeout_seconds)
            self._access = access
        return access
