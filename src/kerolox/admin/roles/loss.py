"""What may be lost when a slave takes the place of a master that is gone.

A SYNC_MASTER acknowledges what is on a slave, any of them. So nothing that it acknowledged with
SEND_OK is lost when the slave that reaches furthest becomes the master, if all slaves that it had
are there to be compared. An ASYNC_MASTER acknowledges what it has alone: whatever it had not sent
is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from kerolox.errors import ClientError
from kerolox.protocol.extensions.roles import SYNC_MASTER, RoleStatus


def check_furthest(slave: RoleStatus, others: Mapping[str, int]) -> None:
    """No other slave has more of the log than this one.

    Args:
        slave: the one that is to become the master.
        others: address → where the logs of the others end.

    Raises:
        ClientError: one has; the text names the one that reaches furthest.
    """
    address = max(others, key=lambda each: others[each], default="")
    if address and others[address] > slave.log_end:
        raise ClientError(
            f"{address} has more of the log than {slave.address}: it reaches {others[address]}, "
            f"and {slave.log_end} here; promote {address}, or stop it if its log is to be left out"
        )


def what_may_be_lost(slave: RoleStatus, others: Mapping[str, int]) -> str:
    """What may be lost, in words; empty: nothing that was acknowledged."""
    if not slave.log_end and not slave.master_role and not slave.newer_epoch:
        return (
            f"{slave.address} has never followed its master, its log is empty: everything that its "
            "master took is lost"
        )
    reach = f"the log of {slave.address} ends at {slave.log_end}"
    if slave.newer_epoch:
        return (
            f"{reach}; what the master of epoch {slave.newer_epoch} took since its promotion is "
            "lost, unless that one comes back"
        )
    if slave.master_role != SYNC_MASTER:
        was = slave.master_role or "not known to be SYNC_MASTER"
        return f"{reach}; its master was {was}: what that had not sent yet is lost"
    missing = slave.master_slaves - 1 - len(others)
    if missing > 0:
        return (
            f"{reach}; its master was SYNC_MASTER and had {slave.master_slaves} slaves, of which "
            f"{missing} can't be asked: one of those may have more"
        )
    return ""
