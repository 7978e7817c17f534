"""A broker: its parts put together, started and stopped.

Start: the settings are checked, the store is opened and recovered, the tables are loaded. Only then
the ports open and the name servers hear of it. Whatever fails undoes what was done before it, so
that nothing half-started remains. Stop goes the other way round, in bounded time: name servers
first, so that no new client comes.

All of it runs in one event loop. The kernel's own threads say through a descriptor when held
pulls were answered or the flushed position moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kerolox import clock
from kerolox.addresses import join_address
from kerolox.broker.access.guards import Guards
from kerolox.broker.base import Base, Identity
from kerolox.broker.config import BrokerConfig
from kerolox.broker.context import Context
from kerolox.broker.hooks import PullHook
from kerolox.broker.metrics.broker_stats import SAMPLE_SECONDS as BROKER_STATS_SECONDS
from kerolox.broker.metrics.broker_stats import BrokerStats
from kerolox.broker.metrics.store_stats import SAMPLE_SECONDS, StoreStats
from kerolox.broker.ports import Ports
from kerolox.broker.replication.replication import Peers
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.roles.parts import RoleParts
from kerolox.broker.roles.roles import Roles
from kerolox.broker.roles.searching import SEARCH_SECONDS
from kerolox.broker.roles.starting import StartingRole
from kerolox.broker.services.background import BackgroundTasks
from kerolox.broker.services.cleaning import CHECK_SECONDS, FIRST_CHECK_SECONDS, FIRST_CLEAN_SECONDS
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.java_pops import take_over
from kerolox.broker.services.popping import Popping
from kerolox.broker.services.replies import RepliesInFlight
from kerolox.broker.services.timer import AGAIN_SECONDS as TIMER_AGAIN_SECONDS
from kerolox.broker.services.timer import CLEAN_SECONDS as TIMER_CLEAN_SECONDS
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.assignments import Assignments
from kerolox.broker.tables.routes import TopicRoutes
from kerolox.broker.tables.tables import Tables
from kerolox.dynamic_config import DynamicConfig
from kerolox.errors import ConfigError, KeroloxError, StoreError
from kerolox.kernel.choice import Kernel, kernel_in_use, load_kernel
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.values import RecoveryReport
from kerolox.metrics.endpoint import MetricsEndpoint
from kerolox.observable import Observable
from kerolox.release import __version__
from kerolox.remoting.audit import Audit
from kerolox.remoting.unserved import UnservedCodes
from kerolox.security.access.watching import POLL_SECONDS
from kerolox.store.files.lock_holder import lock_holder
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.recovery.cut_record import EVERYTHING, LogCut, is_cut_begun

if TYPE_CHECKING:
    from kerolox.broker.replication.auto_switch_service import AutoSwitchService
    from kerolox.broker.replication.resync import CutRequest
    from kerolox.broker.roles.controlled import ControlledRole
    from kerolox.broker.services.writer import WriteGate
    from kerolox.metrics.role import MeasuredRole


def open_store(
    config: BrokerConfig, kernel: Kernel, *, is_slave: bool
) -> tuple[StoreKernel, RecoveryReport]:
    """Make the folders, open and recover the store; StoreError: in use, not writable, a file of the
    wrong size.
    """
    root = config.store_path_root_dir
    try:
        config.config_folder.mkdir(parents=True, exist_ok=True)
        for folder in config.log_folders:
            folder.mkdir(parents=True, exist_ok=True)
        _check_writable(root, config)
    except OSError as error:
        raise StoreError(_folder_error(root, error)) from error
    settings = config.store_settings(is_slave=is_slave)
    store = kernel.Store(settings)
    try:
        cut = _finish_cut(settings) if is_cut_begun(settings) else None
        report = store.open()
    except BlockingIOError as error:
        holder = lock_holder(str(root / "lock"))
        raise StoreError(
            f"store {root} is in use by {holder}: stop that broker, or give this one a folder of "
            "its own (storePathRootDir)"
        ) from error
    except OSError as error:
        raise StoreError(_folder_error(root, error)) from error
    except ValueError as error:
        raise StoreError(f"store {root} can't be opened: {error}") from error
    if cut is not None:
        report_cut(root, cut)
    for note in report.notes:
        _log.warning("store %s: %s", root, note)
    _log.info("store %s: %s", root, report.summary())
    if not config.enable_controller_mode:
        _warn_of_epochs(root)
    return store, report


def _warn_of_epochs(root: Path) -> None:
    """Say what a store of RocketMQ's controller mode becomes here; few stores are of one."""
    if not any(root.glob(f"{EPOCH_FILE}*")):
        return
    from kerolox.store.log.epochs import EpochFile

    try:
        table = EpochFile(root / EPOCH_FILE).load()
    except StoreError as error:
        _log.warning("store %s was under a controller, but its epochs are lost: %s", root, error)
        return
    if table.starts:
        epoch, start = table.starts[-1]
        _log.warning(
            "store %s was under a controller (epoch %d since offset %d). This broker has none, so "
            "what it stores from now on begins no epoch, and RocketMQ could not tell it from what "
            "other replicas store. To go back under a controller, take this store for one replica "
            "and empty ones for all others",
            root,
            epoch,
            start,
        )


def _finish_cut(settings: StoreSettings) -> LogCut | None:
    from kerolox.store.recovery.log_cut import finish_cut

    return finish_cut(settings)


def report_cut(root: Path, cut: LogCut) -> None:
    """Say what was cut off a slave's log, and how to examine it."""
    where = "begins anew" if cut.kept == EVERYTHING else f"ends at {cut.kept} now"
    _log.warning(
        "store %s: its log %s, and the bytes from %d to %d are kept in %s: %s (master %s); "
        "kerolox store dump %s --from %d shows them",
        root,
        where,
        cut.begin,
        cut.end,
        cut.folder,
        cut.why,
        cut.master,
        cut.folder,
        cut.begin,
    )


def _check_writable(root: Path, config: BrokerConfig) -> None:
    """Without this a folder that is closed to us would show at the first send only."""
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


TICK_SECONDS = 0.1
"""How often held pulls and flush answers are examined for their deadlines."""

DELIVER_SECONDS = 0.1
EXPIRE_SECONDS = 10.0
FILTER_SECONDS = 10.0
PROTECT_SECONDS = 180.0
"""How often groups that read too slowly are looked for."""
TROUBLE_SECONDS = 0.25
"""How often trouble of the store is looked for, and tables that could not be written are tried
again."""

CUT_AGAIN_SECONDS = 600.0
"""After a log could not be cut."""
START_AGAIN_SECONDS = 5.0
"""After a start within the process failed."""

HELD_SECONDS_MAX, HELD_POLL_SECONDS = 1.0, 0.005
"""How long a stop waits for the disk and for slaves, and how often it looks."""

_log = logging.getLogger(__name__)


class Broker:
    """One broker. ``async with Broker(config) as broker`` starts and stops it.

    Attributes:
        recovery: what opening the store found (after the start).
        parts: its store, tables, services and metrics (after the start).
    """

    recovery: RecoveryReport
    parts: Context
    _ports: Ports
    _metrics: MetricsEndpoint

    def __init__(
        self,
        config: BrokerConfig,
        *,
        kernel: str | None = None,
        pull_hooks: tuple[PullHook, ...] = (),
        clock_ms: Callable[[], int] | None = None,
        may_lack_grpc: bool = False,
    ) -> None:
        """Nothing is opened before ``start``.

        ``kernel``: native or python; None: see :func:`kerolox.kernel.choice.kernel_name`.
        ``pull_hooks``: run before each answer to a pull; with any, no pull is fast. ``clock_ms``:
        gives milliseconds since the epoch; tests turn one by hand. ``may_lack_grpc``: it starts
        also where the port for gRPC can't be opened; see ``why_no_grpc``.
        """
        self._may_lack_grpc = may_lack_grpc
        self._settings = Observable(config)
        self._port = config.listen_port
        self._kernel_name = kernel
        self._pull_hooks = pull_hooks
        self._now_ms = clock_ms or clock.now_ms
        self._steady_ms = clock_ms or clock.steady_ms
        self._cleanup = contextlib.AsyncExitStack()
        self._is_started = False
        self._stopping = asyncio.Event()
        self._ending = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._cut_again_at = 0.0

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._settings.current

    @property
    def port(self) -> int:
        """The port it listens on (after the start)."""
        return self._port

    @property
    def metrics_port(self) -> int:
        """Where its metrics are (after the start); 0: nowhere."""
        return self._metrics.port

    @property
    def address(self) -> str:
        """What name servers tell clients: ``advertisedAddress``, else ``brokerIP1:port``."""
        return join_address(*self.config.advertised(self._port))

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on, the VIP port's aside (after the start)."""
        return self._ports.addresses

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on for clients of RocketMQ 5 (after the start)."""
        return self._ports.grpc_addresses

    @property
    def why_no_grpc(self) -> str:
        """Why the port for gRPC could not be opened, where it may lack; else empty."""
        return self._ports.why_no_grpc

    async def start(self) -> None:
        """Start; when this returns, the broker answers and the name servers that are up know it.

        Raises:
            ConfigError: a setting is wrong, or a port is in use.
            StoreError: the store can't be opened: in use, not writable, a file of the wrong size, a
                broken table. The text says which, and what to do.
        """
        if self._is_started:
            raise ConfigError("the broker is started already")
        self._stopping.clear()
        await self._start()

    async def _start(self) -> None:
        self._settings = Observable(self.config)
        store_address = self.config.store_address()
        try:
            kernel = load_kernel(self._kernel_name)
            start = StartingRole(self._settings)
            is_slave = start.role.current.is_slave
            store, self.recovery = open_store(self.config, kernel, is_slave=is_slave)
            self._cleanup.callback(self._close_store, store)
            await start.poll()
            self.parts = self._made_parts(store, start, store_address)
            await self._load_tables()
            self._cleanup.callback(self.parts.writing.timer.close)
            self.parts.writing.timer.open(is_clean=self.recovery.clean)
            if self.parts.guards.accounts is not None:
                self.parts.guards.accounts.load()
            if not start.role.current.is_slave:
                # A slave's log has what its master writes.
                await self.parts.writing.duplicates.rebuild()
                await self.parts.writing.transactions.recover(self.recovery)
            self._cleanup.callback(self.parts.audit.close)
            feeder = partial(kernel.Connection, store)
            self._ports = Ports(
                self.parts,
                feeder,
                kernel=self._kernel_name,
                may_lack_grpc=self._may_lack_grpc,
            )
            # After the ports: what they still take is for slaves, too.
            self._cleanup.push_async_callback(self.parts.peers.replication.stop)
            self._cleanup.push_async_callback(self._ports.close)
            self._cleanup.push_async_callback(self.parts.background.stop)
            self._cleanup.push_async_callback(self.parts.roles.stop)
            await self._ports.open()
            self._port = self.parts.identity.port
            # Whoever examines metrics sees the broker end.
            self._metrics = MetricsEndpoint(self.config, self._measured)
            self._cleanup.push_async_callback(self._metrics.stop)
            await self._metrics.start()
            await self.parts.peers.replication.start()
            self._start_work()
            self._cleanup.push_async_callback(self.parts.peers.registration.stop)
            self._cleanup.callback(self.parts.roles.refuse)
            await self.parts.peers.registration.start()
            if self.parts.controlled is not None:
                self._cleanup.push_async_callback(self.parts.controlled.stop)
                await self.parts.controlled.start()
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
        _log.info("Kerolox %s, kernel %s", __version__, self.parts.kernel.text)

    async def stop(self) -> None:
        """Unregister, close the ports, write the tables, close the store. Idempotent; whoever calls
        it meanwhile waits for the end, too."""
        self._stopping.set()
        async with self._ending:
            if self._restarting is not None:
                # It is bounded as well, and leaves nothing half done.
                await asyncio.wait([self._restarting])
            self._is_started = False
            await self._cleanup.aclose()

    async def reload_settings(self) -> None:
        """Read the settings file again (what SIGHUP asks for). Settings that are live are in force
        when this returns; others are named in the log and wait for a restart. A file with a mistake
        changes nothing and is one error in the log. So with the files of accounts. Only while it
        runs; raises nothing."""
        if not self._is_started:
            return
        await self.parts.dynamic_config.reload()
        if self.parts.guards.accounts is not None:
            await self.parts.guards.accounts.reload()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _measured(self) -> MeasuredRole:
        """Its metrics, for who asks for them."""
        from kerolox.broker.exposition import BrokerExposition

        ports = self._ports
        return BrokerExposition(self.parts, lambda: ports.kept_bytes, lambda: ports.grpc)

    # -- starting -----------------------------------------------------------------------------
    def _made_parts(self, store: StoreKernel, start: StartingRole, address: str) -> Context:
        """All parts, in groups: each gets those before it that it uses."""
        settings, role, now_ms = self._settings, start.role, self._now_ms
        identity = Identity(settings, store, address, self._port)
        base = Base(
            settings=settings,
            role=role,
            store=store,
            identity=identity,
            now_ms=now_ms,
            steady_ms=self._steady_ms,
        )
        audit = Audit("broker")
        guards = Guards(settings, audit, store)
        tables = Tables(base, has_fast_pulls=not self._pull_hooks)
        broker_stats = BrokerStats(settings, store, now_ms)
        service = self._auto_switch(store)
        waits = SlaveWaits(self.config, store) if service is None else service.waits
        arrivals = Arrivals(store)
        writing = Writing(
            base,
            tables,
            waits,
            arrivals,
            on_delayed=broker_stats.note_delayed,
            on_delivered=broker_stats.note_delivered,
        )
        peers = Peers(base, guards, tables, writing, waits, self._cut, service)
        roles = Roles(start, RoleParts(base, tables, writing, peers))
        routes = TopicRoutes(settings, peers.registration.route)
        return Context(
            settings=settings,
            role=role,
            store=store,
            identity=identity,
            now_ms=now_ms,
            steady_ms=self._steady_ms,
            dynamic_config=DynamicConfig(settings, now_ms, lambda: role.current.overrides),
            kernel=kernel_in_use(self._kernel_name),
            guards=guards,
            tables=tables,
            writing=writing,
            peers=peers,
            roles=roles,
            controlled=self._controlled(base, roles, service, peers, writing.gate),
            broker_stats=broker_stats,
            store_stats=StoreStats(store, now_ms, writing.writer),
            audit=audit,
            unserved=UnservedCodes("broker"),
            routes=routes,
            assignments=Assignments(settings, tables.topics, tables.clients, routes),
            arrivals=arrivals,
            popping=Popping(base, tables, writing, arrivals),
            replies=RepliesInFlight(self.config.reply_thread_pool_queue_capacity),
            background=BackgroundTasks(),
            pull_hooks=self._pull_hooks,
        )

    def _auto_switch(self, store: StoreKernel) -> AutoSwitchService | None:
        if not self.config.enable_controller_mode:
            return None
        from kerolox.broker.replication.auto_switch_service import AutoSwitchService

        return AutoSwitchService(self.config, store, self.config.store_path_root_dir)

    def _controlled(
        self,
        base: Base,
        roles: Roles,
        service: AutoSwitchService | None,
        peers: Peers,
        gate: WriteGate,
    ) -> ControlledRole | None:
        if service is None:
            return None
        from kerolox.broker.roles.controlled import ControlledRole

        return ControlledRole(base, roles, service, peers, gate)

    async def _load_tables(self) -> None:
        parts = self.parts
        for table in parts.kept_tables:
            table.load()
        if not parts.role.current.is_slave:
            # A slave's are those of its master, whose log may be longer.
            behind = parts.tables.offsets.fit(has_crashed=not self.recovery.clean)
            if behind:
                _log.warning("%d offsets of groups were behind the ends of their queues", behind)
            await take_over(parts, parts.tables)
            if parts.tables.pops.begin() or behind:
                await self._write_what_holds()
        # After the ports have closed and before the store does: the last changes of the tables.
        self._cleanup.push_async_callback(self._write_tables)
        self._cleanup.push_async_callback(parts.dynamic_config.stop)

    async def _write_what_holds(self) -> None:
        """The log has lost its end. Before others come in the places of lost messages, no file
        says that these are done: after another crash groups would not get those."""
        try:
            await self.parts.tables.pops.persist()
        except OSError as error:
            _log.error("offsets behind the log's end can't be corrected on the disk: %s", error)

    def _start_work(self) -> None:
        loop = asyncio.get_running_loop()
        config, parts = self.config, self.parts
        descriptor = parts.store.notify_fd
        loop.add_reader(descriptor, self._on_notify)
        self._cleanup.callback(loop.remove_reader, descriptor)
        # Ended in the other order: who is answered a pull asks again until the ports are closed.
        self._cleanup.push_async_callback(self._end_held_pulls)
        self._cleanup.push_async_callback(self._end_held_sends)
        # What it delivers is stored, and its last check point says so.
        self._cleanup.push_async_callback(parts.writing.timer.stop)
        for seconds, work in (
            (TICK_SECONDS, self._tick),
            (EXPIRE_SECONDS, self._expire),
            (SAMPLE_SECONDS, self._sample),
            (BROKER_STATS_SECONDS, parts.broker_stats.sample_in_slices),
            (config.flush_consumer_offset_interval / 1000, parts.tables.pops.persist),
            (config.flush_delay_offset_interval / 1000, parts.writing.schedule.persist),
            (FILTER_SECONDS, parts.tables.filters.persist),
            (TROUBLE_SECONDS, self._retry_writes),
            (PROTECT_SECONDS, self._protect),
            (DELIVER_SECONDS, parts.writing.schedule.deliver_due),
            (config.timer_flush_interval_ms / 1000, parts.writing.timer.flush),
            (TIMER_CLEAN_SECONDS, parts.writing.timer.clean),
            (config.transaction_check_interval / 1000, self._check_transactions),
        ):
            parts.background.repeat(seconds, work)
        if parts.controlled is None:
            parts.background.repeat(SEARCH_SECONDS, parts.roles.search.poll)
        timer = parts.writing.timer
        if timer.is_enabled:
            parts.background.follow(timer.pause, timer.turn, again_seconds=TIMER_AGAIN_SECONDS)
        parts.background.repeat(
            CHECK_SECONDS, parts.writing.cleaner.check_disk, first=FIRST_CHECK_SECONDS
        )
        if parts.guards.accounts is not None:
            parts.background.repeat(POLL_SECONDS, parts.guards.accounts.poll)
        clean_seconds = config.clean_resource_interval / 1000
        parts.background.repeat(
            clean_seconds, parts.writing.cleaner.clean, first=FIRST_CLEAN_SECONDS
        )

    # -- beside the requests ------------------------------------------------------------------
    def _on_notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.parts.store.notify_fd, 8)
        self.parts.writing.writer.flush_waits.wake()
        self._ports.deliver_ready()

    async def _tick(self) -> None:
        if self.parts.store.tick(self._now_ms()):
            self._ports.deliver_ready()
        popping = self.parts.popping
        popping.held.tick()
        if popping.is_due and self.parts.writing.gate.writable:
            self.parts.background.run(self._revive())

    async def _revive(self) -> None:
        await self.parts.popping.revival.run()

    async def _retry_writes(self) -> None:
        self.parts.writing.cleaner.log_trouble()
        await self.parts.tables.topics.file.retry()
        await self.parts.tables.groups.file.retry()

    async def _expire(self) -> None:
        self.parts.tables.clients.expire()
        self.parts.tables.locks.expire()
        self.parts.writing.gate.refresh()

    async def _protect(self) -> None:
        self.parts.tables.groups.disable_slow(self.parts.store.lag())

    async def _check_transactions(self) -> None:
        if self.parts.writing.gate.writable:
            await self.parts.writing.transactions.check()

    async def _sample(self) -> None:
        self.parts.store_stats.sample()

    # -- a slave whose log is not its master's ------------------------------------------------
    def _cut(self, request: CutRequest) -> str:
        """Close the store, have its log cut, start again; why not, empty: it is under way."""
        if self._restarting is not None:
            return ""
        if self._stopping.is_set() or not self._is_started:
            return "The broker is being started or stopped; the next try checks again"
        if asyncio.get_running_loop().time() < self._cut_again_at:
            return f"It could not be cut, which is tried again after {CUT_AGAIN_SECONDS:g} s"
        self._restarting = asyncio.get_running_loop().create_task(self._restart(request))
        return ""

    async def _restart(self, request: CutRequest) -> None:
        from kerolox.store.recovery.log_cut import cut_log

        config = self.config
        _log.warning("the broker restarts in its process, to cut its log: %s", request.why)
        try:
            self._is_started = False
            try:
                await self._cleanup.aclose()
            except Exception:
                # All that was to be closed is; whatever is wrong, the broker has to come back.
                _log.exception("the broker did not stop well")
            try:
                cut = await asyncio.to_thread(
                    cut_log,
                    config.store_settings(),
                    request.equal_to,
                    why=request.why,
                    master=request.master,
                )
                if cut is not None:
                    report_cut(config.store_path_root_dir, cut)
            except (OSError, ValueError) as error:
                self._cut_again_at = asyncio.get_running_loop().time() + CUT_AGAIN_SECONDS
                _log.error("the log of the slave is not cut: %s", error)
            await self._start_again()
        finally:
            self._restarting = None

    async def _start_again(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._start()
            except (KeroloxError, OSError) as error:
                _log.critical("the broker does not start again, it is tried for ever: %s", error)
            except Exception:
                _log.exception("the broker does not start again, it is tried for ever")
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_AGAIN_SECONDS):
                    await self._stopping.wait()

    # -- stopping -----------------------------------------------------------------------------
    async def _end_held_pulls(self) -> None:
        """Answer what is held before the ports close. A Java client whose connection ends while a
        pull is held notices that when the pull's 30 s are over. After an answer it tries again, and
        fails at once."""
        store = self.parts.store
        self.parts.arrivals.may_hold = False
        self.parts.popping.held.stop()
        store.stop_holding()
        while store.stats()["held_pulls"] and store.tick(self._now_ms()):
            self._ports.deliver_ready()
            await asyncio.sleep(0)
        # Those with expressions wait in tasks, which answer in their next turn.
        await asyncio.sleep(0)

    async def _end_held_sends(self) -> None:
        """Answer sends that wait for the disk or a slave, too: a Java client would wait for theirs
        as long. No further ones are taken; those that wait have ``HELD_SECONDS_MAX``."""
        parts = self.parts
        store, replicated = parts.store, parts.peers.replication.waits.replicated
        parts.writing.gate.close()
        end = store.max_physical_offset
        for _ in range(int(HELD_SECONDS_MAX / HELD_POLL_SECONDS)):
            is_flushed = self.config.flush_disk_type != "SYNC_FLUSH" or store.flushed_offset >= end
            is_copied = not replicated.slaves or replicated.offset >= end
            self._ports.deliver_ready()
            if is_flushed and (is_copied or not parts.role.current.is_sync_master):
                break
            await asyncio.sleep(HELD_POLL_SECONDS)
        # What waits is late with the next tick. Nothing is taken that could come after it.
        store.set_slave_timeout(None)
        store.tick(self._now_ms())
        self._ports.deliver_ready()

    async def _write_tables(self) -> None:
        for table in self.parts.kept_tables:
            try:
                await table.persist()
            except OSError as error:
                _log.error("a table was not written at the stop: %s", error)

    def _close_store(self, store: StoreKernel) -> None:
        try:
            store.close()
        except OSError as error:
            _log.error("store %s did not close: %s", self.config.store_path_root_dir, error)
