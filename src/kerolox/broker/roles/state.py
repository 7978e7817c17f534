"""What a broker may become, and whether it takes messages: decisions without I/O.

Rules that keep two masters from taking messages at the same time:

- A promotion needs an epoch above all that the broker knows of. A late one is refused.
- A planned change pauses the master first. Who paused it has a token, and only with that is it
  demoted or resumed. A pause ends by itself, so that an operator's tool that dies leaves a master
  that works; from then on its token demotes nobody.
- What a broker becomes is on disk before it is so (:class:`~.record.RoleRecord`).
- A master that hears of a newer epoch takes no messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.broker.roles.record import RoleRecord
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import MASTER_ID
from kerolox.protocol.extensions.roles import (
    ASYNC_MASTER,
    PAUSE_MS_MAX,
    SLAVE,
    SYNC_MASTER,
    RoleChange,
)


class RoleError(KeroloxError):
    """A change of roles is refused; the text says why."""


@dataclass(slots=True)
class RoleState:
    """The role of one broker. Times are milliseconds of a steady clock.

    Attributes:
        role: ``brokerRole``.
        broker_id: 0 for a master.
        epoch: the highest that it has heard of.
        is_changing: what it becomes is being written; it takes no messages.
        newer_epoch: a master has heard of a newer one; 0: it has not.
    """

    role: str
    broker_id: int
    epoch: int
    is_changing: bool = False
    newer_epoch: int = 0
    _token: str = ""
    _until_ms: int = 0

    @property
    def is_master(self) -> bool:
        """It is no slave, whether it takes messages now or not."""
        return self.role != SLAVE

    def is_paused(self, now_ms: int) -> bool:
        """A planned change is under way."""
        return self.is_changing or (bool(self._token) and now_ms < self._until_ms)

    def takes_messages(self, now_ms: int) -> bool:
        """Whether clients may send."""
        return self.is_master and not self.newer_epoch and not self.is_paused(now_ms)

    # -- a planned change -----------------------------------------------------------------------
    def pause(self, change: RoleChange, now_ms: int) -> None:
        """Take no messages for a while. RoleError: it is no master, or not the one that was meant,
        or somebody else has paused it.
        """
        if not self.is_master:
            raise RoleError("it is a slave")
        if self.newer_epoch:
            raise RoleError(f"there is a master of epoch {self.newer_epoch}")
        if change.epoch != self.epoch:
            raise RoleError(f"its epoch is {self.epoch}, not {change.epoch}: roles have changed")
        if self.is_changing or (self.is_paused(now_ms) and self._token != change.token):
            raise RoleError("another change of roles is under way")
        if not change.token or not 0 < change.milliseconds <= PAUSE_MS_MAX:
            raise RoleError(f"a pause has a token, and lasts 1 to {PAUSE_MS_MAX} ms")
        self._token, self._until_ms = change.token, now_ms + change.milliseconds

    def resume(self, change: RoleChange, now_ms: int) -> None:
        """Take messages again. Nothing to do when it was not paused; RoleError: somebody else has
        paused it.
        """
        if self.is_paused(now_ms) and self._token != change.token:
            raise RoleError("another change of roles is under way")
        self._token, self._until_ms = "", 0

    # -- what it becomes ------------------------------------------------------------------------
    def demoted(self, change: RoleChange, now_ms: int) -> RoleRecord | None:
        """The record of the slave that this master becomes; None: it was done before."""
        if not self.is_master and change.epoch == self.epoch:
            return None
        if change.epoch != self.newer_epoch:
            self._check_newer(change.epoch)
        if change.broker_id <= MASTER_ID:
            raise RoleError(f"a slave has an id above 0, not {change.broker_id}")
        if self.is_master and not change.is_forced:
            is_own = bool(change.token) and change.token == self._token
            if not is_own or not self.is_paused(now_ms):
                raise RoleError("its pause is over, or it is another one's; it takes messages")
        return RoleRecord(
            epoch=change.epoch,
            broker_role=SLAVE,
            broker_id=change.broker_id,
            master_role=self.role,
            master_address=change.master_address,
            master_ha_address=change.master_ha_address,
        )

    def promoted(self, change: RoleChange) -> RoleRecord | None:
        """The record of the master that this slave becomes; None: it was done before. A master that
        has heard of a newer one may be given an epoch above that.
        """
        if self.is_master and change.epoch == self.epoch and not self.newer_epoch:
            return None
        if self.is_master and not self.newer_epoch:
            raise RoleError(f"it is the master already, of epoch {self.epoch}")
        self._check_newer(change.epoch)
        if change.broker_role not in (ASYNC_MASTER, SYNC_MASTER):
            raise RoleError("a master's role is ASYNC_MASTER or SYNC_MASTER")
        return RoleRecord(
            epoch=change.epoch,
            broker_role=change.broker_role,
            broker_id=MASTER_ID,
            former_id=self.broker_id,
        )

    def following(self, change: RoleChange) -> RoleRecord:
        """The record of a slave that follows another master from now on; RoleError: it is no slave,
        or knows a newer master.
        """
        if self.is_master:
            raise RoleError("it is a master")
        if change.epoch < self.epoch:
            raise RoleError(f"its epoch is {self.epoch}, which is newer than {change.epoch}")
        return RoleRecord(
            epoch=change.epoch,
            broker_role=SLAVE,
            broker_id=self.broker_id,
            master_address=change.master_address,
            master_ha_address=change.master_ha_address,
        )

    def take(self, record: RoleRecord) -> None:
        """It has become what a record says, which is on disk."""
        self.role, self.broker_id = record.broker_role, record.broker_id
        self.epoch = record.epoch
        self.newer_epoch = 0
        self._token, self._until_ms = "", 0

    def refuse_up_to(self, epoch: int) -> None:
        """Refuse promotions up to an epoch, which could not be written: until the next start, and
        what comes late does not come after that."""
        self.epoch = max(self.epoch, epoch)

    def observe_epoch(self, epoch: int) -> bool:
        """A newer master is known of; whether this one stops taking messages for it."""
        if not self.is_master or epoch <= max(self.epoch, self.newer_epoch):
            return False
        self.newer_epoch = epoch
        return True

    def _check_newer(self, epoch: int) -> None:
        known = max(self.epoch, self.newer_epoch)
        if epoch <= known:
            raise RoleError(f"it knows of epoch {known}, so that {epoch} comes too late")
