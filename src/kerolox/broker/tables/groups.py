"""The consumer groups of a broker: ``SubscriptionGroupManager`` of RocketMQ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.errors import system_error
from kerolox.broker.role import BrokerRole, Role
from kerolox.broker.tables.json_file import (
    TABLE_BYTES_MAX,
    JsonFile,
    of_master,
    text_bytes,
    with_bounds,
    without_long_names,
)
from kerolox.kernel.tables import FastPathTables
from kerolox.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from kerolox.protocol.codes import MASTER_ID, Perm
from kerolox.protocol.names import (
    BUILT_IN_GROUPS,
    LMQ_PREFIX,
    is_reserved_group,
    length_fault,
)

GROUPS_MAX = 100_000
"""Groups that a broker has; further ones are refused."""
GROUP_BYTES = 600
"""What a group takes in the file besides its name, which is there twice, at the most."""

_log = logging.getLogger(__name__)


class GroupTable:
    """All consumer groups of one broker, in the kernel's table and ``subscriptionGroup.json``."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: FastPathTables,
        now_ms: Callable[[], int],
        *,
        may_be_fast: bool = True,
        on_change: Callable[[str, bool], None] = lambda group, may_broadcast: None,
    ) -> None:
        """Without groups before :meth:`load`. ``store`` gets what its fast path must know of each
        group.

        ``may_be_fast`` of False: no pull of any group is answered by the fast path. ``on_change``
        is called with the name of each group that is loaded, added, replaced or taken out, and its
        consumeBroadcastEnable.
        """
        self._may_be_fast = may_be_fast
        self._on_change = on_change
        self._settings = settings
        self._role = role
        self._store = store
        self._now_ms = now_ms
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._bytes = 0
        self.version = DataVersion(counter=0, timestamp=now_ms())
        self.file = JsonFile(
            settings.current.config_folder / "subscriptionGroup.json", self.snapshot
        )
        settings.subscribe(self._settings_changed)
        role.subscribe(self._role_changed)

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if old.broker_permission != new.broker_permission:
            self.push_all()

    def _role_changed(self, old: Role, new: Role) -> None:
        if old.is_slave != new.is_slave:
            self.push_all()

    def load(self) -> None:
        """Read the file over the built-in groups and give all to the kernel."""
        for name in BUILT_IN_GROUPS:
            self._groups[name] = SubscriptionGroupConfig(group_name=name)
        loaded = self.file.load(SubscriptionGroupTable)
        if loaded is not None:
            table = without_long_names(loaded.subscription_group_table, self.file, _is_long)
            self._groups.update((name, with_bounds(group)) for name, group in table.items())
            self.version = loaded.data_version
        for group in self._groups.values():
            self._push(group)
            self._on_change(group.group_name, group.consume_broadcast_enable)
        self._bytes = sum(map(_bytes_of, self._groups))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The configuration of a group; None when there is none. Never makes one.

        Every group with the name of a light message queue has one, which is in no table
        (``LmqSubscriptionGroupManager``).
        """
        if self._is_lmq(group):
            return SubscriptionGroupConfig(group_name=group)
        return self._groups.get(group)

    def _is_lmq(self, group: str) -> bool:
        return self._settings.current.enable_lmq and group.startswith(LMQ_PREFIX)

    @property
    def names(self) -> list[str]:
        """All group names."""
        return list(self._groups)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """``findSubscriptionGroupConfig``: as :meth:`get`, and makes the group when the broker may
        (``autoCreateSubscriptionGroup``, or a system group)."""
        existing = self.get(group)
        if existing is not None:
            return existing
        if not (self._settings.current.auto_create_subscription_group or is_reserved_group(group)):
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self.put(created)
        return created

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Add or replace a group; nothing to do for that of a light message queue. BrokerError,
        code 1: it is new, and there are ``GROUPS_MAX`` already, or as many as ``TABLE_BYTES_MAX``
        hold.
        """
        if self._is_lmq(group.group_name):
            return
        if group.group_name not in self._groups:
            size = _bytes_of(group.group_name)
            if len(self._groups) >= GROUPS_MAX or self._bytes + size > TABLE_BYTES_MAX:
                raise system_error(
                    f"this broker has {len(self._groups)} consumer groups, which take "
                    f"{self._bytes} bytes, and no space for another one; delete some that nobody "
                    "uses"
                )
            self._bytes += size
        self._groups[group.group_name] = group
        self._push(group)
        self._changed(group.group_name)

    def replace(self, table: SubscriptionGroupTable, *, keeps_attributes: bool = False) -> None:
        """Take a master's table for this one, with its version. Names that are too long are left
        out. ``keeps_attributes``: the master does not know attributes: groups that are here keep
        theirs.
        """
        told = table.subscription_group_table
        wanted = of_master(told, self._groups, _is_long, keeps_attributes=keeps_attributes)
        changed = {n for n, g in wanted.items() if self._groups.get(n) != g}
        gone = self._groups.keys() - wanted.keys()
        self._groups = wanted
        self._bytes = sum(map(_bytes_of, wanted))
        for name in gone:
            self._store.delete_group(name)
            self._changed(name)
        for name in changed:
            self._push(wanted[name])
            self._changed(name)
        self.file.write_soon()
        self.version = table.data_version

    def disable_slow(self, lag: Iterable[tuple[str, str, int, int]]) -> None:
        """``protectBroker``: switch off the groups that read so far back that others suffer
        (``consumerFallbehindThreshold``), if ``disableConsumeIfConsumerReadSlowly`` says so.

        ``lag`` is as ``StoreMetrics.lag`` tells it.
        """
        if not self._settings.current.disable_consume_if_consumer_read_slowly:
            return
        bytes_max = self._settings.current.consumer_fallbehind_threshold
        for name, topic, queue_id, size in lag:
            group = self._groups.get(name)
            if size > bytes_max and group is not None and group.consume_enable:
                _log.warning(
                    "group %s is switched off: in queue %d of %s it reads %d bytes behind the end "
                    "of the log; consumerFallbehindThreshold is %d",
                    name,
                    queue_id,
                    topic,
                    size,
                    bytes_max,
                )
                self.put(msgspec.structs.replace(group, consume_enable=False))

    def push_all(self) -> None:
        """What the broker may do has changed."""
        for group in self._groups.values():
            self._push(group)

    def delete(self, group: str) -> bool:
        """Take a group out. False: there was none."""
        if self._groups.pop(group, None) is None:
            return False
        self._bytes -= _bytes_of(group)
        self._store.delete_group(group)
        self._changed(group)
        return True

    async def persist(self) -> None:
        """Wait until every change made so far is in the file."""
        await self.file.flush()

    def snapshot(self, group: str | None = None) -> SubscriptionGroupTable:
        """The whole table, as ``subscriptionGroup.json`` holds it; or that group's part of it."""
        if group is None:
            groups = dict(self._groups)
        else:
            found = self.get(group)
            groups = {} if found is None else {group: found}
        return SubscriptionGroupTable(data_version=self.version, subscription_group_table=groups)

    def _changed(self, group: str) -> None:
        self.version = self.version.next(self._now_ms())
        self.file.write_soon()
        config = self._groups.get(group)
        self._on_change(group, config is None or config.consume_broadcast_enable)

    def _push(self, group: SubscriptionGroupConfig) -> None:
        readable = bool(self._settings.current.broker_permission & Perm.READ)
        config = self._settings.current
        is_read = not self._role.current.is_slave or config.slave_read_enable
        is_plain = is_read and group.broker_id == MASTER_ID
        fast = self._may_be_fast and readable and group.consume_enable and is_plain
        # Without slaveReadEnable every answer suggests the master, however far a reader is behind.
        slow = group.which_broker_when_consume_slowly if config.slave_read_enable else MASTER_ID
        self._store.set_group(group.group_name, fast, slow)


def _bytes_of(name: str) -> int:
    return GROUP_BYTES + 2 * text_bytes(name)


def _is_long(name: str) -> bool:
    return length_fault("", name) is not None
