"""Replication of one broker under a controller (``AutoSwitchHAService``): its epochs, and as a
master its sync state set, who waits for it, and what is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.auto_switch import SlaveHandshake
from kerolox.broker.replication.auto_switch_links import SyncMasterLink, SyncSlaveLink
from kerolox.broker.replication.log_epochs import LogEpochs
from kerolox.broker.replication.master import SlaveEnd
from kerolox.broker.replication.slave import ReplicaLog
from kerolox.broker.replication.sockets import replication_settings, steady_ms
from kerolox.broker.replication.sync_set import SyncSet
from kerolox.broker.replication.waits import Replicated, SlaveWaits
from kerolox.kernel.store import StoreKernel
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.log.epochs import EpochFile, EpochTable


class SyncReplicated(Replicated):
    """How far the log is on those that a sender waits for.

    Attributes:
        sync_set: of a master.
    """

    def __init__(self, config: BrokerConfig) -> None:
        """Of no master."""
        super().__init__(0)
        self._waits_for_all = config.all_ack_in_sync_state_set
        self._count = config.in_sync_replicas
        self.sync_set: SyncSet | None = None

    def measure(self, end: int) -> bool:
        """Examine how far that is of a log that ends at ``end``; whether ``offset`` moved."""
        before, self.offset = self.offset, self._measured(end)
        return self.offset > before

    def _measured(self, end: int) -> int:
        sync_set = self.sync_set
        if sync_set is None:
            return 0
        if not self._waits_for_all:
            # Nobody is waited for where the master alone is enough.
            return LONG_MAX if self._count <= 1 else max(sync_set.held_by(self._count, end), 0)
        return LONG_MAX if sync_set.is_alone else sync_set.confirmed

    @property
    def available_below(self) -> int:
        """All that a master takes waits for the set."""
        return 0 if self.sync_set is None else LONG_MAX


class SyncWaits(SlaveWaits):
    """Senders that wait for the sync state set.

    Attributes:
        newcomer: set when a slave that is not in the set may have to come in, or one is gone.
    """

    def __init__(self, config: BrokerConfig, store: StoreKernel) -> None:
        """See :class:`SlaveWaits`."""
        super().__init__(config, store)
        self.replicated: SyncReplicated = SyncReplicated(config)
        self._store = store
        self._shown: int | None = 0
        store.set_confirmed(0)
        self.newcomer = asyncio.Event()

    def note(self, link: SlaveEnd) -> None:
        """See :meth:`SlaveWaits.note`."""
        sync_set = self.replicated.sync_set
        if sync_set is None or not isinstance(link, SyncSlaveLink) or link.acknowledged < 0:
            return
        if not sync_set.is_served_by(link.broker_id, link):
            return  # A later connection has its place.
        end = self._store.max_physical_offset
        sync_set.acknowledged(link.broker_id, link.acknowledged, end, steady_ms())
        if link.broker_id not in sync_set.counted and not link.is_learner:
            self.newcomer.set()
        self.measure()

    def remove(self, link: SlaveEnd) -> None:
        """See :meth:`SlaveWaits.remove`."""
        sync_set = self.replicated.sync_set
        if (
            sync_set is not None
            and isinstance(link, SyncSlaveLink)
            and sync_set.is_served_by(link.broker_id, link)
        ):
            sync_set.gone(link.broker_id)
            self.newcomer.set()
        super().remove(link)

    def measure(self) -> None:
        """The set or what it has may have changed: answer those who waited for that."""
        if self.replicated.measure(self._store.max_physical_offset):
            self._waits.wake()
        self._notify()
        sync_set = self.replicated.sync_set
        if sync_set is not None:
            self.show(None if sync_set.is_alone else sync_set.confirmed)

    def show(self, confirmed: int | None) -> None:
        """Let consumers see the log up to there; None: all of it."""
        if confirmed != self._shown:
            self._shown = confirmed
            if self._store.set_confirmed(confirmed):
                self._ready()


class AutoSwitchService:
    """Epochs, set and links of one broker.

    Attributes:
        epochs: of its log.
        waits: of its senders.
        broker_id: that the controller gave it; 0: none yet.
        epoch: of the master that the controller named last.
    """

    def __init__(self, config: BrokerConfig, store: StoreKernel, root: Path) -> None:
        """The file of epochs is read; StoreError: it can't be relied on."""
        self._config = config
        self._store = store
        self.epochs = LogEpochs(EpochFile(root / EPOCH_FILE))
        self.waits = SyncWaits(config, store)
        self.broker_id = 0
        self.epoch = 0
        self._confirmed = -1
        """Of a slave, as its master said."""
        self._link: SyncMasterLink | None = None
        """Of a slave, to the master of this epoch."""

    # -- what it is -----------------------------------------------------------------------------
    @property
    def sync_set(self) -> SyncSet | None:
        """Of a master."""
        return self.waits.replicated.sync_set

    def lead(self, epoch: int, members: Iterable[int], set_epoch: int) -> None:
        """Begin an epoch as the master. OSError: it can't be written; EpochError: the log has a
        later one. Nothing changes then.
        """
        store, table = self._store, self.epochs.table
        begin, end = store.min_physical_offset, store.max_physical_offset
        self.epochs.forget_before(begin)
        if table.last_epoch != epoch:
            # What was stored before there was a controller belongs to the first master.
            self.epochs.begin(epoch, end if table.starts else begin)
        self.epoch = epoch
        confirmed = max(self._confirmed, begin)
        slow_ms = self._config.ha_max_time_slave_not_catchup
        sync_set = SyncSet(self.broker_id, members, set_epoch, confirmed, slow_ms)
        sync_set.confirm(end)
        self.waits.replicated.sync_set = sync_set
        self.waits.measure()

    def follow(self, epoch: int) -> None:
        """Be a slave of the master of an epoch from now on."""
        self.epoch, self._link = epoch, None
        self._confirmed = self.confirmed
        self.waits.replicated.sync_set = None
        self.waits.measure()
        self.waits.show(max(self._confirmed, 0))

    def learn(self, members: Iterable[int], set_epoch: int) -> None:
        """The controller says who is in the set."""
        end = self._store.max_physical_offset
        if self.sync_set is not None and self.sync_set.learn(members, set_epoch, end):
            self.waits.measure()

    def refused(self) -> None:
        """The controller has granted no wish that it was sent."""
        if self.sync_set is not None:
            self.sync_set.refused(self._store.max_physical_offset)
            self.waits.measure()

    def wish(self) -> frozenset[int] | None:
        """The set to ask the controller for; None: the one that is known."""
        if self.sync_set is None:
            return None
        end = self._store.max_physical_offset
        start = self.epochs.table.starts[-1].start
        wanted = self.sync_set.wish(end, start, steady_ms())
        self.waits.measure()
        return wanted

    # -- the ends of connections ------------------------------------------------------------------
    @property
    def table(self) -> EpochTable:
        """Epochs of its log."""
        return self.epochs.table

    @property
    def confirmed(self) -> int:
        """Up to this offset the log is on each broker of the sync state set."""
        sync_set = self.sync_set
        if sync_set is None:
            return self._confirmed
        sync_set.confirm(self._store.max_physical_offset)
        return sync_set.confirmed

    @property
    def has_all(self) -> bool:
        """A slave has all that its master had when it was reached."""
        return self._link is not None and self._link.has_all

    def connected(self, link: SyncSlaveLink) -> None:
        """A slave said which broker it is."""
        if self.sync_set is not None:
            self.sync_set.connected(
                link.broker_id, steady_ms(), is_learner=link.is_learner, connection=link
            )

    def sent(self, link: SyncSlaveLink) -> None:
        """Something is sent to it."""
        sync_set = self.sync_set
        if sync_set is not None and sync_set.is_served_by(link.broker_id, link):
            sync_set.sent(link.broker_id, self._store.max_physical_offset, steady_ms())

    def link_to_slave(self, now_ms: int) -> SyncSlaveLink:
        """A slave connected."""
        config = self._config
        size = config.mapped_file_size_commit_log
        return SyncSlaveLink(replication_settings(config), size, now_ms, self)

    def link_to_master(self, log: ReplicaLog, now_ms: int, compared_bytes: int) -> SyncMasterLink:
        """The master was reached."""
        config = self._config
        handshake = SlaveHandshake(self.broker_id, config.sync_from_last_file, config.async_learner)
        self._link = SyncMasterLink(
            log,
            config.mapped_file_size_commit_log,
            replication_settings(config),
            now_ms,
            compared_bytes,
            epochs=self.epochs,
            handshake=handshake,
            epoch=self.epoch,
            on_confirmed=self._note_confirmed,
        )
        return self._link

    def _note_confirmed(self, offset: int) -> None:
        self._confirmed = max(self._confirmed, offset)
        self.waits.show(max(self._confirmed, 0))
