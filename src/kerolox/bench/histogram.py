"""Times counted in buckets whose width grows with the time: exact to 3 %, of any number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

_STEPS = 32
"""Buckets for each doubling; below so many microseconds each has its own."""


class Histogram:
    """Times in nanoseconds, kept as microseconds.

    Attributes:
        count: how many.
        longest_ns: the longest one, exactly.
        total_ns: their sum.
    """

    def __init__(self) -> None:
        """Empty."""
        self.count = 0
        self.longest_ns = 0
        self.total_ns = 0
        self._buckets: Counter[int] = Counter()

    def add(self, time_ns: int) -> None:
        """Count a time; one below 0, as clocks of two machines give it, counts as 0."""
        time_ns = max(time_ns, 0)
        self.count += 1
        self.total_ns += time_ns
        self.longest_ns = max(self.longest_ns, time_ns)
        self._buckets[_bucket(time_ns // 1000)] += 1

    @property
    def mean_ms(self) -> float:
        """0 where there is none."""
        return self.total_ns / max(self.count, 1) / 1e6

    @property
    def longest_ms(self) -> float:
        """0 where there is none."""
        return self.longest_ns / 1e6

    def percentile_ms(self, part: float) -> float:
        """The time that so large a part of all does not exceed, 0 to 1: the upper end of its
        bucket, or the longest of all."""
        wanted, seen = part * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(_end_us(bucket) / 1e3, self.longest_ms)
        return self.longest_ms

    def doublings(self) -> Iterator[tuple[float, int]]:
        """(upper end in milliseconds, how many) of each doubling that has some, the shortest
        first."""
        for end_us, buckets in groupby(sorted(self._buckets), _doubling_end_us):
            yield end_us / 1e3, sum(self._buckets[each] for each in buckets)


def _bucket(time_us: int) -> int:
    shift = max(time_us.bit_length() - _STEPS.bit_length(), 0)
    return shift * _STEPS + (time_us >> shift)


def _end_us(bucket: int) -> int:
    """Times in the bucket are below it."""
    shift = max(bucket // _STEPS - 1, 0)
    return (bucket - shift * _STEPS + 1) << shift


def _doubling_end_us(bucket: int) -> int:
    return 1 << (_end_us(bucket) - 1).bit_length()
