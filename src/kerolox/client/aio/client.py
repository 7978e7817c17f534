"""What producers and consumers share: who they are, and the client instance that they work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeGuard, TypeVar

from kerolox import owners
from kerolox.addresses import local_address
from kerolox.client.aio.life import LifeCycle
from kerolox.client.aio.network.addressing import sources_of
from kerolox.client.aio.network.background import PeriodicTasks
from kerolox.client.aio.network.identity import client_id_of, namespace_of
from kerolox.client.aio.network.instance import ClientInstance
from kerolox.client.core.arguments import name_server_text
from kerolox.client.core.namespaces import with_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.network.instance import Member
    from kerolox.client.aio.settings import ClientSettings


class Maker(NamedTuple):
    """A connection, as the clients that it made need it."""

    start: Callable[[], Awaitable[None]]
    instance: Callable[[], ClientInstance]
    """The instance that is open; a ClientClosedError when there is none."""


class Client(LifeCycle):
    """A producer or consumer."""

    settings: ClientSettings
    group: str
    _own: ClientInstance
    """The instance of a client that stands alone."""
    _maker: Maker | None = None
    """The connection that made it, whose instance it shares."""

    def _introduce(
        self,
        group: str,
        name_server: str | Iterable[str],
        check_group: Callable[[str], None],
        *,
        keep_default: bool = False,
    ) -> str:
        """Take on group, name servers and client id, after ``settings``; gives our address."""
        settings = self.settings
        name_server = name_server_text(name_server)
        self._made_in = owners.generation()
        self._namespace = namespace_of(settings.namespace, name_server)
        self.group = with_namespace(self._namespace, group)
        check_group(self.group)
        self._name_servers, address_server = sources_of(name_server, settings)
        ip = settings.client_ip or local_address()
        client_id = client_id_of(
            ip, settings.instance_name, keep_default=keep_default, unit_name=settings.unit_name
        )
        self._own = self._instance = ClientInstance(
            client_id, self._name_servers, address_server, settings
        )
        self._background = PeriodicTasks(settings.on_failure)
        return ip

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started" if self._cluster is None else "open"
        servers = ", ".join(getattr(self, "_name_servers", ())) or "an address server"
        group = getattr(self, "group", "")
        return f"<{type(self).__name__} of group {group!r}, name server {servers}, {state}>"

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} of group {self.group!r}"

    def _member(self) -> Member:
        """What the instance is to know of it."""
        raise NotImplementedError

    async def _before_start(self) -> None:
        if self._maker is not None:
            await self._maker.start()

    def _open(self) -> Cluster:
        """The first step of a start: use an instance, which no other member of the group has."""
        member = self._member()
        if self._maker is None:
            return self._hold(self._own.shared(member), member)
        return self._hold(self._maker.instance(), member)

    def _cancel(self) -> None:
        self._background.cancel()


_Client = TypeVar("_Client", bound=Client)


def share(client: _Client, maker: Maker, instance: ClientInstance) -> _Client:
    """The client, which belongs to a connection from now on."""
    client._maker, client._instance = maker, instance
    return client


def is_made_by(holder: object, maker: Maker) -> TypeGuard[Client]:
    """It is a client of this connection."""
    return isinstance(holder, Client) and holder._maker is maker
