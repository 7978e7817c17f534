"""Answers that come later: pulls that wait for records, sends that wait for a flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

HELD_PULLS_MAX = 100_000
"""Pulls without expressions that are held in all; further ones are for the slow path to refuse."""

HELD_OF_CONNECTION_MAX = 10_000
"""Those of one connection: what one message or one moment may have to answer."""

HELD_CODES_MAX = 1_000_000
"""Tags codes of all held pulls together."""

PASSED_OVER_MS = 5_000
"""How long a held pull may wait behind messages that it does not want: it is answered then, so that
its group's offset, and what operators see of it, goes on behind them (``PullRequestHoldService``).
"""


OFFSET_WAITS_MAX = 10_000
"""Waits for offsets that there may be."""

ARRIVED_AT_ONCE_MAX = 250
"""Those of them that ``drain_arrived`` reports at once: what follows is work of the loop."""


class HeldPulls(Protocol):
    """Pulls that wait, and the answers that became ready."""

    def hold(
        self,
        connection_id: int,
        serialize_type: int,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        deadline_ms: int,
    ) -> bool:
        """Hold a pull of the slow path; the answer comes out of ``drain_ready``. False: the table
        is full (``HELD_PULLS_MAX``), or the share of its connection
        (``HELD_OF_CONNECTION_MAX``); until it is not, pulls that would wait take the slow path."""

    def stop_holding(self) -> None:
        """Hold no more pulls: the next ``tick`` answers those that are held, and a further fast
        pull that finds nothing is answered at once."""

    def tick(self, now_ms: int) -> bool:
        """Expire held pulls (answer 19), those that were passed over (``PASSED_OVER_MS``, answer
        20) and overdue flush answers (answer 10; all of them once a flush failed). True: see
        ``drain_ready``. Called every 100 ms."""

    def drain_ready(self) -> list[tuple[int, bytes]]:
        """(connection id, frames) of answers that became ready elsewhere than in its own feed."""


class OffsetWaits(Protocol):
    """Waits of those who read for themselves, such as pulls that filter by an expression."""

    def wait_for_offset(
        self, wait_id: int, group: str, topic: str, queue_id: int, offset: int, deadline_ms: int
    ) -> bool:
        """Wait until a queue has a record at an offset; ``drain_arrived`` gives ``wait_id`` then,
        which is the caller's and unique. One without a group is the broker's own, and counts for
        no held pull.

        The first ``tick`` at ``deadline_ms`` or later ends a wait, too. So does the next one where
        held pulls of that group and topic would be answered. False: there are ``OFFSET_WAITS_MAX``.
        """

    def cancel_wait(self, wait_id: int) -> None:
        """Forget a wait; nothing happens when there is none."""

    def drain_arrived(self) -> list[int]:
        """The waits that are over, at most ``ARRIVED_AT_ONCE_MAX``; ``notify_fd`` tells when there
        are more. To be called whenever ``drain_ready`` is."""
