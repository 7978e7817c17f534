"""Has one broker be what its controllers say: the requests of :class:`ReplicasManager`, and what
the broker does by their answers.

Until a controller has said what it is, the broker copies nothing, takes nothing, and no name server
hears of it. A master whose lease is over takes no messages; it goes on when the controller still
names it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from kerolox.broker.base import Base
from kerolox.broker.outbound import outbound_client
from kerolox.broker.replication.auto_switch_service import AutoSwitchService
from kerolox.broker.replication.replication import Peers
from kerolox.broker.replication.sockets import steady_ms
from kerolox.broker.roles.fencing import status_of
from kerolox.broker.roles.hand_over import HandOver
from kerolox.broker.roles.identity import IdentityFile
from kerolox.broker.roles.record import RoleRecord
from kerolox.broker.roles.replicas_manager import (
    Ask,
    Follow,
    ForgetAsked,
    KeepAsked,
    KeepGot,
    Kind,
    Lead,
    Learn,
    LogState,
    ManagerSettings,
    ReplicasManager,
    Step,
)
from kerolox.broker.roles.roles import Roles
from kerolox.broker.roles.state import RoleError
from kerolox.broker.services.registration import CLAIM_SECONDS
from kerolox.broker.services.writer import WriteGate
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import MASTER_ID
from kerolox.protocol.extensions.roles import SLAVE, SYNC_MASTER
from kerolox.store.layout import IDENTITY_FILE
from kerolox.store.log.epochs import EpochTable
from kerolox.tasks import end_tasks

POLL_SECONDS = 0.05
"""How often to check whether something is due."""
ASK_SECONDS_MAX = 3.0
"""How long an answer may take, but for heartbeats."""
NOT_NAMED = "no controller has named this broker the master"
LEASE_OVER = "no controller has named it lately (controllerHeartBeatTimeoutMills)"
HANDED_OVER = "another broker is becoming the master"
STOPS = "this broker stops"
"""Why a broker takes no messages."""

_log = logging.getLogger(__name__)


class ControlledRole:
    """The driver of one broker."""

    def __init__(
        self, base: Base, roles: Roles, service: AutoSwitchService, peers: Peers, gate: WriteGate
    ) -> None:
        """Nobody is asked before :meth:`start`. StoreError: a file of the broker's id can't be
        read, or is another broker's. ConfigError: an address is malformed.
        """
        config = base.config
        self._base = base
        self._roles = roles
        self._service = service
        self._peers = peers
        self._gate = gate
        self._file = IdentityFile(
            config.store_path_root_dir / IDENTITY_FILE,
            config.broker_cluster_name,
            config.broker_name,
        )
        self._manager = ReplicasManager(
            ManagerSettings(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                controllers=config.controllers,
                metadata_ms=config.sync_controller_metadata_period,
                replica_info_ms=config.sync_broker_metadata_period,
                heartbeat_ms=config.heartbeat_ms,
                timeout_ms=config.controller_heart_beat_timeout_mills,
                priority=config.broker_election_priority,
                was_slave=roles.was_slave,
                has_left=self._file.has_left,
            ),
            self._file.load(),
        )
        service.broker_id = self._manager.broker_id
        self._client = outbound_client(base.settings)
        self._hand_over = HandOver(
            base, gate, self._manager, self._client, self._ask, lambda: self._fence(steady_ms())
        )
        self._wake = asyncio.Event()
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._searching: asyncio.Task[None] | None = None
        self._set_checked_ms = self._seen_again_ms = 0
        self._showing_up: asyncio.Task[None] | None = None
        gate.fence(NOT_NAMED)
        peers.registration.is_isolated = True
        peers.registration.subscribe(on_refused=self._refused)

    @property
    def broker_id(self) -> int:
        """That the controller gave; 0: none yet."""
        return self._manager.broker_id

    @property
    def epochs(self) -> EpochTable:
        """Which master wrote which part of the log."""
        return self._service.table

    async def start(self) -> None:
        """Ask from now on."""
        for work in (self._run(), self._do_steps()):
            self._keep(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        """Ask no more. The controller hears of it by the connection that ends. Idempotent."""
        self._gate.fence(STOPS)
        await end_tasks(*self._tasks)
        await self._client.close()

    def notified(self) -> None:
        """Somebody says that the controller has changed roles."""
        self._manager.notified()
        self._wake.set()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what it asks -----------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                self._poll(steady_ms())
            except Exception:
                _log.exception("the controllers are not asked; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    def _poll(self, now_ms: int) -> None:
        manager, service, store = self._manager, self._service, self._base.store
        self._fence(now_ms)
        log = LogState(
            service.table.last_epoch, store.max_physical_offset, max(service.confirmed, 0)
        )
        follower = self._peers.replication.follower
        if manager.has_left and not manager.is_master and service.has_all:
            self._come_back()
        asks = manager.due(
            self._base.identity.address,
            log,
            now_ms,
            is_cut_off=follower is not None and not follower.is_following,
        )
        if (sync_set := service.sync_set) is not None:
            period = self._base.config.check_sync_state_set_period
            newcomer = service.waits.newcomer
            if newcomer.is_set() or now_ms - self._set_checked_ms >= period:
                newcomer.clear()
                self._set_checked_ms = now_ms
                wanted = service.wish()
                if wanted is not None:
                    asks += manager.alter(wanted, sync_set.epoch, now_ms)
        self._show_up(now_ms)
        if (handing_over := self._hand_over.poll(now_ms)) is not None:
            self._keep(handing_over)
        for ask in asks:
            self._keep(asyncio.get_running_loop().create_task(self._ask(ask)))
        self._search_master()

    def _show_up(self, now_ms: int) -> None:
        """Have name servers see this broker. A master that may not be one any more stays silent, so
        that the other one gets its place."""
        is_over = self._manager.is_master and bool(self._gate.fenced)
        is_under_way = self._showing_up is not None and not self._showing_up.done()
        if now_ms < self._seen_again_ms or is_over or is_under_way:
            return
        self._seen_again_ms = now_ms + self._base.config.heartbeat_ms
        heartbeat = self._peers.registration.heartbeat()
        self._showing_up = asyncio.get_running_loop().create_task(heartbeat)
        self._keep(self._showing_up)

    def _fence(self, now_ms: int) -> None:
        reason = self._why_fenced(now_ms)
        is_news = reason not in ("", HANDED_OVER) and not self._gate.fenced
        if is_news and self._manager.is_master:
            _log.error("this master takes no messages: %s", reason)
        self._gate.fence(reason)

    def _why_fenced(self, now_ms: int) -> str:
        """Why this broker must take no messages; empty: it may."""
        sync_set = self._service.sync_set
        if not self._manager.is_master or sync_set is None:
            return NOT_NAMED
        if self._hand_over.is_under_way:
            return HANDED_OVER
        least = self._base.config.min_in_sync_replicas
        if len(sync_set.counted) < least:
            return f"fewer than minInSyncReplicas={least} brokers are in the sync state set"
        return "" if self._manager.takes_messages(now_ms) else LEASE_OVER

    async def _ask(self, ask: Ask) -> None:
        is_heartbeat = ask.kind is Kind.HEARTBEAT
        seconds = self._base.config.send_heartbeat_timeout_millis / 1000
        answer = None
        try:
            answer = await self._client.invoke(
                ask.address,
                ask.command,
                timeout_seconds=seconds if is_heartbeat else ASK_SECONDS_MAX,
            )
        except KeroloxError as error:
            _log.debug("controller %s: %s: %s", ask.address, ask.kind.name, error)
        for step in self._manager.answered(ask, answer, steady_ms()):
            self._steps.put_nowait(step)
        if answer is not None:
            self._wake.set()

    # -- what it becomes --------------------------------------------------------------------------
    async def _do_steps(self) -> None:
        while True:
            step = await self._steps.get()
            try:
                await self._do(step)
            except (KeroloxError, OSError) as error:
                _log.error("what the controller says is not done, and tried again: %s", error)
                if isinstance(step, Lead | Follow):
                    self._manager.failed()
            except Exception:
                _log.exception("what the controller says is not done, and tried again")
                self._manager.failed()

    async def _do(self, step: Step) -> None:
        manager, service = self._manager, self._service
        match step:
            case KeepAsked():
                manager.keeps(self._file.ask(step.broker_id, step.check_code))
            case KeepGot():
                manager.keeps(self._file.got(step.identity))
                service.broker_id = manager.broker_id
                _log.info("the controller gave this broker the id %d", manager.broker_id)
            case ForgetAsked():
                self._file.forget_asked()
            case Lead():
                await self._lead(step)
            case Follow():
                await self._follow(step)
            case Learn():
                service.learn(step.members, step.set_epoch)
            case _:
                service.refused()
        self._wake.set()

    async def _lead(self, step: Lead) -> None:
        if step.epoch < self._manager.epoch or not self._manager.is_master:
            return  # A later election was heard of meanwhile.

        async def begin() -> None:
            self._service.lead(step.epoch, step.members, step.set_epoch)
            self._fence(steady_ms())
            if not self._peers.replication.port:
                await self._peers.replication.listen(is_sync=True)

        self._refuse_former(step.epoch)
        record = RoleRecord(epoch=step.epoch, broker_role=SYNC_MASTER, broker_id=MASTER_ID)
        self._peers.registration.is_isolated = False
        await self._roles.lead(record, begin)
        self._come_back()

    async def _follow(self, step: Follow) -> None:
        if step.epoch < self._manager.epoch or self._manager.is_master:
            return
        self._refuse_former(step.epoch)
        self._service.follow(step.epoch)
        record = RoleRecord(
            epoch=step.epoch,
            broker_role=SLAVE,
            broker_id=self._manager.broker_id,
            master_address=step.address,
        )
        self._peers.registration.is_isolated = False
        await self._roles.follow(record)

    def _refuse_former(self, epoch: int) -> None:
        """A controller that was restored from an old copy would have logs cut that are newer."""
        last = self._service.table.last_epoch
        if epoch < last:
            raise RoleError(
                f"the controller says epoch {epoch}, and the log here has records of epoch {last}: "
                "was it restored from an old copy? This broker stays as it is until the broker "
                "with the newest messages is elected: kerolox controller elect "
                f"{self._base.config.broker_name} ID"
            )

    def _come_back(self) -> None:
        """It leads, or has all that the master had without a controller."""
        if not self._manager.has_left:
            return
        self._manager.has_left = False
        try:
            self._file.come_back()
        except OSError as error:
            path, reason = self._file.left_path, error.strerror or error
            _log.warning("%s can't be removed, and counts at the next start: %s", path, reason)

    def _search_master(self) -> None:
        """Have the master asked where it sends its log."""
        follower, tables = self._peers.replication.follower, self._peers.replication.tables
        if follower is None or tables is None or not tables.master or follower.has_address:
            return
        if self._searching is None or self._searching.done():
            search = self._ask_master(tables.master)
            self._searching = asyncio.get_running_loop().create_task(search)
            self._keep(self._searching)

    async def _ask_master(self, address: str) -> None:
        """One of RocketMQ does not answer; name servers say it then."""
        status = await status_of(self._client, address)
        tables = self._peers.replication.tables
        is_known = tables is not None and tables.master == address
        if is_known and status is not None and status.is_master and status.ha_address:
            self._peers.replication.set_master(status.ha_address, address)
            return
        await asyncio.sleep(POLL_SECONDS)

    def _refused(self, holder: str, newest_epoch: int) -> None:
        """A name server knows a master of another time, before there was a controller, or one that
        is silent by now."""
        if not self._manager.takes_messages(steady_ms()):
            return
        if newest_epoch >= self._base.role.current.epoch:
            self._roles.publish_epoch(newest_epoch + 1)
        self._peers.registration.retry(CLAIM_SECONDS)
