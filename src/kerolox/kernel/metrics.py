"""Counters of the store and of what groups read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

GROUP_READS_MAX = 200_000
"""Queues of groups that ``group_stats`` and ``lag`` tell of; further ones are left out."""

PUT_TIME_MS_MAX = 10_001
"""Longer than the last limit of the statistics: stands for every longer time."""

LATENCY_ENDS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000,
)  # fmt: skip
"""Upper ends of the buckets; one more has none. A time belongs to the first bucket whose end is not
below it."""

RPC_ENDS_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
"""Those of ``rocketmq_rpc_latency``, as RocketMQ has them."""

LatencyCounts = tuple[list[int], int]
"""(the count of each bucket, the sum of all times in microseconds)."""

CallCounts = tuple[str, int, list[int], int]
"""(path of a call of gRPC, code of its answers, the count of each bucket of :data:`RPC_ENDS_MS`,
the sum of all times in microseconds)."""


class Latencies:
    """Counts of one kind. Of several threads one at a time may add to them."""

    def __init__(self, ends_ms: Sequence[int] = LATENCY_ENDS_MS) -> None:
        """``ends_ms``: upper ends of the buckets."""
        self._ends_ms = ends_ms
        self._counts = [0] * (len(ends_ms) + 1)
        self._total_us = 0

    def note(self, microseconds: int, count: int = 1) -> None:
        """Count so many that took so long each."""
        self._counts[bisect_left(self._ends_ms, microseconds / 1_000)] += count
        self._total_us += microseconds * count

    def add(self, counts: Sequence[int], total_us: int) -> None:
        """Count what another one of the same buckets has counted."""
        self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
        self._total_us += total_us

    def get(self) -> LatencyCounts:
        """All that was counted."""
        return list(self._counts), self._total_us


class PutDurations:
    """How long puts took."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def note(self, milliseconds: int, count: int = 1) -> None:
        """Count so many that took so long."""
        if count:
            self._counts[min(max(milliseconds, 0), PUT_TIME_MS_MAX)] += count

    def drain(self) -> list[tuple[int, int]]:
        """(milliseconds, puts that took so long) since the last call, ascending."""
        counts, self._counts = self._counts, Counter()
        return sorted(counts.items())


class StoreMetrics(Protocol):
    """Counters since ``open``."""

    def stats(self) -> dict[str, int]:
        """Counters since open: put_count, put_bytes, get_found, get_miss, get_count, get_bytes,
        get_time_max_ms (the longest read), flush_count, held_pulls (offsets that groups wait for,
        too), index_pending,
        dispatch_behind_bytes, uncommitted_bytes (in a transient store pool) and file_wait_ms
        (how long an append has waited for a file of the log by now; else 0)."""

    def drain_put_times(self) -> list[tuple[int, int]]:
        """(milliseconds, fast sends that took so long) since the last call, ascending; 10,001
        stands for whatever is longer.

        A send takes from its feed to its answer, the wait for a flush included; the sends of one
        feed take as long as the feed."""

    def flush_times(self) -> LatencyCounts:
        """Flushes of the log since open by :data:`LATENCY_ENDS_MS`. Zeros without
        ``latency_recorded``."""

    def delivery_times(self) -> LatencyCounts:
        """Reads of groups that found messages, fast or with ``read``, by how long the first of
        their messages had been stored; the same otherwise."""

    def call_times(self) -> list[CallCounts]:
        """Calls of gRPC that the kernel answered by itself since the store was made, from the chunk
        that brought them on, waits for a flush or a slave included. A receive that waited is none
        of them."""

    def topic_stats(self) -> list[tuple[str, int, int]]:
        """(topic, messages put, bytes put) since open, of the queues that there are: what deleted
        ones counted is gone with them."""

    def group_stats(self) -> list[tuple[str, str, int, int, int, int, int]]:
        """(group, topic, queue id, reads that found messages, messages, bytes, milliseconds that
        those reads took) since open."""

    def lag(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, queue id, bytes): how far behind the end of the log the last entry was
        that a group's last read of a queue examined (GROUP_GET_FALL_SIZE). Empty without
        ``disk_fall_recorded``."""
