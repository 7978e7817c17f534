"""What promotion and demotion made of a broker: ``config/role.json``.

The file is stronger than ``brokerRole`` and ``brokerId`` of the settings. A broker that was never
promoted or demoted has none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from kerolox.broker.config import BrokerConfig
from kerolox.broker.role import Role
from kerolox.config import put_in_place, replace_file, write_beside
from kerolox.errors import ConfigError, StoreError
from kerolox.protocol import fastjson
from kerolox.protocol.codes import MASTER_ID
from kerolox.protocol.extensions.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER
from kerolox.protocol.names import Int64

_BYTES_MAX = 64 * 1024


class RoleRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of roles."""

    epoch: Int64 = 0
    """The highest that this broker has heard of."""
    broker_role: str = ""
    """Empty: that of the settings, and so with ``broker_id``."""
    broker_id: Int64 = 0
    former_id: Int64 = 0
    """Of a master: the id that it had as a slave; 0: it was none."""
    master_role: str = ""
    """Of a slave: ``brokerRole`` of the last master that it knew, which it gets when it is
    promoted; empty: it knew none."""
    master_address: str = ""
    """Of a slave: where its master was when it was told; name servers know better."""
    master_ha_address: str = ""


class RoleFile:
    """``role.json`` of one broker."""

    def __init__(self, folder: Path) -> None:
        """``folder``: where the tables lie. Nothing is read yet."""
        self.path = folder / "role.json"
        self.prepared_path = folder / "role.json.next"
        """What :meth:`prepare` wrote. Nobody reads it."""
        self._prepared = b""

    def load(self) -> RoleRecord:
        """What the file says; an empty record when there is none. StoreError: it can't be read, or
        is no such record. A broker that does not know whether it is a master must not start as one.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_BYTES_MAX)
            record = msgspec.json.decode(data, type=RoleRecord)
        except (FileNotFoundError, NotADirectoryError):
            return RoleRecord()
        except (OSError, msgspec.DecodeError) as error:
            raise self._fault(getattr(error, "strerror", None) or str(error)) from error
        roles = ("", ASYNC_MASTER, SYNC_MASTER, SLAVE)
        if record.broker_role not in roles or record.epoch < 0 or record.broker_id < 0:
            raise self._fault("it names no role")
        return record

    def prepare(self, record: RoleRecord) -> None:
        """Write a record that is not in force yet: to save it takes no space any more."""
        self._prepared = b""
        text = _text_of(record)
        write_beside(self.path, self.prepared_path, lambda file: file.write(text))
        self._prepared = text

    def save(self, record: RoleRecord) -> None:
        """Write it, and to the disk; OSError: it can't be written; the old one is there."""
        text = _text_of(record)
        is_prepared, self._prepared = text == self._prepared, b""
        if is_prepared:
            with contextlib.suppress(FileNotFoundError):
                put_in_place(self.prepared_path, self.path)
                return
        replace_file(self.path, lambda file: file.write(text), keeps_backup=False)
        with contextlib.suppress(OSError):
            self.prepared_path.unlink()

    def _fault(self, reason: str) -> StoreError:
        return StoreError(
            f"{self.path}: {reason}; it says whether this broker is the master: put it right, or "
            "remove it when brokerRole and brokerId of the settings say what the broker is"
        )


def _text_of(record: RoleRecord) -> bytes:
    return fastjson.dumps_pretty(msgspec.to_builtins(record))


def role_of(record: RoleRecord, config: BrokerConfig) -> Role:
    """What a record says; where it names no role, what the settings say. ConfigError: they are not
    those of such a broker.
    """
    if not record.broker_role:
        return Role.of(config, record.epoch)
    if record.broker_role == SLAVE and config.transient_store_pool_enable:
        raise ConfigError(
            "transientStorePoolEnable=true: a slave has no such pool, and role.json makes this "
            "broker a slave; set it to false"
        )
    # The master that was configured is another one now.
    return Role(
        broker_role=record.broker_role,
        broker_id=record.broker_id,
        epoch=record.epoch,
        is_recorded=True,
    )


def was_slave(record: RoleRecord, config: BrokerConfig) -> bool:
    """Whether a broker was a slave when it had no controller. Under one, settings of RocketMQ say
    ``SLAVE`` and -1 of every broker.
    """
    if record.broker_role:
        return record.broker_role == SLAVE
    is_set = config.broker_role == SLAVE and config.broker_id > MASTER_ID
    return is_set or bool(record.master_role)


def forget_role(config: BrokerConfig) -> None:
    """Have ``brokerRole`` and ``brokerId`` of the settings count again at the next start. The epoch
    stays: whatever this broker becomes comes after what it was. Under a controller it stays known,
    too, that it was a slave. StoreError: the file can't be read.
    """
    file = RoleFile(config.config_folder)
    record = file.load()
    if record.broker_role:
        is_slave = record.broker_role == SLAVE and config.enable_controller_mode
        master_role = (record.master_role or ASYNC_MASTER) if is_slave else ""
        file.save(RoleRecord(epoch=record.epoch, master_role=master_role))
