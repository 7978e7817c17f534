"""What producers and consumers share: who they are, and one life between start and close."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from typing import TYPE_CHECKING, Self

from kerolox import owners
from kerolox.addresses import local_address
from kerolox.client.aio.network.addressing import sources_of
from kerolox.client.aio.network.cluster import Cluster, PeriodicTasks
from kerolox.client.aio.network.identity import client_id_of, namespace_of
from kerolox.client.aio.query import ClusterQueries
from kerolox.client.core.arguments import name_server_text
from kerolox.client.core.life import CLOSE_SECONDS_MAX
from kerolox.client.core.namespaces import with_namespace
from kerolox.errors import ClientClosedError, ClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kerolox.client.aio.settings import ClientSettings
    from kerolox.remoting.client import RequestHandler


_log = logging.getLogger(__name__)


class Client(ClusterQueries):
    """A producer or consumer."""

    settings: ClientSettings
    group: str
    _closed = False
    _loop: asyncio.AbstractEventLoop | None = None
    """Where it was started."""
    _starting: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None
    """The undoing of a start that failed, or the end of the whole."""
    _closing: asyncio.Task[None] | None = None
    _warning: weakref.finalize[..., Client] | None = None
    _kept: Cluster | None = None

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
        self._name_servers, self._address_server = sources_of(name_server, settings)
        ip = settings.client_ip or local_address()
        self._client_id = client_id_of(
            ip, settings.instance_name, keep_default=keep_default, unit_name=settings.unit_name
        )
        self._background = PeriodicTasks()
        return ip

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started" if self._cluster is None else "open"
        servers = ", ".join(getattr(self, "_name_servers", ())) or "an address server"
        group = getattr(self, "group", "")
        return f"<{type(self).__name__} of group {group!r}, name server {servers}, {state}>"

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
        """End, within five seconds. Idempotent.

        Whoever calls it meanwhile waits for the same end, which goes on when a caller is cancelled.
        """
        if self._made_in != owners.generation():
            return  # in a forked child: nothing here is ours to end
        if self._starting is None and self._ending is None and self._cluster is None:
            self._closed = True
            return
        if self._loop is None or self._loop.is_closed():
            # Its loop has ended, and all that ran there with it.
            self._closed = True
            self._cluster = self._starting = self._ending = None
            self._forget_unclosed()
            return
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(owners.in_other_loop(self._name))
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        self._waits_for_close()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """What all callers of ``close`` wait for."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting], timeout=CLOSE_SECONDS_MAX)
        await self._shut_down()

    def _waits_for_close(self) -> None:
        """Whoever calls this, maybe a listener, waits for the close from now on."""

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} of group {self.group!r}"

    def _open_cluster(self) -> Cluster:
        cluster = self._cluster
        if cluster is None:
            if self._made_in != owners.generation():
                raise ClientError(owners.in_child(self._name))
            return super()._open_cluster()
        if self._loop is not asyncio.get_running_loop():
            raise ClientError(owners.in_other_loop(self._name))
        return cluster

    def _inherited(self) -> None:
        """In a forked child: of no use, and no harm to what the parent has."""
        self._kept, self._cluster = self._cluster, None
        self._forget_unclosed()

    # -- start and end ------------------------------------------------------------------------
    async def _start(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Run what a start does, unless it has been done; whoever starts meanwhile waits for it.

        When it fails or is cancelled all of it is undone, and the client may be started again. One
        that a close cuts short is undone by it.
        """
        while self._is_to_start():
            if self._starting is not None or self._ending is not None:
                tasks = [task for task in (self._starting, self._ending) if task is not None]
                await asyncio.wait(tasks)
                continue
            self._loop = asyncio.get_running_loop()
            self._starting = asyncio.ensure_future(self._begin(begin))
            # Not in the task itself: one that is cancelled before its first step runs nothing.
            self._starting.add_done_callback(self._has_started)
            try:
                await self._starting
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and not (task is not None and task.cancelling()):
                    return
                # The start may have ended just before.
                await self._shut_down()
                raise
            return

    async def _begin(self, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            await begin()
            self._warning = weakref.finalize(self, _warn, self._name)
        except BaseException:
            await self._shut_down()
            raise

    def _has_started(self, _: asyncio.Task[None]) -> None:
        self._starting = None

    async def _shut_down(self) -> None:
        """End what runs, if anything does; cancelling whoever waits here does not stop it."""
        if self._ending is None:
            if self._cluster is None:
                return
            cluster, self._cluster = self._cluster, None
            self._background.cancel()  # at once: what is due now must not find us closed
            self._ending = asyncio.ensure_future(self._end_in_time(cluster))
            self._ending.add_done_callback(lambda _: self._has_ended(cluster))
        await asyncio.shield(self._ending)

    async def _end_in_time(self, cluster: Cluster) -> None:
        seconds = self._close_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._leave(cluster)
        except TimeoutError:
            _log.warning("%s did not end cleanly within %.1f s", self._name, seconds)
        except Exception:
            _log.exception("the end of %s failed", self._name)

    def _has_ended(self, cluster: Cluster) -> None:
        cluster.abort()
        self._ending = None
        self._forget_unclosed()

    @property
    def _close_seconds(self) -> float:
        """How long an end takes at most."""
        return CLOSE_SECONDS_MAX

    async def _leave(self, cluster: Cluster) -> None:
        """End what runs: background, farewell, connections."""
        await self._background.stop()
        await cluster.close()

    def _is_to_start(self) -> bool:
        """False: it runs already."""
        if self._made_in != owners.generation():
            raise ClientError(owners.in_child(self._name))
        if self._closed:
            raise ClientClosedError(f"the {type(self).__name__} is closed; make a new one")
        is_busy = self._starting is not None or self._ending is not None
        if is_busy and self._loop is not asyncio.get_running_loop():
            raise ClientError(owners.in_other_loop(self._name))
        if not is_busy and self._cluster is not None:
            self._open_cluster()
            return False
        return True

    def _forget_unclosed(self) -> None:
        """There is nothing left that wants to be closed."""
        if self._warning is not None:
            self._warning.detach()
            self._warning = None

    def _new_cluster(self, on_request: RequestHandler | None = None) -> Cluster:
        settings = self.settings
        self._cluster = Cluster(
            self._name_servers,
            client_id=self._client_id,
            api_timeout_ms=settings.api_timeout_ms,
            on_request=on_request,
            rpc_hook=settings.rpc_hook,
            address_server=self._address_server,
            credentials=settings.credentials,
            tls=settings.tls,
            serialize_type=settings.header_encoding,
        )
        owners.watch(self)
        return self._cluster


def _warn(name: str) -> None:
    """A client that was started has gone, or the interpreter ends, without its close."""
    warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)
