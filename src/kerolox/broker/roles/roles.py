"""The role of a broker that runs: what requests and name servers make of it, done in steps.

A change runs in a task of its own, one at a time: whoever asked for it may go away meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import zlib
from collections.abc import Awaitable, Callable

import msgspec

from kerolox.broker.outbound import outbound_client
from kerolox.broker.replication.sockets import steady_ms
from kerolox.broker.roles.fencing import OtherMaster, newer_master, notify_older
from kerolox.broker.roles.forwarding import HOLD_SECONDS, RequestForwarder
from kerolox.broker.roles.parts import RoleParts
from kerolox.broker.roles.record import RoleRecord
from kerolox.broker.roles.searching import MasterSearch
from kerolox.broker.roles.starting import StartingRole, slave_of
from kerolox.broker.roles.state import RoleError, RoleState
from kerolox.errors import ConfigError, KeroloxError
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.extensions.roles import (
    SYNC_MASTER,
    TAIL_BYTES,
    RoleAction,
    RoleChange,
    RoleStatus,
)
from kerolox.tasks import end_tasks

POLL_SECONDS = 10.0
"""Time between two checks for a newer master, which come with registrations."""

FLUSH_SECONDS_MAX = 2.0
"""How long a slave may take to flush its log before it becomes a master."""
FLUSH_POLL_SECONDS = 0.01

CLOCK_SECONDS = 0.001
"""A timer of the loop may come so much early by the steady clock."""

_log = logging.getLogger(__name__)


class Roles:
    """The role of one broker, and its changes.

    Attributes:
        forwarder: holds and passes on requests while roles change.
        search: finds a slave's master.
    """

    def __init__(self, start: StartingRole, parts: RoleParts) -> None:
        """Those who speak to other brokers ask and tell this one from here on. ``start``: what the
        broker starts as."""
        self._parts = parts
        self._file = start.file
        self._record = start.record
        self._role = start.role
        role, settings = start.role.current, parts.base.settings
        self._state = RoleState(role.broker_role, role.broker_id, role.epoch)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._client = outbound_client(settings)
        self._checked_at = -POLL_SECONDS
        self._suspects: set[str] = set()
        """Addresses that may be a newer master's; an empty one: somebody's."""
        # Under a controller a broker that was just started may have been the master until then.
        self._was_master = start.is_controlled
        self._is_stopping = False
        self.forwarder = RequestForwarder(settings)
        self.search = MasterSearch(parts.base, self._client, parts.peers)
        self._is_controlled = start.is_controlled
        self.was_slave = start.was_slave
        if self._is_controlled:
            return
        registration, replication = parts.peers.registration, parts.peers.replication
        registration.subscribe(before=self.poll, on_refused=self.refused)
        replication.subscribe(self.note_master)
        if self._record.broker_role:
            replication.set_master(self._record.master_ha_address, self._record.master_address)

    @property
    def epoch(self) -> int:
        """The highest that this broker has heard of."""
        return self._state.epoch

    def refuse(self) -> None:
        """Change no more: the broker stops. Name servers would not hear of a new master, and let
        the old one have its place again."""
        self._is_stopping = True

    async def stop(self) -> None:
        """End what is under way. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(*self._tasks)
        await self.forwarder.close()
        await self._client.close()

    # -- requests -------------------------------------------------------------------------------
    def status(self, tail_from: int = -1) -> RoleStatus:
        """What this broker is. ``tail_from``: where the compared end of the log begins; -1: up to
        ``TAIL_BYTES`` before its end."""
        parts, state = self._parts, self._state
        config, replication, store = parts.base.config, parts.peers.replication, parts.base.store
        begin, end = store.min_physical_offset, store.max_physical_offset
        size = config.mapped_file_size_commit_log
        # One read gives bytes of one file.
        first = max(begin, end - TAIL_BYTES, (end - 1) // size * size)
        tail_begin = min(max(first, tail_from), end)
        tables, follower = replication.tables, replication.follower
        master = tables.status if tables is not None else None
        return RoleStatus(
            broker_name=config.broker_name,
            broker_cluster_name=config.broker_cluster_name,
            broker_id=state.broker_id,
            broker_role=state.role,
            epoch=state.epoch,
            former_id=self._record.former_id,
            address=parts.base.identity.address,
            ha_address=parts.base.identity.ha_address
            if replication.port and state.is_master
            else "",
            log_begin=begin,
            log_end=end,
            tail_begin=tail_begin,
            tail_crc=zlib.crc32(store.read_log(tail_begin, TAIL_BYTES)),
            is_paused=state.is_paused(steady_ms()),
            newer_epoch=state.newer_epoch,
            slaves=replication.waits.replicated.slaves,
            is_following=follower is not None and follower.is_following,
            master_address=tables.master if tables is not None else "",
            # Whom it follows may be a slave itself, when a change of roles broke off.
            master_role=master.broker_role if master is not None and master.is_master else "",
            remembered_role=self._record.master_role,
            master_slaves=master.slaves if master is not None else 0,
        )

    async def change(self, change: RoleChange) -> RoleStatus:
        """Do what a request asks for; the status after it. RoleError: it is refused, or failed, and
        the broker is what it was.
        """
        if self._is_stopping:
            raise RoleError("the broker is stopping")
        if self._is_controlled:
            raise RoleError(
                "its controller decides who is the master (enableControllerMode): ask that for an "
                "election"
            )
        return await asyncio.shield(self._start(lambda: self._done(change)))

    async def _done(self, change: RoleChange) -> RoleStatus:
        match change.action:
            case RoleAction.PAUSE:
                self._pause(change)
            case RoleAction.RESUME:
                self._state.resume(change, steady_ms())
                self._settle()
            case RoleAction.TAKE_TABLES:
                await self._take_tables(change)
            case RoleAction.DEMOTE:
                await self._demote(change)
            case RoleAction.PROMOTE:
                await self._promote(change)
            case RoleAction.FOLLOW:
                await self._follow(change)
        return self.status()

    # -- a controller ---------------------------------------------------------------------------
    async def lead(self, record: RoleRecord, begin: Callable[[], Awaitable[None]]) -> None:
        """Become the master that a controller elected, or go on as one in another epoch. ``begin``
        is awaited when the log is this broker's own. RoleError: it is stopping, or can't be it;
        what ``begin`` raises."""
        if self._is_stopping:
            raise RoleError("the broker is stopping")
        await asyncio.shield(self._start(lambda: self._lead(record, begin)))

    async def follow(self, record: RoleRecord) -> None:
        """Become a slave of the master that a controller elected. RoleError: it is stopping."""
        if self._is_stopping:
            raise RoleError("the broker is stopping")
        await asyncio.shield(self._start(lambda: self._follow_elected(record)))

    def publish_epoch(self, epoch: int) -> None:
        """Have name servers hear of a higher epoch."""
        self._state.epoch = epoch
        self._publish_epoch()

    async def _lead(self, record: RoleRecord, begin: Callable[[], Awaitable[None]]) -> RoleStatus:
        parts, state = self._parts, self._state
        if state.is_master:
            await begin()
            self._become(record)
            await parts.announce_role()
            return self.status()
        await self._flush()
        state.is_changing = True
        parts.writing.gate.hold(True)

        async def begin_as_master() -> None:
            try:
                await begin()
            except ConfigError as error:
                raise RoleError(str(error)) from None
            self._become(record)

        try:
            await parts.lead(record, begin_as_master)
        finally:
            state.is_changing = False
            self._settle()
        self.forwarder.release()
        _log.warning("this broker is the master (epoch %d)", self.epoch)
        return self.status()

    async def _follow_elected(self, record: RoleRecord) -> RoleStatus:
        parts, state = self._parts, self._state
        if state.is_master:
            self.forwarder.hold()
        parts.writing.gate.hold(True)
        self._become(record)
        await parts.follow(record)
        self._pass_on(record)
        _log.warning("this broker is a slave of %s (epoch %d)", record.master_address, self.epoch)
        # Nobody waits for it: a name server that does not answer must not keep it from leading.
        parts.peers.registration.successor = ""
        parts.peers.registration.begin_anew()
        return self.status()

    def _become(self, record: RoleRecord) -> None:
        self._was_master = self._was_master or self._state.is_master
        self._record = record
        self._state.take(record)
        self._publish_epoch()

    def _start(self, work: Callable[[], Awaitable[RoleStatus]]) -> asyncio.Task[RoleStatus]:
        async def run() -> RoleStatus:
            async with self._lock:
                return await work()

        task = asyncio.get_running_loop().create_task(run())
        self._keep_until_done(task)
        return task

    def _keep_until_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done_with)

    def _done_with(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RoleError):
            _log.error("the role of this broker could not be changed", exc_info=error)

    # -- steps ----------------------------------------------------------------------------------
    def _pause(self, change: RoleChange) -> None:
        self._state.pause(change, steady_ms())
        self.forwarder.hold()
        self._parts.writing.gate.hold(True)
        self._settle_after(change.milliseconds / 1000)

    def _settle_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds + CLOCK_SECONDS, self._settle)

    def _settle(self) -> None:
        """Answer requests again, as far as the state says."""
        now = steady_ms()
        if self._state.is_paused(now):
            return
        if self._state.is_master:
            self._parts.writing.gate.hold(not self._state.takes_messages(now))
        if not self.forwarder.is_passing:
            self.forwarder.release()

    async def _take_tables(self, change: RoleChange) -> None:
        tables = self._parts.peers.replication.tables
        if tables is None:
            raise RoleError("it is a master")
        try:
            await tables.take_from(change.master_address or tables.master)
        except (KeroloxError, BodyError) as error:
            raise RoleError(f"the tables of its master do not come: {error}") from None
        record = self._state.promoted(change) if change.epoch else None
        if record is not None:
            await self._write(self._file.prepare, record)

    async def _demote(self, change: RoleChange) -> None:
        parts, state = self._parts, self._state
        record = state.demoted(change, steady_ms())
        if record is None:
            return
        if parts.base.config.transient_store_pool_enable:
            raise RoleError(
                "transientStorePoolEnable=true: a slave has no such pool; set it to false and "
                "start the broker again first"
            )
        state.is_changing = True
        self.forwarder.hold()
        parts.writing.gate.hold(True)
        try:
            if change.master_address and not change.is_forced:
                await parts.hand_over(change.master_address)
            await self._save(record)
            await parts.follow(record)
        finally:
            state.is_changing = False
            if state.is_master:
                parts.peers.registration.successor = ""
            # Until it hears that the other one is the master, which FOLLOW says.
            self._settle_after(0 if state.is_master else HOLD_SECONDS)
        _log.warning(
            "this broker is a slave with id %d now (epoch %d)", state.broker_id, self.epoch
        )
        if change.is_forced:
            self._pass_on(record)
            await parts.announce_role()

    async def _promote(self, change: RoleChange) -> None:
        parts, state = self._parts, self._state
        record = state.promoted(change)
        if record is None:
            return
        if state.is_master:
            # It was one all along, and gets a newer epoch than the one that it stopped for.
            await self._save(record)
            self._settle()
            await parts.announce_role()
            return
        await self._flush()
        try:
            await parts.peers.replication.listen(is_sync=change.broker_role == SYNC_MASTER)
        except ConfigError as error:
            raise RoleError(str(error)) from None
        state.is_changing = True
        parts.writing.gate.hold(True)
        try:
            try:
                await self._save(record)
            except RoleError:
                await parts.peers.replication.stop_listening()
                raise
            await parts.lead(record)
        finally:
            state.is_changing = False
            self._settle()
        self.forwarder.release()
        _log.warning("this broker is the master (epoch %d)", self.epoch)

    async def _flush(self) -> None:
        """What the old master had on its disk is on this one's before it takes the place. A disk
        that can't is no reason to leave a name without a master."""
        store = self._parts.base.store
        end = store.max_physical_offset
        store.request_flush(end)
        polls = int(FLUSH_SECONDS_MAX / FLUSH_POLL_SECONDS)
        while store.flushed_offset < end:
            polls -= 1
            if store.has_failed or polls < 0:
                reason = store.trouble or f"it takes more than {FLUSH_SECONDS_MAX:g} s"
                _log.warning("the log could not be flushed before: %s", reason)
                return
            await asyncio.sleep(FLUSH_POLL_SECONDS)

    async def _follow(self, change: RoleChange) -> None:
        if self._state.is_master:
            await self._give_way(change)
            return
        record = msgspec.structs.replace(
            self._state.following(change), master_role=self._record.master_role
        )
        try:
            await self._save(record)
        except RoleError:
            # Who asks for it relies on that no promotion of before is done any more.
            self._state.refuse_up_to(record.epoch)
            self._publish_epoch()
            raise
        await self._parts.follow(record)
        self._pass_on(record)
        await self._parts.announce_role()

    async def _give_way(self, change: RoleChange) -> None:
        """A master that is told of a newer one checks whether that is there."""
        other = None
        if change.epoch > self.epoch and change.master_address:
            other = await self._newer_master({change.master_address})
        if other is None:
            raise RoleError("it is a master")
        await self._step_down(other)

    def _pass_on(self, record: RoleRecord) -> None:
        """What clients still ask a former master for is the new one's to answer."""
        if self._was_master:
            self._was_master = False
            self.forwarder.pass_to(record.master_address)

    async def _save(self, record: RoleRecord) -> None:
        """Write what this broker becomes; from here on it is that."""
        await self._write(self._file.save, record)
        self._become(record)

    def _publish_epoch(self) -> None:
        """Registrations have the epoch at once; the role counts when the parts have changed it."""
        self._role.replace(dataclasses.replace(self._role.current, epoch=self.epoch))
        if self._is_controlled and self._state.is_master:
            self._start(self._keep_epoch)

    async def _keep_epoch(self) -> RoleStatus:
        """Without its controller this broker is the master with the same epoch: name servers know
        it."""
        try:
            await asyncio.to_thread(self._file.save, RoleRecord(epoch=self.epoch))
        except OSError as error:
            _log.warning(
                "%s can't be written: %s; without its controller this broker would not be the "
                "master again by its settings",
                self._file.path,
                error.strerror or error,
            )
        return self.status()

    async def _write(self, write: Callable[[RoleRecord], None], record: RoleRecord) -> None:
        try:
            await asyncio.to_thread(write, record)
        except OSError as error:
            raise RoleError(
                f"{self._file.path} can't be written: {error.strerror or error}"
            ) from None

    # -- other masters --------------------------------------------------------------------------
    def note_master(self, status: RoleStatus) -> None:
        """What a slave's master says of itself: its epoch and role are kept, for the time when it
        is gone.

        But not while roles change, nor that of a former master which follows this broker: it is
        the epoch that this one is to become the master with.
        """
        is_changing = status.is_paused or status.master_address == self._parts.base.identity.address
        if self._state.is_master or is_changing or not status.is_master:
            return
        is_new = status.epoch > self.epoch or status.broker_role != self._record.master_role
        if is_new and not self._lock.locked():
            self._start(lambda: self._keep(status))

    async def _keep(self, status: RoleStatus) -> RoleStatus:
        epoch = max(status.epoch, self.epoch)
        record = msgspec.structs.replace(self._record, epoch=epoch, master_role=status.broker_role)
        if record != self._record and not self._state.is_master:
            await asyncio.to_thread(self._file.save, record)
            self._record = record
            self._state.epoch = epoch
            self._publish_epoch()
        return self.status()

    def refused(self, holder: str, newest_epoch: int) -> None:
        """A name server refuses this broker its place. ``holder``: the address of the live broker
        that has it; empty: there is none. ``newest_epoch``: of the master that it knew last; 0: it
        does not say.
        """
        self._suspects.add(holder)
        if newest_epoch and self._state.observe_epoch(newest_epoch):
            self._parts.writing.gate.hold(True)
            _log.error(
                "this broker takes no messages: there was a master of epoch %d under its name, and "
                "it has epoch %d; have it become a slave of that one (kerolox broker demote), or "
                "the master again (kerolox broker promote)",
                newest_epoch,
                self.epoch,
            )
        if holder and self._state.is_master:
            # The next registration may be long after, and an older master takes messages meanwhile
            # that are set aside.
            self._keep_until_done(asyncio.get_running_loop().create_task(self.poll()))

    async def poll(self) -> None:
        """Become a slave when there is a newer master; tell an older one that has the place. To be
        called before each registration, and when one is refused."""
        state = self._state
        now = asyncio.get_running_loop().time()
        is_due = self._suspects or now - self._checked_at >= POLL_SECONDS
        if not state.is_master or not is_due or self._lock.locked():
            return
        self._checked_at = now
        suspects, self._suspects = self._suspects - {""}, set()
        other = await self._newer_master(suspects)
        if other is not None:
            await asyncio.shield(self._start(lambda: self._step_down(other)))
        elif not state.newer_epoch:
            own = self.status()
            notified = await asyncio.gather(
                *(notify_older(self._client, each, own) for each in suspects)
            )
            if any(notified):
                self._parts.peers.registration.retry()

    async def _newer_master(self, also: set[str]) -> OtherMaster | None:
        config = self._parts.base.config
        return await newer_master(
            self._client,
            config.name_servers,
            config.broker_name,
            self.epoch,
            self._parts.base.identity.address,
            also,
        )

    async def _step_down(self, other: OtherMaster) -> RoleStatus:
        state = self._state
        record = slave_of(other)
        if not state.is_master or record.epoch <= state.epoch:
            return self.status()
        _log.error(
            "%s is the master of this name since epoch %d, and this broker's epoch is %d: it "
            "becomes a slave of that one",
            other.status.address,
            record.epoch,
            state.epoch,
        )
        state.observe_epoch(record.epoch)
        self._parts.writing.gate.hold(True)
        if self._parts.base.config.transient_store_pool_enable:
            _log.error("transientStorePoolEnable=true: no slave has that; it takes no messages")
            return self.status()
        await self._save(record)
        await self._parts.follow(record)
        self._pass_on(record)
        self._parts.peers.registration.begin_anew()
        return self.status()
