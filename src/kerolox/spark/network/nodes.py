"""Which node of a broker a task reads from: its master, or a slave (``readFromSlaves``).

With each answer a broker suggests the node for the next pull (``suggestWhichBrokerId``): a slave
when what is read is not in the master's memory any more. A slave may lack what the master has. So
after any failure there the reader asks the master again, and nothing is lost.
"""

from __future__ import annotations

import time

from kerolox.client.core.routes import MASTER_ID

SUGGESTIONS_BEFORE_MOVE = 4
"""Answers in a row that name another node: pulls in flight are asked again at each move."""

REST_SECONDS = 30.0
"""So long no suggestion is followed after a node that failed: it may be the one suggested."""


class Node:
    """The node of one broker that is read from. Does no I/O.

    Args:
        address: of the master.
        allows_slaves: whether slaves may be read from.
    """

    def __init__(self, address: str, *, allows_slaves: bool) -> None:
        self.address = address
        self.broker_id = MASTER_ID
        self._allows_slaves = allows_slaves
        self._suggested = MASTER_ID
        self._times = 0
        self._rests_until = 0.0

    @property
    def is_slave(self) -> bool:
        """Whether it is none but the master that has all."""
        return self.broker_id != MASTER_ID

    def suggested_node(self, suggested: int) -> int | None:
        """An answer has suggested a node; the broker id to move to, None: stay."""
        if not self._allows_slaves or suggested == self.broker_id:
            self._times = 0
            return None
        self._times = self._times + 1 if suggested == self._suggested else 1
        self._suggested = suggested
        if self._times < SUGGESTIONS_BEFORE_MOVE or time.monotonic() < self._rests_until:
            return None
        self._times = 0
        return suggested

    def move(self, broker_id: int, addresses: dict[int, str]) -> bool:
        """Read from a node of these; False: it is not one of them."""
        if broker_id not in addresses:
            return False
        self.broker_id, self.address = broker_id, addresses[broker_id]
        return True

    def failed(self, addresses: dict[int, str]) -> None:
        """The node does not answer, or does not have what it should: read from another one.

        Args:
            addresses: of the broker, as its route says; empty: nobody knows.
        """
        master = addresses.get(MASTER_ID)
        slaves = sorted(each for each in addresses if each != MASTER_ID)
        self._rests_until = time.monotonic() + REST_SECONDS
        if self.is_slave:
            if master is not None:
                self.move(MASTER_ID, addresses)
        elif master is not None and master != self.address:
            self.address = master
        elif self._allows_slaves and slaves:
            self.move(slaves[0], addresses)
