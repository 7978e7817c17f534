"""Families as the text that Prometheus reads, in its own format and in that of OpenMetrics.

``prometheus_client`` has encoders for both, which want an object for each series and check and
escape the name of each of its labels: most of the CPU of a scrape of 10,000 series. Names here are
constants, and labels stay the same from one scrape to the next: their text is kept, and a scrape
writes numbers behind it. The tests compare it with what the encoders write.

The text is not compressed: the fastest gzip would add a quarter to the CPU of a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from kerolox.metrics.families import Family, Row

if TYPE_CHECKING:
    from prometheus_client.metrics_core import HistogramMetricFamily

    from kerolox.metrics.families import Families

LINES_PER_PART = 500
"""Of one part of a text: less than a millisecond of work."""
LABELS_KEPT_MAX = 50_000
"""Series whose labels are kept as text, of some 500 bytes each; those of others are written anew
each time."""
TEXTS_PER_AGE = 64
"""After so many texts all labels are written anew, so that those of series that went are gone."""
_PLAIN_MAX = 1e6
"""Below it Go writes numbers as Python does."""


class TextEncoder:
    """Writes snapshots as text, one after the other."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._kept: dict[tuple[Row, Row], _Labels] = {}
        """By the names of the labels and the values of those that all series have."""
        self._texts = 0

    def parts(self, families: Families, *, is_open: bool) -> Iterator[bytes]:
        """The text, in parts of ``LINES_PER_PART`` series at the most: each is little work.

        Args:
            families: not changed meanwhile.
            is_open: as OpenMetrics.
        """
        self._texts += 1
        if self._texts % TEXTS_PER_AGE == 0:
            self._kept.clear()
        for family in families.columns():
            if isinstance(family, Family):
                yield from self._series(family, families.shared, is_open=is_open)
            else:
                yield from _histogram(family, is_open=is_open)
        if is_open:
            yield b"# EOF\n"

    def _series(self, family: Family, shared: Row, *, is_open: bool) -> Iterator[bytes]:
        name = family.name
        is_total = family.kind == "counter" and not is_open
        head = name if is_total else name.removesuffix("_total")
        lines = [_head(head, family.text, family.kind, is_open=is_open)]
        labels = self._labels(family.names, shared)
        for start in range(0, len(family.rows), LINES_PER_PART):
            end = start + LINES_PER_PART
            pairs = zip(family.rows[start:end], family.values[start:end], strict=True)
            lines += [
                f"{name}{labels[row]}{value!r}\n"
                if -_PLAIN_MAX < value < _PLAIN_MAX
                else f"{name}{labels[row]}{_number(value)}\n"
                for row, value in pairs
            ]
            yield "".join(lines).encode()
            lines.clear()

    def _labels(self, names: Row, shared: Row) -> _Labels:
        labels = self._kept.get((names, shared))
        if labels is None:
            labels = self._kept[names, shared] = _Labels(names, shared, self._has_capacity)
        return labels

    def _has_capacity(self) -> bool:
        return sum(map(len, self._kept.values())) < LABELS_KEPT_MAX


class _Labels(dict[Row, str]):
    """Row → the labels of its series as text, in braces, with a space behind."""

    def __init__(self, names: Row, shared: Row, has_capacity: Callable[[], bool]) -> None:
        """Empty. ``has_capacity``: whether one more may be kept."""
        super().__init__()
        self._names, self._shared, self._has_capacity = names, shared, has_capacity

    def __missing__(self, row: Row) -> str:
        text = _labels_text(zip(self._names, (*self._shared, *row), strict=True))
        if self._has_capacity():
            self[row] = text
        return text


def content_type_of(accept: str) -> tuple[str, bool]:
    """The content type that ``accept``, a header, asks for, and whether that is OpenMetrics."""
    content_type = choose_encoder(accept)[1]
    return content_type, content_type.startswith("application/openmetrics-text")


def _histogram(family: HistogramMetricFamily, *, is_open: bool) -> Iterator[bytes]:
    lines = [_head(family.name, family.documentation, "histogram", is_open=is_open)]
    for start in range(0, len(family.samples), LINES_PER_PART):
        lines += [
            f"{each.name}{_labels_text(each.labels.items())}{_number(each.value)}\n"
            for each in family.samples[start : start + LINES_PER_PART]
        ]
        yield "".join(lines).encode()
        lines.clear()


def _head(name: str, text: str, kind: str, *, is_open: bool) -> str:
    # Only OpenMetrics has quotes escaped here.
    text = _escaped(text) if is_open else text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labels_text(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs]) + "} "


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
