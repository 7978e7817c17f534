"""The metrics of GET_BROKER_RUNTIME_INFO (28), from the kernel's counters.

The counters are sampled every :data:`SAMPLE_SECONDS`. Rates are given over the last 10, 60 and 600
seconds, as ``StoreStatsService`` gives them. While the broker runs for less long they are those
since the start (RocketMQ leaves the number out then).
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from kerolox.broker.services.writer import RecordWriter
from kerolox.kernel.metrics import Latencies, LatencyCounts, StoreMetrics

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
    """How long sends took in milliseconds, the way ``StoreStatsService`` tells it: thirteen classes
    for ``putMessageDistributeTime``, and finer buckets for ``putLatency99`` and ``putLatency999``,
    both of the last whole minute (:meth:`roll`).

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


SAMPLE_SECONDS = 1.0
MINUTE_MS = 60_000
SPANS_SECONDS = (10, 60, 600)
SAMPLES_MAX = int(max(SPANS_SECONDS) / SAMPLE_SECONDS) + 1


class _Sample(NamedTuple):
    at_ms: int
    put: int
    found: int
    miss: int
    got: int


class _Day(NamedTuple):
    """Totals at the start of a day."""

    day: int
    put: int
    got: int


class StoreStats:
    """Rates and totals of one broker. ``writer``: who puts what is not fast."""

    def __init__(
        self,
        store: StoreMetrics,
        now_ms: Callable[[], int],
        writer: RecordWriter | None = None,
    ) -> None:
        self._writer = writer
        self.put_times = PutTimes()
        self._slow_deliveries = Latencies()
        self._turned_ms = now_ms()
        self._store = store
        self._now_ms = now_ms
        self.boot_ms = now_ms()
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self._today = self._yesterday = _Day(_day_of(self.boot_ms), 0, 0)
        self.sample()

    def sample(self) -> None:
        """Remember the counters as they are now."""
        sample = self._read()
        self._samples.append(sample)
        day = _day_of(sample.at_ms)
        if day != self._today.day:
            self._yesterday, self._today = self._today, _Day(day, sample.put, sample.got)
        self._take_put_times()
        if sample.at_ms - self._turned_ms > MINUTE_MS:
            self._turned_ms = sample.at_ms
            self.put_times.roll()

    def send_times(self) -> LatencyCounts:
        """How long sends took, from their arrival to their answer, flush and slaves included."""
        self._take_put_times()
        return self.put_times.since_start.get()

    def delivery_times(self) -> LatencyCounts:
        """How long the first message of each read of a group had been stored."""
        counts, total_us = self._store.delivery_times()
        slow_counts, slow_us = self._slow_deliveries.get()
        return [a + b for a, b in zip(counts, slow_counts, strict=True)], total_us + slow_us

    def note_delivery(self, stored_ms: int) -> None:
        """A read that the kernel does not count found messages, the first stored then."""
        self._slow_deliveries.note(max(self._now_ms() - stored_ms, 0) * 1_000)

    def _take_put_times(self) -> None:
        self.put_times.add(self._store.drain_put_times())
        if self._writer is not None:
            self.put_times.add(self._writer.put_durations.drain())

    def runtime(self) -> dict[str, str]:
        """The part of the answer that comes from counters."""
        stats = self._store.stats()
        put_count, put_bytes = stats.get("put_count", 0), stats.get("put_bytes", 0)
        now = self._read()
        self._take_put_times()
        times = self.put_times
        values: dict[str, object] = {
            "bootTimestamp": self.boot_ms,
            "runtime": _duration_text(now.at_ms - self.boot_ms),
            "putMessageEntireTimeMax": times.longest_ms,
            "putMessageTimesTotal": max(put_count, 1),
            "putMessageFailedTimes": 0 if self._writer is None else self._writer.failed_count,
            "putMessageSizeTotal": put_bytes,
            "putMessageDistributeTime": times.distribution(),
            "putMessageAverageSize": put_bytes / max(put_count, 1),
            # RocketMQ has the metric and never sets it.
            "dispatchMaxBuffer": 0,
            "getMessageEntireTimeMax": stats.get("get_time_max_ms", 0),
            "putTps": self._rates(now, lambda s: s.put),
            "getFoundTps": self._rates(now, lambda s: s.found),
            "getMissTps": self._rates(now, lambda s: s.miss),
            "getTotalTps": self._rates(now, lambda s: s.found + s.miss),
            "getTransferedTps": self._rates(now, lambda s: s.got),
            "putLatency99": f"{times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{times.percentile_ms(0.999):.2f}",
            "pageCacheLockTimeMills": stats.get("file_wait_ms", 0),
            "dispatchBehindBytes": stats.get("dispatch_behind_bytes", 0),
            "msgPutTotalYesterdayMorning": self._yesterday.put,
            "msgPutTotalTodayMorning": self._today.put,
            "msgPutTotalTodayNow": now.put,
            "msgGetTotalYesterdayMorning": self._yesterday.got,
            "msgGetTotalTodayMorning": self._today.got,
            "msgGetTotalTodayNow": now.got,
        }
        return {name: str(value) for name, value in values.items()}

    def _read(self) -> _Sample:
        stats = self._store.stats()
        names = ("put_count", "get_found", "get_miss", "get_count")
        return _Sample(self._now_ms(), *(stats.get(name, 0) for name in names))

    def _rates(self, now: _Sample, value: Callable[[_Sample], int]) -> str:
        texts = []
        for span in SPANS_SECONDS:
            oldest = now.at_ms - span * 1000 - int(SAMPLE_SECONDS * 1000)
            before = next((s for s in self._samples if s.at_ms >= oldest), now)
            seconds = max((now.at_ms - before.at_ms) / 1000, 0.001)
            texts.append(str((value(now) - value(before)) / seconds))
        return " ".join(texts)


def _day_of(at_ms: int) -> int:
    local = time.localtime(at_ms / 1000)
    return local.tm_year * 1000 + local.tm_yday


def _duration_text(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, hours = seconds // 86_400, seconds // 3_600 % 24
    minutes = seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
