"""What a broker starts as: what settings or ``role.json`` say, or the slave of a newer master."""

from __future__ import annotations

import asyncio
import logging

from kerolox.addresses import join_address
from kerolox.broker.config import BrokerSettings
from kerolox.broker.outbound import outbound_client
from kerolox.broker.role import BrokerRole
from kerolox.broker.roles.fencing import OtherMaster, newer_master
from kerolox.broker.roles.record import RoleFile, RoleRecord, forget_role, role_of, was_slave
from kerolox.errors import StoreError
from kerolox.protocol.extensions.roles import SLAVE
from kerolox.store.layout import IDENTITY_FILE, LEFT_FILE

_log = logging.getLogger(__name__)


class StartingRole:
    """The role of one broker before it runs.

    Attributes:
        file: what outlives a restart.
        record: what the file says.
        role: what the broker is by that.
        is_controlled: a controller says what it is; the file does not count.
        was_slave: what file and settings say, where they do not count.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        """The file is read; StoreError: it can't be. ConfigError: the settings are not those of
        such a broker.
        """
        self._settings = settings
        config = settings.current
        self.is_controlled = config.enable_controller_mode
        self.file = RoleFile(config.config_folder)
        self.record = self.file.load()
        self.was_slave = was_slave(self.record, config)
        self._epoch = self.record.epoch
        if self.is_controlled:
            # Until the controller has said what it is.
            from kerolox.protocol.controller import FIRST_BROKER_ID

            self.record = RoleRecord(broker_role=SLAVE, broker_id=FIRST_BROKER_ID)
            self.role = BrokerRole(role_of(self.record, config))
            return
        role = role_of(self.record, config)
        self.role = BrokerRole(role)
        if (role.broker_role, role.broker_id) != (config.broker_role, config.broker_id):
            _log.warning(
                "%s: this broker is %s with id %d (epoch %d); brokerRole=%s and brokerId=%d of the "
                "settings do not count (kerolox broker --role-of-settings has them count again)",
                self.file.path,
                role.broker_role,
                role.broker_id,
                role.epoch,
                config.broker_role,
                config.broker_id,
            )

    async def poll(self) -> None:
        """Become a slave when there is a newer master. The store is open, so that nobody else
        writes the file. ConfigError: a slave can't have these settings.
        """
        config = self._settings.current
        if self.is_controlled:
            # Without a controller again, the settings say what it is, not what it was once.
            await asyncio.to_thread(forget_role, config)
            if not self.was_slave and self._has_left_controllers:
                # One that was promoted meanwhile may not be under the controllers yet.
                self.was_slave = await self._newer_master() is not None
            return
        await asyncio.to_thread(self._leave_controllers)
        if self.role.current.is_slave:
            return
        if self.record.master_role and not self.record.broker_role:
            # Its settings made a master of a slave.
            self.record = RoleRecord(epoch=self.record.epoch)
            await asyncio.to_thread(self.file.save, self.record)
        other = await self._newer_master()
        if other is None:
            return
        record = slave_of(other)
        _log.error(
            "%s is the master of %s since epoch %d, and this broker's epoch is %d: it starts as a "
            "slave of that one",
            other.status.address,
            config.broker_name,
            record.epoch,
            self._epoch,
        )
        role = role_of(record, config)
        await asyncio.to_thread(self.file.save, record)
        self.record = record
        self.role.replace(role)

    async def _newer_master(self) -> OtherMaster | None:
        config = self._settings.current
        if not config.name_servers:
            return None
        own_address = join_address(*config.advertised(config.listen_port))
        async with outbound_client(self._settings) as client:
            return await newer_master(
                client, config.name_servers, config.broker_name, self._epoch, own_address
            )

    @property
    def _has_left_controllers(self) -> bool:
        return (self._settings.current.store_path_root_dir / LEFT_FILE).exists()

    def _leave_controllers(self) -> None:
        """Remember that controllers know nothing of what is stored from now on. StoreError: that
        can't be written.
        """
        config = self._settings.current
        path = config.store_path_root_dir / IDENTITY_FILE
        if not path.exists():
            return
        from kerolox.broker.roles.identity import IdentityFile

        file = IdentityFile(path, config.broker_cluster_name, config.broker_name)
        try:
            file.leave()
        except OSError as error:
            raise StoreError(
                f"{file.left_path} can't be written: {error.strerror or error}; it keeps this "
                "broker from being elected by what controllers knew of it before"
            ) from error


def slave_of(other: OtherMaster) -> RoleRecord:
    """The record of a broker that finds a newer master in its place."""
    return RoleRecord(
        epoch=other.status.epoch,
        broker_role=SLAVE,
        broker_id=other.free_id,
        master_role=other.status.broker_role,
        master_address=other.status.address,
        master_ha_address=other.status.ha_address,
    )
