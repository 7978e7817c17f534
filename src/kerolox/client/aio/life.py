"""The life of whatever is started and closed: in one process, in one event loop, once."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from typing import TYPE_CHECKING, Self

from kerolox import owners
from kerolox.client.aio.query import ClusterQueries
from kerolox.client.core.failures import note_failure
from kerolox.client.core.life import CLOSE_SECONDS_MAX
from kerolox.errors import ClientClosedError, ClientError
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.network.instance import ClientInstance, Member

_log = logging.getLogger(__name__)


class LifeCycle(ClusterQueries):
    """Something between its start and its close; each kind says what these do."""

    _instance: ClientInstance
    _made_in: int
    _closed = False
    _loop: asyncio.AbstractEventLoop | None = None
    """Where it was started."""
    _starting: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None
    """The undoing of a start that failed, or the end of the whole."""
    _closing: asyncio.Task[None] | None = None
    _warning: weakref.finalize[..., LifeCycle] | None = None
    _kept: Cluster | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """Who we are to brokers: ``ip@pid#nanoseconds``; ``ip@DEFAULT`` when broadcasting."""
        return self._instance.client_id

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
            self._instance.abandon()
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
        await end_tasks(self._starting, seconds_max=CLOSE_SECONDS_MAX)
        await self._shut_down()

    def _waits_for_close(self) -> None:
        """Whoever calls this, maybe a listener, waits for the close from now on."""

    def __reduce__(self) -> str:
        raise TypeError(owners.not_pickled(self._name))

    @property
    def _name(self) -> str:
        """What it is called in errors and warnings."""
        return type(self).__name__

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

        When it fails or is cancelled all of it is undone, and it may be started again. One that a
        close cuts short is undone by it.
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
            await self._before_start()
            await begin()
            self._warning = weakref.finalize(self, _warn, self._name)
        except BaseException:
            await self._shut_down()
            raise

    async def _before_start(self) -> None:
        """Start what it is part of."""

    def _has_started(self, _: asyncio.Task[None]) -> None:
        self._starting = None

    def _hold(self, instance: ClientInstance, member: Member | None = None) -> Cluster:
        """Begin to use an instance, until the end; its name servers may not be known yet."""
        self._instance = instance
        self._cluster = instance.open(self, member)
        owners.watch(self)
        return self._cluster

    async def _shut_down(self) -> None:
        """End what runs, if anything does; cancelling whoever waits here does not stop it."""
        if self._ending is None:
            if self._cluster is None:
                return
            cluster, self._cluster = self._cluster, None
            self._cancel()
            self._ending = asyncio.ensure_future(self._end_in_time(cluster))
            self._ending.add_done_callback(self._has_ended)
        await asyncio.shield(self._ending)

    def _cancel(self) -> None:
        """Stop at once what must not find us closed when it is due."""

    async def _end_in_time(self, cluster: Cluster) -> None:
        seconds = self._close_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._leave(cluster)
                await self._instance.leave(self)
        except TimeoutError as error:
            what = f"{self._name} did not end cleanly within {seconds:.1f} s"
            note_failure(self._instance.settings.on_failure, _log, what, error, is_expected=True)
        except Exception as error:
            what = f"the end of {self._name} failed"
            note_failure(self._instance.settings.on_failure, _log, what, error)

    def _has_ended(self, _: asyncio.Task[None]) -> None:
        self._instance.drop(self)
        self._ending = None
        self._forget_unclosed()

    @property
    def _close_seconds(self) -> float:
        """How long an end takes at most."""
        return CLOSE_SECONDS_MAX

    async def _leave(self, cluster: Cluster) -> None:
        """End what runs, and tell the brokers; the connections are closed after it."""

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


def _warn(name: str) -> None:
    """What was started has gone, or the interpreter ends, without its close."""
    warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)
