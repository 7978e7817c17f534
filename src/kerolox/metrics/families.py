"""Families of figures, bounded: what would be one more series is counted and left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

_Value = float | int
_Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


class Families:
    """What one look at a server finds.

    Args:
        shared: labels that all series have.
        series_max: most series of one family (``metricsOtelCardinalityLimit``).
    """

    def __init__(self, shared: Mapping[str, str], series_max: int) -> None:
        self._names = tuple(shared)
        self._values = tuple(shared.values())
        self._series_max = series_max
        self._families: dict[str, tuple[_Family, int]] = {}
        self.left_out = 0
        """Series beyond the limit."""

    def gauge(
        self, name: str, text: str, value: _Value, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a series of a gauge; the first one makes the family."""
        self._add(GaugeMetricFamily, name, text, value, labels or {})

    def counter(
        self, name: str, text: str, value: _Value, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a series of a counter, whose name ends in ``_total``."""
        self._add(CounterMetricFamily, name, text, value, labels or {})

    def histogram(
        self, name: str, text: str, ends: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram without labels of its own.

        Args:
            name: of the family.
            text: its help.
            ends: upper ends of the buckets; one more follows without end.
            counts: how many are in each bucket, the last one included.
            total: the sum of all values.
        """
        buckets: list[tuple[str, float]] = []
        seen = 0
        for end, count in zip((*map(repr, ends), "+Inf"), counts, strict=True):
            seen += count
            buckets.append((end, seen))
        family = HistogramMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, buckets, total)
        self._families[name] = family, 1

    def _add(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        value: _Value,
        labels: Mapping[str, str],
    ) -> None:
        family, count = self._families.get(name) or (None, 0)
        if count >= self._series_max:
            self.left_out += 1
            return
        if family is None or isinstance(family, HistogramMetricFamily):
            family = kind(name, text, labels=(*self._names, *labels))
        family.add_metric((*self._values, *labels.values()), value)
        self._families[name] = family, count + 1

    def collect(self) -> Iterable[Metric]:
        """All families, in the order in which they were made."""
        return [family for family, _ in self._families.values()]
