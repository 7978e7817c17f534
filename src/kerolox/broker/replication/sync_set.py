"""The sync state set as its master knows it (``AutoSwitchHAService``).

The controller elects a master out of this set alone. So nothing is confirmed before each broker of
the set has it. Consumers are to see nothing else, so that no failover takes back what they saw.

The controller decides who is in the set, at the wish of the master. Between a wish and its answer
the master can't know which set counts, so it waits for the brokers of both. A wish whose answer was
lost counts until a later set is known. RocketMQ lets an older answer end it.

A slave that is to come in must have all that was acknowledged, and under load the log grows with
each message. So one that is near is waited for first: from then on nothing is confirmed that it
lacks, and it soon has what was. RocketMQ takes one in that happens to have all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NEAR_BYTES = 1 << 20
"""A slave that lacks no more may be waited for."""
NEAR_MS = 1_000
"""For so long at most, and then not for ``AGAIN_MS``."""
AGAIN_MS = 5_000


@dataclass(slots=True)
class _Slave:
    """A slave that is connected."""

    is_learner: bool
    connection: object
    caught_up_ms: int
    acknowledged: int = -1
    awaited: int = -1
    """The end of the log when something was sent to it; -1: it has that by now."""
    awaited_ms: int = 0
    near_ms: int | None = None
    """Since when it is waited for, though it is not in the set."""
    far_until_ms: int = 0
    """It is not waited for before."""


class SyncSet:
    """Without I/O. Times are milliseconds of a clock that nobody sets, offsets physical ones.

    Attributes:
        members: broker ids that the controller counts, as far as is known.
        epoch: how often the controller changed the set.
        confirmed: everything below it is on each broker of the set; it never goes back.
    """

    def __init__(
        self, own_id: int, members: Iterable[int], epoch: int, confirmed: int, slow_ms: int
    ) -> None:
        """Of a master that was elected just now. ``confirmed``: what it knew as a slave.
        ``slow_ms``: haMaxTimeSlaveNotCatchup.
        """
        self._own_id = own_id
        self._slow_ms = slow_ms
        self._slaves: dict[int, _Slave] = {}
        self._wished: set[int] = set()
        """Who is in sets that the controller was asked for since ``members`` are known."""
        self.members = frozenset(members)
        self.epoch = epoch
        self.confirmed = confirmed

    @property
    def counted(self) -> frozenset[int]:
        """Whom a confirmation waits for: each broker that may be in the set."""
        near = (each for each, slave in self._slaves.items() if slave.near_ms is not None)
        return self.members.union(self._wished, near)

    # -- slaves ---------------------------------------------------------------------------------
    @property
    def is_alone(self) -> bool:
        """A confirmation waits for no other broker."""
        return self.counted <= {self._own_id}

    def connected(
        self, broker_id: int, now_ms: int, *, is_learner: bool = False, connection: object = None
    ) -> None:
        """A slave shook hands; it takes the place of an earlier connection of that broker."""
        self._slaves[broker_id] = _Slave(is_learner, connection, now_ms)

    def is_served_by(self, broker_id: int, connection: object) -> bool:
        """Whether that is the latest connection of a broker."""
        slave = self._slaves.get(broker_id)
        return slave is not None and slave.connection is connection

    def gone(self, broker_id: int) -> None:
        """Its connection ended. It stays in the set until the controller knows."""
        self._slaves.pop(broker_id, None)

    def sent(self, broker_id: int, end: int, now_ms: int) -> None:
        """Something was sent to a slave, while the log ended at ``end``."""
        slave = self._slaves[broker_id]
        if slave.awaited < 0:
            slave.awaited, slave.awaited_ms = end, now_ms

    def acknowledged(self, broker_id: int, offset: int, end: int, now_ms: int) -> bool:
        """A slave's log reaches ``offset``, the one here ``end``; whether ``confirmed`` moved."""
        slave = self._slaves[broker_id]
        slave.acknowledged = max(slave.acknowledged, offset)
        if offset >= end:
            slave.caught_up_ms, slave.awaited = now_ms, -1
        elif 0 <= slave.awaited <= offset:
            slave.caught_up_ms, slave.awaited = slave.awaited_ms, -1
        return self.confirm(end)

    def confirm(self, end: int) -> bool:
        """Confirm what each counted broker has of a log that ends at ``end``; whether ``confirmed``
        moved."""
        others = self.counted - {self._own_id}
        offset = min((self._offset_of(each) for each in others), default=end)
        if min(offset, end) <= self.confirmed:
            return False
        self.confirmed = min(offset, end)
        return True

    def held_by(self, count: int, end: int) -> int:
        """The offset that ``count`` brokers of the set have, this one among them; -1: it has not so
        many (``inSyncReplicas``)."""
        others = (self._offset_of(each) for each in self.members - {self._own_id})
        ends = sorted([end, *(min(each, end) for each in others)], reverse=True)
        return ends[count - 1] if 0 < count <= len(ends) else -1

    def _offset_of(self, broker_id: int) -> int:
        slave = self._slaves.get(broker_id)
        return -1 if slave is None else slave.acknowledged

    # -- the set --------------------------------------------------------------------------------
    def wish(self, end: int, epoch_start: int, now_ms: int) -> frozenset[int] | None:
        """The set to ask the controller for (1001); None: the one that is known. ``epoch_start``:
        where the part of the log begins that this master writes.

        A slave leaves that is not connected, or had not all for ``haMaxTimeSlaveNotCatchup``. One
        comes in that has all that is confirmed, and what masters before this one wrote.
        """
        self.confirm(end)
        wanted = {self._own_id}
        for broker_id, slave in self._slaves.items():
            if broker_id in self.members:
                slave.near_ms = None
                is_slow = now_ms - slave.caught_up_ms > self._slow_ms
                is_in = slave.acknowledged >= end or not is_slow
            else:
                least = max(self.confirmed, epoch_start)
                is_in = not slave.is_learner and slave.acknowledged >= least
                if not slave.is_learner:
                    self._wait_for(slave, max(epoch_start, end - NEAR_BYTES), now_ms)
            if is_in:
                wanted.add(broker_id)
        if wanted == self.members:
            # A set that is known already would be refused, and say nothing of an earlier wish.
            return None if self._wished <= wanted else self.members.union(self._wished)
        # Counted before it is sent: the controller may have it before an answer is here.
        self._wished |= wanted
        return frozenset(wanted)

    def _wait_for(self, slave: _Slave, least: int, now_ms: int) -> None:
        """Begin to wait for one that is near, or give it up. ``least``: near is what has that."""
        if slave.near_ms is not None:
            if now_ms - slave.near_ms > NEAR_MS:
                slave.near_ms, slave.far_until_ms = None, now_ms + AGAIN_MS
        elif slave.acknowledged >= least and now_ms >= slave.far_until_ms:
            slave.near_ms = now_ms

    def refused(self, end: int) -> None:
        """The controller answered that it does not grant the last wish. Wishes go to it one after
        the other, so an earlier one is not granted later either.
        """
        self._wished.clear()
        for slave in self._slaves.values():
            slave.near_ms = None
        self.confirm(end)

    def learn(self, members: Iterable[int], epoch: int, end: int) -> bool:
        """The controller tells the set: as an answer, when it was asked, or unasked. Whether it is
        news; an older one, or the one that is known, says nothing of wishes under way.
        """
        if epoch <= self.epoch:
            return False
        self.members, self.epoch = frozenset(members), epoch
        self._wished.clear()
        self.confirm(end)
        return True
