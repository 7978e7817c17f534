"""What producers and consumers share: who they are, and one life between start and close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kerolox.addresses import local_address
from kerolox.client.aio.network.addressing import sources_of
from kerolox.client.aio.network.cluster import Cluster, PeriodicTasks
from kerolox.client.aio.network.identity import client_id_of, namespace_of
from kerolox.client.aio.query import ClusterQueries
from kerolox.client.core.namespaces import with_namespace
from kerolox.errors import ClientClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.settings import ClientSettings
    from kerolox.remoting.client import RequestHandler


class Client(ClusterQueries):
    """A producer or consumer."""

    settings: ClientSettings
    group: str
    _closed = False

    def _introduce(
        self,
        group: str,
        name_server: str,
        check_group: Callable[[str], None],
        *,
        keep_default: bool = False,
    ) -> str:
        """Take on group, name servers and client id, after ``settings``; gives our address."""
        settings = self.settings
        self._namespace = namespace_of(settings.namespace, name_server)
        self.group = with_namespace(self._namespace, group)
        check_group(self.group)
        self._name_servers, self._address_server = sources_of(name_server, settings)
        ip = settings.client_ip or local_address()
        self._client_id = client_id_of(
            ip, settings.instance_name, keep_default=keep_default, unit_name=settings.unit_name
        )
        self._background = PeriodicTasks()
        return ip

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """Who we are to brokers: ``ip@pid#nanoseconds``; ``ip@DEFAULT`` when broadcasting."""
        return self._client_id

    async def start(self) -> None:
        """Start to work.

        Raises:
            ClientClosedError: it was closed before; make a new one.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """End. Idempotent."""
        raise NotImplementedError

    def _is_to_start(self) -> bool:
        """False: it runs already."""
        if self._closed:
            raise ClientClosedError(f"the {type(self).__name__} is closed; make a new one")
        return self._cluster is None

    def _new_cluster(self, on_request: RequestHandler | None = None) -> Cluster:
        settings = self.settings
        self._cluster = Cluster(
            self._name_servers,
            client_id=self._client_id,
            api_timeout_ms=settings.api_timeout_ms,
            on_request=on_request,
            rpc_hook=settings.rpc_hook,
            address_server=self._address_server,
        )
        return self._cluster

    def _leave(self) -> Cluster | None:
        """Closed from now on; gives what is to be closed, None when nothing runs."""
        self._closed = True
        cluster, self._cluster = self._cluster, None
        return cluster
