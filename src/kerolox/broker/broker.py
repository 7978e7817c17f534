"""A broker: the store, the tables, the ports, and the work that goes on beside the requests.

Start: the settings are checked, the store is opened and recovered, the tables are loaded; only
then the ports open and the name servers hear of it. Whatever fails undoes what was done before
it, so that nothing half-started remains. Stop goes the other way round, in bounded time: name
servers first, so that no new client comes.

All of it runs in one event loop. The kernel's own threads say through a descriptor when held
pulls were answered or the flushed position moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kerolox.addresses import join_address
from kerolox.broker.dynamic_config import apply_settings
from kerolox.broker.filtered_pull import ARRIVAL_ID_MIN, Arrivals
from kerolox.broker.metrics.broker_stats import SAMPLE_SECONDS as TRAFFIC_SECONDS
from kerolox.broker.metrics.broker_stats import Traffic
from kerolox.broker.metrics.store_stats import SAMPLE_SECONDS, Statistics
from kerolox.broker.requests import (
    admin,
    client,
    metrics,
    monitor,
    pull,
    query,
    reply,
    send,
    transaction,
)
from kerolox.broker.router import Router
from kerolox.broker.services.cleaning import (
    CHECK_SECONDS,
    FIRST_CHECK_SECONDS,
    FIRST_CLEAN_SECONDS,
    Cleaner,
)
from kerolox.broker.services.registration import Registration
from kerolox.broker.services.replies import RepliesUnderWay
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.transactions import Transactions
from kerolox.broker.tables.clients import ClientTable
from kerolox.broker.tables.filters import FilterTable
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.locks import QueueLocks
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.broker.writer import RecordWriter
from kerolox.dynamic_config import LiveSettings
from kerolox.errors import ConfigError, StoreError
from kerolox.kernel import RecoveryReport, load_kernel
from kerolox.message import pack_host
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.gathering import Gathering
from kerolox.remoting.server import RemotingServer
from kerolox.remoting.unserved import UnservedCodes

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig
    from kerolox.broker.hooks import PullHook
    from kerolox.kernel import ConnectionKernel, StoreKernel
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.server import ServerConnection

__all__ = ["Broker"]

TICK_SECONDS = 0.1
"""How often held pulls and flush answers are looked at for their deadlines."""

DELIVER_SECONDS = 0.1
EXPIRE_SECONDS = 10.0
FILTER_SECONDS = 10.0
PROTECT_SECONDS = 180.0
"""How often groups that read too slowly are looked for."""
WATCH_SECONDS = 0.25
"""How often trouble of the store is looked for, and tables that could not be written are tried
again."""
VIP_PORT_DISTANCE, HA_PORT_DISTANCE = -2, 1

_log = logging.getLogger(__name__)


def _all_routes() -> Router:
    router = Router()
    for module in (send, reply, transaction, pull, query, client, admin, monitor, metrics):
        router.include(module.router)
    return router


_ROUTER = _all_routes()


class Broker:
    """One broker. ``async with Broker(config) as broker`` starts and stops it.

    Attributes:
        config: its settings.
        port: the port it listens on (after the start).
        recovery: what opening the store found.
        store, topics, groups, offsets, clients, filters, arrivals, locks, schedule, writer,
            transactions, replies, statistics, cleaner, registration: its parts, for the handlers.
    """

    store: StoreKernel
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientTable
    filters: FilterTable
    arrivals: Arrivals
    locks: QueueLocks
    schedule: DelaySchedule
    writer: RecordWriter
    transactions: Transactions
    replies: RepliesUnderWay
    statistics: Statistics
    traffic: Traffic
    live_settings: LiveSettings[BrokerConfig]
    registration: Registration
    cleaner: Cleaner
    recovery: RecoveryReport
    store_host: bytes

    def __init__(
        self,
        config: BrokerConfig,
        *,
        kernel: str | None = None,
        pull_hooks: tuple[PullHook, ...] = (),
    ) -> None:
        """Nothing is opened before ``start``.

        Args:
            config: all settings.
            kernel: native or python; None: see :func:`kerolox.kernel.kernel_name`.
            pull_hooks: run before each answer to a pull; with any, no pull is hot.
        """
        self.config = config
        self.pull_hooks = pull_hooks
        self.port = config.listen_port
        self._kernel_name = kernel
        self._server: RemotingServer | None = None
        self._gathering = Gathering(config.gather_time_micros / 1e6, self._messages_moved)
        self._cleanup = contextlib.AsyncExitStack()
        self._is_started = False
        self.may_hold_pulls = True
        """False once the broker stops: what it held, and what comes, is answered."""
        self._background: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """What name servers tell clients: ``advertisedAddress``, else ``brokerIP1:port``."""
        return join_address(*self.config.advertised(self.port))

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on, the VIP port's aside (after the start)."""
        return () if self._server is None else self._server.addresses

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def start(self) -> None:
        """Start; when this returns, the broker answers and the name servers that are up know it.

        Raises:
            ConfigError: a setting is wrong, or a port is in use.
            StoreError: the store can't be opened: in use, not writable, a file of the wrong size, a
                broken table. The text says which, and what to do.
        """
        if self._is_started:
            raise ConfigError("the broker is started already")
        self._store_address = self.config.store_address()
        try:
            self._open_store()
            self._make_parts()
            await self._open_ports()
            self._start_work()
            await self._register()
        except BaseException:
            await self._cleanup.aclose()
            raise
        self._is_started = True
        _log.info(
            "broker %s listens on %s as %s, store %s",
            self.config.broker_name,
            ", ".join(self.listen_addresses),
            self.address,
            self.config.store_path_root_dir,
        )

    async def stop(self) -> None:
        """Unregister, close the ports, write the tables, close the store. Idempotent."""
        self._is_started = False
        await self._cleanup.aclose()

    async def reload_settings(self) -> None:
        """Read the settings file again (what SIGHUP asks for). Settings that are live are in force
        when this returns; others are named in the log and wait for a restart. A file with a mistake
        changes nothing and is one error in the log. Only while it runs; raises nothing."""
        await self.live_settings.reload()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- starting -----------------------------------------------------------------------------
    def _open_store(self) -> None:
        config = self.config
        kernel = load_kernel(self._kernel_name)
        self._connection_type = kernel.Connection
        root = config.store_path_root_dir
        try:
            config.config_folder.mkdir(parents=True, exist_ok=True)
            for folder in config.log_folders:
                folder.mkdir(parents=True, exist_ok=True)
            _check_writable(root, config)
        except OSError as error:
            raise StoreError(_folder_error(root, error)) from error
        self.store = kernel.Store(config.store_settings())
        try:
            report = self.store.open()
        except BlockingIOError as error:
            raise StoreError(
                f"store {root} is in use by another broker process; stop it, or give this broker "
                "a folder of its own (storePathRootDir)"
            ) from error
        except OSError as error:
            raise StoreError(_folder_error(root, error)) from error
        except ValueError as error:
            raise StoreError(f"store {root} can't be opened: {error}") from error
        self._cleanup.callback(self._close_store)
        self.recovery = RecoveryReport(*report)
        for note in self.recovery.notes:
            _log.warning("store %s: %s", root, note)
        _log.info("store %s: %s", root, self.recovery.summary())

    def _make_parts(self) -> None:
        config, store = self.config, self.store
        self.topics = TopicTable(config, store, self.now_ms)
        self.groups = GroupTable(config, store, self.now_ms, may_be_hot=not self.pull_hooks)
        self.offsets = OffsetTable(config.config_folder, store, has_lmq=config.enable_lmq)
        self.filters = FilterTable(config, self.now_ms)
        self.topics.is_filtered = self.filters.needs_bit_map
        self.filters.on_topic = self.topics.refresh
        self.schedule = DelaySchedule(config, store, self.filters, self.now_ms)
        self.arrivals = Arrivals(self)
        for table in (self.topics, self.groups, self.offsets, self.schedule, self.filters):
            table.load()
        self.clients = ClientTable(
            store,
            self.now_ms,
            may_broadcast=self._may_broadcast,
            notify_enable=config.notify_consumer_ids_changed_enable,
            on_group_gone=self.filters.unregister,
        )
        self.groups.on_change = self.clients.refresh
        self.locks = QueueLocks(self.now_ms, config.rebalance_lock_max_live_time)
        self.writer = RecordWriter(config, store, self.filters, self.now_ms)
        self.transactions = Transactions(self, self.now_ms)
        self.unserved = UnservedCodes("broker")
        self.unserved_by_vip = UnservedCodes("VIP port of the broker")
        self.replies = RepliesUnderWay(config.reply_thread_pool_queue_capacity)
        self.statistics = Statistics(store, self.now_ms, self.writer)
        self.traffic = Traffic(config, store, self.now_ms)
        self.writer.on_delayed = self.traffic.note_delayed
        self.schedule.on_delivered = self.traffic.note_delivered
        self.live_settings = LiveSettings(config, self.now_ms, partial(apply_settings, self))
        self.cleaner = Cleaner(config, store, self.now_ms, self._set_writable)
        self.set_identity()
        self.allow_hot_sends()
        # After the ports have closed and before the store does: the last changes of the tables.
        self._cleanup.push_async_callback(self._write_tables)
        self._cleanup.push_async_callback(self.live_settings.stop)

    def set_identity(self) -> None:
        """Tell the kernel who we are, as the settings have it."""
        config = self.config
        self.store_host = pack_host(self._store_address, config.advertised(self.port)[1])
        self.store.set_identity(
            cluster=config.broker_cluster_name,
            region=config.region_id,
            trace_on=config.trace_on,
            store_host=self.store_host,
            broker_id=config.broker_id,
        )

    async def _open_ports(self) -> None:
        config = self.config
        self._gathering.start()
        self._cleanup.callback(self._gathering.stop)
        try:
            self._server = await self._listen(config.listen_port, self._handle, self._connection)
        except ConfigError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
            raise ConfigError(
                f"{error}; it may also be the VIP port of a broker with "
                f"listenPort={config.listen_port - VIP_PORT_DISTANCE}"
            ) from error
        self._server.on_ready = self._deliver_ready
        self.port = self._server.port
        self.set_identity()
        if config.vip_port_enable and config.listen_port:
            await self._listen_vip(config.listen_port)
        self.may_hold_pulls = True

    async def _listen_vip(self, listen_port: int) -> None:
        try:
            await self._listen(listen_port + VIP_PORT_DISTANCE, self._handle_vip, None)
        except ConfigError as error:
            raise ConfigError(
                f"the VIP port, {-VIP_PORT_DISTANCE} below listenPort={listen_port}, which only "
                f"clients with vipChannelEnabled use, can't be opened: {error}; or do without it "
                "(vipPortEnable=false)"
            ) from error

    async def _end_held_pulls(self) -> None:
        """Before the ports close: a Java client whose connection ends while a pull is held notices
        that when the pull's 30 s are over; after an answer it tries again, and fails at once."""
        self.may_hold_pulls = False
        self.store.stop_holding()
        while self.store.stats()["held_pulls"] and self.store.tick(self.now_ms()):
            self._deliver_ready()
            await asyncio.sleep(0)
        # Those with expressions wait in tasks, which answer in their next turn.
        await asyncio.sleep(0)

    def _messages_moved(self) -> int:
        stats = self.store.stats()
        return stats["put_count"] + stats["get_count"]

    async def _listen(self, port: int, handler: Any, feeder: Any) -> RemotingServer:  # noqa: ANN401
        config = self.config
        server = RemotingServer(
            handler,
            host=config.listen_host,
            port=port,
            feeder=feeder,
            on_close=self._connection_closed,
            idle_seconds_max=float(config.server_channel_max_idle_time_seconds),
            backlog=config.server_socket_backlog,
            connections_per_address_max=config.max_connections_per_address,
            gathering=self._gathering,
        )
        await server.start()
        self._cleanup.push_async_callback(server.stop)
        return server

    def _start_work(self) -> None:
        loop = asyncio.get_running_loop()
        descriptor = self.store.notify_fd
        loop.add_reader(descriptor, self._on_notify)
        self._cleanup.push_async_callback(self._stop_background)
        self._cleanup.callback(loop.remove_reader, descriptor)
        config = self.config
        for seconds, work in (
            (TICK_SECONDS, self._tick),
            (DELIVER_SECONDS, self.schedule.deliver_due),
            (EXPIRE_SECONDS, self._expire),
            (SAMPLE_SECONDS, self._sample),
            (TRAFFIC_SECONDS, self._sample_traffic),
            (config.transaction_check_interval / 1000, self.transactions.check),
            (config.flush_consumer_offset_interval / 1000, self.offsets.persist),
            (config.flush_delay_offset_interval / 1000, self.schedule.persist),
            (FILTER_SECONDS, self.filters.persist),
            (WATCH_SECONDS, self._watch_disk),
            (PROTECT_SECONDS, self._protect),
        ):
            task = loop.create_task(_repeat(seconds, work))
            self._cleanup.push_async_callback(_cancel, task)
        clean_seconds = config.clean_resource_interval / 1000
        for first, seconds, work in (
            (FIRST_CHECK_SECONDS, CHECK_SECONDS, self.cleaner.check_disk),
            (FIRST_CLEAN_SECONDS, clean_seconds, self.cleaner.clean),
        ):
            task = loop.create_task(_repeat(seconds, work, first=first))
            self._cleanup.push_async_callback(_cancel, task)
        self._cleanup.push_async_callback(self._end_held_pulls)

    async def _register(self) -> None:
        self.registration = Registration(
            self.config,
            self.address,
            join_address(self.config.broker_ip2, self.port + HA_PORT_DISTANCE),
            self.topics.registration,
            self.topics.set_ordered,
        )
        self._cleanup.push_async_callback(self.registration.stop)
        self.topics.on_change = self.registration.soon
        await self.registration.start()

    # -- requests -----------------------------------------------------------------------------
    def _connection(self, connection_id: int, born_host: bytes) -> ConnectionKernel:
        return self._connection_type(self.store, connection_id, born_host)

    async def _handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        return await _ROUTER.dispatch(self, command, connection)

    async def _handle_vip(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return self.unserved_by_vip.answer(command, connection)
        return await _ROUTER.dispatch(self, command, connection)

    def _connection_closed(self, connection: ServerConnection) -> None:
        self.clients.connection_closed(connection)

    def _may_broadcast(self, group: str) -> bool:
        known = self.groups.get(group)
        return known is None or known.consume_broadcast_enable

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that outlives its request; it is cancelled at the stop."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("background work failed", exc_info=task.exception())

    async def _stop_background(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)

    # -- beside the requests ------------------------------------------------------------------
    def _on_notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.store.notify_fd, 8)
        self.writer.flush_waits.wake()
        self._deliver_ready()

    def _deliver_ready(self) -> None:
        if self._server is None:
            return
        for connection_id, data in self.store.drain_ready():
            if connection_id >= ARRIVAL_ID_MIN:
                self.arrivals.wake(connection_id)
            else:
                self._server.deliver(connection_id, data)

    async def _tick(self) -> None:
        if self.store.tick(self.now_ms()):
            self._deliver_ready()

    async def _watch_disk(self) -> None:
        self.cleaner.tell_trouble()
        await self.topics.file.retry()
        await self.groups.file.retry()

    async def _expire(self) -> None:
        self.clients.expire()
        self.locks.expire()
        self.allow_hot_sends()

    async def _protect(self) -> None:
        if self.config.disable_consume_if_consumer_read_slowly:
            threshold = self.config.consumer_fallbehind_threshold
            self.groups.disable_slow(self.store.lag(), threshold)

    async def _sample(self) -> None:
        self.statistics.sample()

    async def _sample_traffic(self) -> None:
        await self.traffic.sample_in_turns()

    def _set_writable(self, writable: bool) -> None:
        self.writer.writable = writable
        self.schedule.writable = writable
        self.allow_hot_sends()

    def allow_hot_sends(self) -> None:
        """Let the kernel take sends when nothing speaks against all of them. The kernel does not
        know startAcceptSendRequestTimeStamp, which handlers answer with."""
        is_time = self.now_ms() >= self.config.start_accept_send_request_time_stamp
        self.store.set_writable(self.writer.writable and is_time)

    # -- stopping -----------------------------------------------------------------------------
    async def _write_tables(self) -> None:
        for write in (
            self.topics.file.flush,
            self.groups.file.flush,
            self.offsets.persist,
            self.schedule.persist,
            self.filters.persist,
        ):
            try:
                await write()
            except OSError as error:
                _log.error("a table was not written at the stop: %s", error)

    def _close_store(self) -> None:
        try:
            self.store.close()
        except OSError as error:
            _log.error("store %s did not close: %s", self.config.store_path_root_dir, error)


async def _repeat(
    seconds: float, work: Callable[[], Awaitable[object]], *, first: float | None = None
) -> None:
    """Do something again and again, the first time after ``first`` seconds; its errors are
    logged."""
    pause = seconds if first is None else first
    while True:
        await asyncio.sleep(pause)
        pause = seconds
        try:
            await work()
        except OSError as error:
            _log.error("%s; tried again in %.1f s", error, seconds)
        except Exception:
            _log.exception("background work failed; tried again in %.1f s", seconds)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _check_writable(root: Path, config: BrokerConfig) -> None:
    """Without this a folder that is closed to us would show at the first send only.

    Raises:
        OSError: there is one; it names it.
    """
    for folder in (root, *config.log_folders, root / "consumequeue", root / "index"):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    probe = config.config_folder / f".writable-{os.getpid()}"
    probe.touch()
    probe.unlink()


def _folder_error(root: Path, error: OSError) -> str:
    where = error.filename or root
    return (
        f"store {root} can't be used: {where}: {error.strerror or error}; give this user write "
        "permission, free space if the disk is full, or choose another folder (storePathRootDir)"
    )
