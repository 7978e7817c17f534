"""What a query's filters say about where matching messages can be (``pushFilters``).

It only leaves out what can't match: Spark evaluates all filters again on the rows that are read, so
whatever is taken from them here need not be exact, but must never be too little. Times are widened
by ``CLOCK_MS``, since a broker's clock may have been set back between two messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from kerolox.client.core.namespaces import without_namespace
from kerolox.filter.tags import parse_tags
from kerolox.spark.option_values import WHOLE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kerolox.message import MessageQueue
    from kerolox.spark.positions.offsets import Offsets

CLOCK_MS = 60_000
"""Store times of a queue fall by no more than this."""

_NAMES = ("topic", "brokerName", "queueId", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """Bounds of all that can match."""

    values: Mapping[str, frozenset[object]]
    """Of topic, brokerName, queueId and tags the only ones; those missing may be any."""
    first_offset: int = 0
    last_offset: int = WHOLE_MAX
    since_ms: int = 0
    """Stored then or later."""
    until_ms: int = WHOLE_MAX
    """Stored then or earlier."""

    def allows(self, queue: MessageQueue, namespace: str) -> bool:
        """Whether messages of a queue can match."""
        topic = without_namespace(namespace, queue.topic)
        found = {"topic": topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        return all(
            value in self.values[name] for name, value in found.items() if name in self.values
        )

    def cut(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Start and end of each queue without the offsets that can't match."""
        behind = min(self.last_offset, WHOLE_MAX - 1) + 1
        ends = {queue: min(offset, behind) for queue, offset in end.items()}
        starts = {
            queue: min(max(offset, self.first_offset), max(ends[queue], offset))
            for queue, offset in start.items()
        }
        return starts, {queue: max(offset, starts[queue]) for queue, offset in ends.items()}

    def tag_expression(self, tags: tuple[str, ...]) -> str | None:
        """The tags to ask for, of ``tags`` (empty: all); None: as before; empty: no message."""
        wanted = self.values.get("tags")
        if wanted is None:
            return None
        texts = sorted(str(each) for each in wanted)
        if not all(_is_plain_tag(each) for each in texts):
            return None
        return " || ".join(each for each in texts if not tags or each in tags)


def pushed_of(filters: Iterable[object]) -> Pushed:
    """What filters say, which all must hold; those that say nothing of use are left out."""
    pushed = Pushed(values={})
    for each in filters:
        column: tuple[str, ...] = getattr(each, "attribute", ())
        if len(column) == 1:
            kind, value = type(each).__name__, getattr(each, "value", None)
            pushed = _with(pushed, kind, column[0], value)
    return pushed


def _with(pushed: Pushed, kind: str, column: str, value: object) -> Pushed:
    if kind in ("EqualTo", "EqualNullSafe", "In") and column in _NAMES:
        given = list(value) if isinstance(value, (list, tuple)) else [value]
        known = [each for each in given if each is not None]
        if not all(isinstance(each, (str, int)) for each in known) or (kind != "In" and not known):
            return pushed
        found = frozenset(known)
        values = dict(pushed.values)
        values[column] = values.get(column, found) & found
        return replace(pushed, values=values)
    if column == "queueOffset" and type(value) is int:
        low, high = _range_of(kind, value, value)
        return replace(
            pushed,
            first_offset=max(pushed.first_offset, low),
            last_offset=min(pushed.last_offset, high),
        )
    if column == "storeTimestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        ms = value.timestamp() * 1000
        low, high = _range_of(kind, math.floor(ms) - CLOCK_MS, math.ceil(ms) + CLOCK_MS)
        return replace(
            pushed, since_ms=max(pushed.since_ms, low), until_ms=min(pushed.until_ms, high)
        )
    return pushed


def _range_of(kind: str, low: int, high: int) -> tuple[int, int]:
    """The values that a comparison allows: first and last."""
    if kind in ("EqualTo", "EqualNullSafe"):
        return low, high
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return low, WHOLE_MAX
    if kind in ("LessThan", "LessThanOrEqual"):
        return 0, high
    return 0, WHOLE_MAX


def _is_plain_tag(tag: str) -> bool:
    """Whether the tag alone, as an expression, means itself."""
    try:
        return parse_tags(tag) == (tag,)
    except ValueError:
        return False
