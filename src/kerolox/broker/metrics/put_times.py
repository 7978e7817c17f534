"""How long sends took, the way ``StoreStatsService`` tells it.

Two tables over the same times: thirteen classes for ``putMessageDistributeTime``, and finer
buckets from which ``putLatency99`` and ``putLatency999`` are read off. Both are told for the last
whole minute (:meth:`PutTimes.roll`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from kerolox.kernel import Latencies

_CLASSES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_CLASS_STARTS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Where the classes after the first one start; 1 to 9 ms are of ``[0~10ms]``."""

_STEPS_MS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))
_BUCKET_ENDS_MS = (
    *accumulate(step for step, count in _STEPS_MS for _ in range(count)),
    (1 << 63) - 1,
)
"""A time belongs to the first bucket whose end is not below it."""


class PutTimes:
    """Times of sends in milliseconds.

    Attributes:
        since_start: all that were counted.
    """

    def __init__(self) -> None:
        self.longest_ms = 0
        self.since_start = Latencies()
        self._classes = [0] * len(_CLASSES)
        self._buckets = [0] * len(_BUCKET_ENDS_MS)
        self._last_classes: list[int] | None = None
        self._last_buckets: list[int] = []

    def add(self, times: Iterable[tuple[int, int]]) -> None:
        """Count (milliseconds, sends that took so long)."""
        for milliseconds, count in times:
            self.longest_ms = max(self.longest_ms, milliseconds)
            self._classes[bisect_right(_CLASS_STARTS_MS, milliseconds)] += count
            self._buckets[bisect_left(_BUCKET_ENDS_MS, milliseconds)] += count
            self.since_start.note(milliseconds * 1_000, count)

    def roll(self) -> None:
        """A minute is over: what was counted in it is told from now on."""
        self._last_classes, self._classes = self._classes, [0] * len(_CLASSES)
        self._last_buckets, self._buckets = self._buckets, [0] * len(_BUCKET_ENDS_MS)

    def distribution(self) -> str:
        """``putMessageDistributeTime``; "null" before the first minute is over, as RocketMQ."""
        if self._last_classes is None:
            return "null"
        pairs = zip(_CLASSES, self._last_classes, strict=True)
        return "".join(f"{name}:{count} " for name, count in pairs)

    def percentile_ms(self, share: float) -> float:
        """The time that this share of the sends stayed below, between the ends of its bucket."""
        rank = int(sum(self._last_buckets) * share)
        passed = start = 0
        for end, count in zip(_BUCKET_ENDS_MS, self._last_buckets, strict=False):
            if rank <= passed + count:
                return start + ((end - start) * (rank - passed) / count if count else 0.0)
            passed += count
            start = end
        return 0.0
