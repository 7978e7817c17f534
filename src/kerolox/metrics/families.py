"""Families of metrics, bounded: what would be one more series is counted and left out.

Each is kept as two columns, the values of the labels and the numbers. A broker has a series for
each queue of each group, and an object for each would be most of what a scrape costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Row = tuple[str, ...]
"""Values of the labels of one series, without those that all series have."""

_Value = float | int
_Kind = Literal["gauge", "counter"]


class Family:
    """A gauge or a counter.

    Attributes:
        name: of its series; that of a counter ends in ``_total``.
        text: its help.
        kind: its type.
        names: of the labels, those that all series have included.
        rows: of its series.
        values: of its series.
        left_out: series beyond the limit.
    """

    __slots__ = ("_series_max", "kind", "left_out", "name", "names", "rows", "text", "values")

    def __init__(self, name: str, text: str, kind: _Kind, names: Row, series_max: int) -> None:
        """Without series."""
        self.name, self.text, self.kind, self.names = name, text, kind, names
        self.rows: list[Row] = []
        self.values: list[_Value] = []
        self.left_out = 0
        self._series_max = series_max

    def add(self, row: Row, value: _Value) -> None:
        """Add a series."""
        self.extend((row,), (value,))

    def extend(self, rows: Sequence[Row], values: Sequence[_Value]) -> None:
        """Add series, of as many rows as values."""
        if (room := self._series_max - len(self.rows)) < len(rows):
            self.left_out += len(rows) - room
            rows, values = rows[:room], values[:room]
        self.rows.extend(rows)
        self.values.extend(values)


class Families:
    """What one snapshot of a server finds. ``shared``: labels that all series have. ``series_max``:
    most series of one family (``metricsOtelCardinalityLimit``).
    """

    def __init__(self, shared: Mapping[str, str], series_max: int) -> None:
        self.shared = tuple(shared.values())
        """Values of the labels that all series have."""
        self._names = tuple(shared)
        self._series_max = series_max
        self._families: dict[str, Family | HistogramMetricFamily] = {}
        self._histograms_left_out = 0

    def gauge(
        self, name: str, text: str, value: _Value, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a series of a gauge; the first one makes the family."""
        self.gauges(name, text, tuple(labels or ())).add(tuple((labels or {}).values()), value)

    def counter(
        self, name: str, text: str, value: _Value, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a series of a counter, whose name ends in ``_total``."""
        self.counters(name, text, tuple(labels or ())).add(tuple((labels or {}).values()), value)

    def gauges(self, name: str, text: str, labels: Row) -> Family:
        """The gauge of that name, which is made if it is not there; one without series is not
        told. ``labels``: names of those of its own."""
        return self._family(name, text, "gauge", labels)

    def counters(self, name: str, text: str, labels: Row) -> Family:
        """The same for a counter."""
        return self._family(name, text, "counter", labels)

    def _family(self, name: str, text: str, kind: _Kind, labels: Row) -> Family:
        family = self._families.get(name)
        if not isinstance(family, Family):
            family = Family(name, text, kind, (*self._names, *labels), self._series_max)
            self._families[name] = family
        return family

    def histogram(
        self,
        name: str,
        text: str,
        ends: Sequence[float],
        counts: Sequence[int],
        total: float,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a histogram; the first one of a name makes the family.

        Args:
            name: of the family.
            text: its help.
            ends: upper ends of the buckets; one more follows without end.
            counts: how many are in each bucket, the last one included.
            total: the sum of all values.
            labels: of its own.
        """
        family = self._families.get(name)
        if not isinstance(family, HistogramMetricFamily):
            family = HistogramMetricFamily(name, text, labels=(*self._names, *(labels or ())))
            self._families[name] = family
        if len(family.samples) >= self._series_max:
            self._histograms_left_out += 1
            return
        buckets: list[tuple[str, float]] = []
        seen = 0
        for end, count in zip((*map(repr, ends), "+Inf"), counts, strict=True):
            seen += count
            buckets.append((end, seen))
        family.add_metric((*self.shared, *(labels or {}).values()), buckets, total)

    @property
    def series(self) -> int:
        """How many there are, without those of histograms."""
        return sum(len(each.rows) for each in self._families.values() if isinstance(each, Family))

    @property
    def left_out(self) -> int:
        """Series beyond the limit."""
        families = (each for each in self._families.values() if isinstance(each, Family))
        return sum(each.left_out for each in families) + self._histograms_left_out

    def columns(self) -> list[Family | HistogramMetricFamily]:
        """All families that have series, in the order in which they were made."""
        return [
            each
            for each in self._families.values()
            if isinstance(each, HistogramMetricFamily) or each.rows
        ]

    def collect(self) -> Iterable[Metric]:
        """The same with an object for each series, made one family after the other."""
        for family in self.columns():
            yield family if isinstance(family, HistogramMetricFamily) else self._metric(family)

    def _metric(self, family: Family) -> Metric:
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(family.name, family.text, labels=family.names)
        for row, value in zip(family.rows, family.values, strict=True):
            metric.add_metric((*self.shared, *row), value)
        return metric
