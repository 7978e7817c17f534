"""Which halves of a broker are committed where, from the ranges of the attempts that count."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.spark.sink.transactions.messages import HalfRange


class Segment(NamedTuple):
    """Offsets ``[start, stop)`` of a half queue in which the halves of these attempts count."""

    start: int
    stop: int
    attempts: tuple[str, ...]


def segments_of(ranges: Iterable[tuple[str, HalfRange]], begin: int, end: int) -> list[Segment]:
    """Cut ``[begin, end)`` so that in each piece the same attempts count.

    A half of an attempt counts within the attempt's own range alone, and not where it holds a row
    a second time: a request that was sent again may be stored late, in the midst of others' halves.
    """
    changes: dict[int, list[tuple[str, int]]] = {begin: [], end: []}
    for attempt, each in ranges:
        for start, stop in _pieces(each):
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                changes.setdefault(start, []).append((attempt, 1))
                changes.setdefault(stop, []).append((attempt, -1))
    segments: list[Segment] = []
    counting: dict[str, int] = {}
    previous = begin
    for place in sorted(changes):
        if place > previous:
            attempts = tuple(sorted(name for name, count in counting.items() if count > 0))
            segments.append(Segment(previous, place, attempts))
            previous = place
        for attempt, change in changes[place]:
            counting[attempt] = counting.get(attempt, 0) + change
    return segments


def _pieces(each: HalfRange) -> Iterable[tuple[int, int]]:
    start = each.low
    for offset in sorted({at for at in each.excluded if each.low <= at < each.high}):
        yield start, offset
        start = offset + 1
    yield start, each.high
