"""Token buckets: so much at once, and so much a second after it.

What a bucket is for, an address for instance, is chosen by whoever asks, so their number has a
bound. The table has two halves: when the young one is full it becomes the old one, and what was in
that is forgotten. Who is forgotten has a full bucket again; it takes more than half of
:data:`NAMES_MAX` others to bring that about.
"""

from __future__ import annotations

import time
from collections.abc import Callable

NAMES_MAX = 65_536
"""Buckets of one table."""


class Bucket:
    """One bucket; full at first."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = burst
        self._at = now

    def left(self, rate: float, burst: float, now: float) -> float:
        """How many tokens there are."""
        self._tokens = min(self._tokens + max(now - self._at, 0.0) * rate, burst)
        self._at = now
        return self._tokens

    def take(self, count: float, rate: float, burst: float, now: float) -> bool:
        """Whether there are so many tokens; if so they are gone."""
        if self.left(rate, burst, now) < count:
            return False
        self._tokens -= count
        return True


class Rates:
    """Buckets by name, all of the same rate and burst."""

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        names_max: int = NAMES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        rate: tokens a second.
        burst: tokens that a bucket holds.
        names_max: buckets that are kept.
        clock: seconds; tests turn one by hand.
        """
        self.rate = rate
        self.burst = burst
        self._half_max = max(names_max // 2, 1)
        self._clock = clock
        self._young: dict[str, Bucket] = {}
        self._old: dict[str, Bucket] = {}

    def __len__(self) -> int:
        """Buckets that are kept."""
        return len(self._young) + len(self._old)

    def take(self, name: str, count: float = 1) -> bool:
        """Take tokens out of a bucket; False, and nothing is taken, when there are too few."""
        now = self._clock()
        return self._bucket(name, now).take(count, self.rate, self.burst, now)

    def left(self, name: str) -> int:
        """How many whole tokens a bucket has."""
        now = self._clock()
        return int(self._bucket(name, now).left(self.rate, self.burst, now))

    def _bucket(self, name: str, now: float) -> Bucket:
        bucket = self._young.get(name)
        if bucket is None:
            bucket = self._old.pop(name, None) or Bucket(self.burst, now)
            if len(self._young) >= self._half_max:
                self._old, self._young = self._young, {}
            self._young[name] = bucket
        return bucket
