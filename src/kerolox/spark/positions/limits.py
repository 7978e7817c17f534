"""How far a micro-batch goes, and when it is worth making (``maxOffsetsPerTrigger`` and its like).

Pure, and without a memory of its own: whose turn it is follows from the offsets where the batch
starts, which are in the checkpoint. So a batch that is planned again ends where it ended before,
and a restarted query goes on with the turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.message import MessageQueue


def limit_offsets(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], limit: int
) -> dict[MessageQueue, int]:
    """Move ``end`` back so that at most ``limit`` offsets lie after ``start``.

    Every queue in which something waits gets one offset. The rest is shared by what waits in each,
    so neither a long nor a short queue starves. When fewer offsets may be read than queues
    have something, the queues take turns of one offset: of n queues each is served at least once in
    ``ceil(n / limit)`` batches. The shares add up to exactly ``limit`` when as much waits. Queues
    missing in ``start`` keep their ``end``.
    """
    waiting = {queue: end[queue] - start.get(queue, end[queue]) for queue in _in_turn(start, end)}
    waiting = {queue: count for queue, count in waiting.items() if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    first = list(waiting)[:limit]
    rest, others = limit - len(first), total - len(waiting)
    limited = {queue: start[queue] if queue in waiting else offset for queue, offset in end.items()}
    # Cumulative rounding: the k-th cut is floor(rest * waiting so far / all), so each share
    # differs from the exact one by less than 1 and none is more than what waits.
    seen = taken = 0
    for queue in first:
        seen += waiting[queue] - 1
        cut = rest * seen // others if rest else 0
        limited[queue] = start[queue] + 1 + cut - taken
        taken = cut
    return limited


def _in_turn(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> list[MessageQueue]:
    """The queues in order, from the one whose turn it is.

    A batch of ``limit`` offsets adds ``limit`` to the sum of all starts. So the turn moves on by as
    many queues as may have been served.
    """
    queues = sorted(end)
    turn = sum(start.get(queue, 0) for queue in queues) % len(queues) if queues else 0
    return queues[turn:] + queues[:turn]


class Threshold:
    """Holds a batch back until enough waits, or the last one is long ago. Pure. ``offsets_min``: so
    many must wait; None: any number. ``delay_ms_max``: after so long a batch is made of whatever
    waits.
    """

    def __init__(self, offsets_min: int | None, delay_ms_max: int) -> None:
        self._offsets_min = offsets_min or 0
        self._seconds_max = delay_ms_max / 1000
        self._released_at: float | None = None

    def holds_back(self, waiting: int, now: float) -> bool:
        """Whether a batch of ``waiting`` offsets must wait at ``now`` (seconds of any clock).

        The first batch of a run never waits, as with Spark's Kafka source.
        """
        if waiting >= self._offsets_min or self._released_at is None:
            return False
        return now < self._released_at + self._seconds_max

    def released(self, now: float) -> None:
        """A batch was made."""
        self._released_at = now
