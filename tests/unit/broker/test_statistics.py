"""Rates and totals, from counters and a clock that the test turns."""

from __future__ import annotations

from kerolox.broker.statistics import Statistics


class CountingStore:
    def __init__(self) -> None:
        self.put_count = 0

    def stats(self) -> dict[str, int]:
        return {"put_count": self.put_count, "put_bytes": self.put_count * 100}


def test_rates_cover_10_60_and_600_seconds():
    now = [1_700_000_000_000]
    store = CountingStore()
    statistics = Statistics(store, lambda: now[0])
    for _ in range(70):
        now[0] += 10_000
        store.put_count += 1_000
        statistics.sample()
    values = statistics.runtime()
    assert [float(text) for text in values["putTps"].split(" ")] == [100.0, 100.0, 100.0]
    assert values["putMessageTimesTotal"] == "70000"
    assert values["putMessageAverageSize"] == "100.0"
    assert values["runtime"] == "[ 0 days, 0 hours, 11 minutes, 40 seconds ]"


def test_totals_begin_anew_each_day():
    now = [1_700_000_000_000]
    store = CountingStore()
    statistics = Statistics(store, lambda: now[0])
    store.put_count = 5
    now[0] += 86_400_000
    statistics.sample()
    store.put_count = 9
    values = statistics.runtime()
    assert values["msgPutTotalYesterdayMorning"] == "0"
    assert values["msgPutTotalTodayMorning"] == "5"
    assert values["msgPutTotalTodayNow"] == "9"
