"""Masters and slaves that change their roles: requests of Kerolox's own.

GET_BROKER_ROLE (31038) is answered with a :class:`RoleStatus`: what a broker is, and how far its
log reaches. CHANGE_BROKER_ROLE (31039) has a :class:`RoleChange` as its body and is answered with
the status after it. A RocketMQ broker answers both with code 3 (REQUEST_CODE_NOT_SUPPORTED).

Each promotion has a number, the epoch, which is higher than all before it under the same
``brokerName``. Of two masters the one with the higher epoch is right.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kerolox.protocol.names import Address, Int32, Int64, Name

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
"""Values of ``brokerRole``."""

ROLE_EPOCH = "roleEpoch"
"""Member of a broker's registration: its epoch. Name servers of RocketMQ ignore it."""

SUCCESSOR = "successor"
"""Member of a master's registration: the address of the slave that it gives its place to."""

NEWEST_EPOCH = "newestEpoch"
"""Member of our name server's refusal of a master: the epoch of the one that it knows."""

PAUSE_MS_MAX = 60_000
"""Longest time for which a master may be told to take no messages."""

TAIL_BYTES = 64 * 1024
"""Bytes at the end of two logs that are compared, at the most."""


class RoleAction(StrEnum):
    """What CHANGE_BROKER_ROLE asks for."""

    PAUSE = "pause"
    """A master takes no messages for a while, until ``demote`` or ``resume``."""
    RESUME = "resume"
    TAKE_TABLES = "takeTables"
    """A slave takes topics, groups, offsets and delay positions of its master now. With an epoch it
    also writes the record of that promotion, so that a full disk does not refuse it afterwards."""
    DEMOTE = "demote"
    """A master becomes a slave."""
    PROMOTE = "promote"
    """A slave becomes the master."""
    FOLLOW = "follow"
    """A slave follows another master. A master that is told of one with a newer epoch checks
    whether it is there, and becomes its slave."""


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a broker is. Offsets are bytes of the log."""

    broker_name: Name
    broker_cluster_name: Name = ""
    broker_id: Int64
    broker_role: Name
    epoch: Int64 = 0
    former_id: Int64 = 0
    """Of a master: the id that it had as a slave, which nobody else has; 0: it was none."""
    address: Address
    """Where clients reach it."""
    ha_address: Address = ""
    """Where its slaves connect, while it is a master."""
    log_begin: Int64 = 0
    log_end: Int64 = 0
    tail_begin: Int64 = 0
    tail_crc: Int64 = 0
    """CRC-32 of the log from ``tail_begin`` to ``log_end``."""
    is_paused: bool = False
    """It is a master and takes no messages: roles are being changed."""
    newer_epoch: Int64 = 0
    """It is a master and takes no messages: there is one of this epoch, which is newer. 0: none."""
    slaves: Int32 = 0
    """Slaves that are connected to this master."""
    is_following: bool = False
    """Its master sends, and what it sends fits."""
    master_address: Address = ""
    """The master that it takes its tables from."""
    master_role: Name = ""
    """``brokerRole`` of that one, when it was last asked; empty: it does not report."""
    remembered_role: Name = ""
    """Of a slave: the last ``master_role`` that it knew, also before its start; empty: none."""
    master_slaves: Int32 = 0
    """How many slaves that one had then."""

    @property
    def is_master(self) -> bool:
        """It is no slave, whether it takes messages now or not."""
        return self.broker_role != SLAVE


class RoleChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a broker is to become."""

    action: RoleAction
    epoch: Int64 = 0
    """``pause``: the one that the master has. Else the one of the change."""
    broker_id: Int64 = 0
    """Of the slave that a master becomes."""
    broker_role: Name = ""
    """Of the master that a slave becomes."""
    master_address: Address = ""
    """The master from now on; empty: the name servers say."""
    master_ha_address: Address = ""
    token: Name = ""
    """Names one change; only who paused a master resumes or demotes it."""
    milliseconds: Int32 = 0
    """How long a pause lasts at the most."""
    is_forced: bool = False
    """``demote``: whether the master was paused or not."""
