"""No queue of pops is lent to this kernel: the state machine of the broker is in Python, too."""

from __future__ import annotations

from collections.abc import Sequence

from kerolox.kernel.pops import LentLease


class NothingLent:
    """See :class:`kerolox.kernel.pops.LentPops`."""

    @property
    def lends_pops(self) -> bool:
        """Whether queues may be lent at all."""
        return False

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
        """False: it stays with the caller."""
        return False

    def lent_pops(
        self, group: str, topic: str, queue_id: int, is_back: bool
    ) -> tuple[int, int, int, Sequence[LentLease]] | None:
        """None: it is not lent."""
        return None

    def lent_counts(self) -> Sequence[tuple[str, str, int, int]]:
        """None."""
        return ()

    def lent_changes(self) -> tuple[int, int, int]:
        """There are none, and no end."""
        return 0, (1 << 63) - 1, 0

    def lent_ended(self, now_ms: int) -> Sequence[tuple[str, str, int]]:
        """None."""
        return ()

    def lent_renewed(self, owner: str | None, until_ms: int) -> Sequence[tuple[str, str, int]]:
        """None."""
        return ()
