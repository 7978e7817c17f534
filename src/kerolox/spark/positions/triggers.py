"""When a micro-batch is worth making: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

from __future__ import annotations


class Threshold:
    """Holds a batch back until enough waits, or the last one is long ago. Pure.

    Args:
        offsets_min: so many must wait; None: any number.
        delay_ms_max: after so long a batch is made of whatever waits.
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
