"""Queues of pops that a kernel has for a while, so that the commonest pops are fast.

The state machine of pops (``kerolox.broker.pop``) lends a queue of a group with all that is out of
it. The kernel then answers pops of all messages, and their acknowledgements, by the same rules.
Before the state machine does anything else with the queue, it takes it back. So a queue is in one
place at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LENT_QUEUES_MAX = 4_096
"""Queues that a kernel has at most."""

POP_BYTES_MAX = 256 << 10
"""After so many bytes of records a fast pop reads no further queue."""

LentLease = tuple[int, int, int, int, int, int, int, str, bool]
"""First offset, count, bits of what is out, pop time, first pop time, invisible time, end by the
steady clock, owner, whether the broker renews it while its owner is here."""


class LentPops(Protocol):
    """What a kernel has of pops. One that is complete without has none (``lends_pops``)."""

    @property
    def lends_pops(self) -> bool:
        """Whether queues may be lent at all."""

    def lend_pops(
        self,
        group: str,
        topic: str,
        queue_id: int,
        committed: int,
        next_offset: int,
        space: int,
        pop_time: int,
        steady_ms: int,
        retries: tuple[int, int],
        retry_percent: int,
        broker_name: str,
        leases: Sequence[LentLease],
    ) -> bool:
        """Take over a queue; False: it stays with the caller.

        Args:
            group: who pops.
            topic: the queue's own, one of messages, not of retries.
            queue_id: of the queue.
            committed: what the table of offsets has.
            next_offset: the first one that never went out.
            space: how many more messages may be out.
            pop_time: none is older from now on.
            steady_ms: the time, by the clock that ends leases.
            retries: where the group goes on in the topics of its retries, of version 1 and 2. While
                one has more, pops that are to read retries take the slow path.
            retry_percent: of a hundred pops, those that read retries first.
            broker_name: in receipts of gRPC; empty: receives by gRPC take the slow path.
            leases: what is out, ascending.
        """

    def lent_pops(
        self, group: str, topic: str, queue_id: int, is_back: bool
    ) -> tuple[int, int, int, Sequence[LentLease]] | None:
        """Committed and next offset, newest pop time and leases of a queue; ``is_back``: the caller
        has it again. None: it is not lent."""

    def lent_counts(self) -> Sequence[tuple[str, str, int, int]]:
        """Group, topic, queue id of each queue that is lent, and how many messages are out."""

    def lent_changes(self) -> tuple[int, int, int]:
        """How many deliveries and acknowledgements there were; when the first lease ends, or
        before; how many messages are out that the broker renews."""

    def lent_ended(self, now_ms: int) -> Sequence[tuple[str, str, int]]:
        """The queues of which a lease has ended."""

    def lent_renewed(self, owner: str | None, until_ms: int) -> Sequence[tuple[str, str, int]]:
        """The queues with messages that the broker renews, of an owner, or with None of any, and
        that end by then."""
