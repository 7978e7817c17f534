"""Rates and totals, from counters and a clock that the test turns."""

from __future__ import annotations

import pytest

from kerolox.broker.metrics.store_stats import PutTimes, StoreStats


class CountingStore:
    def __init__(self) -> None:
        self.put_count = 0
        self.times: list[tuple[int, int]] = []

    def stats(self) -> dict[str, int]:
        return {"put_count": self.put_count, "put_bytes": self.put_count * 100}

    def drain_put_times(self) -> list[tuple[int, int]]:
        times, self.times = self.times, []
        return times


def test_rates_cover_10_60_and_600_seconds():
    now = [1_700_000_000_000]
    store = CountingStore()
    stats = StoreStats(store, lambda: now[0])
    for _ in range(70):
        now[0] += 10_000
        store.put_count += 1_000
        stats.sample()
    values = stats.runtime()
    assert [float(text) for text in values["putTps"].split(" ")] == [100.0, 100.0, 100.0]
    assert values["putMessageTimesTotal"] == "70000"
    assert values["putMessageAverageSize"] == "100.0"
    assert values["runtime"] == "[ 0 days, 0 hours, 11 minutes, 40 seconds ]"


def test_totals_begin_anew_each_day():
    now = [1_700_000_000_000]
    store = CountingStore()
    stats = StoreStats(store, lambda: now[0])
    store.put_count = 5
    now[0] += 86_400_000
    stats.sample()
    store.put_count = 9
    values = stats.runtime()
    assert values["msgPutTotalYesterdayMorning"] == "0"
    assert values["msgPutTotalTodayMorning"] == "5"
    assert values["msgPutTotalTodayNow"] == "9"


def test_the_times_of_sends_are_told_for_the_last_whole_minute():
    now = [1_700_000_000_000]
    store = CountingStore()
    stats = StoreStats(store, lambda: now[0])
    assert stats.runtime()["putMessageDistributeTime"] == "null"
    store.times = [(0, 5), (9, 1), (10, 2), (10_001, 1)]
    now[0] += 60_001
    stats.sample()
    store.times = [(999, 7)]
    values = stats.runtime()
    assert values["putMessageDistributeTime"] == (
        "[<=0ms]:5 [0~10ms]:1 [10~50ms]:2 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 "
        "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    assert values["putMessageEntireTimeMax"] == "10001"
    now[0] += 60_001
    stats.sample()
    assert "[500ms~1s]:7 " in stats.runtime()["putMessageDistributeTime"]


def test_a_latency_is_read_off_between_the_ends_of_its_bucket():
    times = PutTimes()
    times.add([(0, 90), (3, 5), (25, 5)])
    times.roll()
    assert times.percentile_ms(0.45) == 0.5
    assert times.percentile_ms(0.95) == 3.0
    assert times.percentile_ms(0.99) == pytest.approx(24 + 2 * 4 / 5)
    times.roll()
    assert times.percentile_ms(0.99) == 0.0
