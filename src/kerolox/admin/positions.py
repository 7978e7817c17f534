"""Places in the queues of a topic, and how people write them.

``beginning`` and ``end``; ``-100``: a hundred messages before the end of each queue; ``2h`` and
other durations: so long ago; a time; a plain number: that offset of each queue.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from kerolox.clock import now_ms
from kerolox.errors import ClientError
from kerolox.text import looks_like_seconds, milliseconds_of, printable, seconds_text

__all__ = ["FIRST", "LAST", "Position", "PositionKind", "duration_ms", "position_of"]

OFFSET_DIGITS_MAX = 12
"""A number of more digits is a time in milliseconds since 1970."""

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class PositionKind(Enum):
    """The origin from which a position counts."""

    BEGINNING = "beginning"
    END = "end"
    BACK = "messages before the end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in each queue of a topic."""

    kind: PositionKind
    number: int = 0
    """Messages, an offset, or milliseconds since the epoch."""

    async def offset(
        self,
        bounds: tuple[int, int],
        by_time: Callable[[int], Awaitable[int]],
    ) -> int:
        """The offset in one queue.

        Args:
            bounds: of its first message, and of the one that comes next.
            by_time: gives the offset of the first message from a time in milliseconds on.

        Raises:
            ClientError: an offset behind the end looks like seconds since 1970.
        """
        first, end = bounds
        match self.kind:
            case PositionKind.BEGINNING:
                return first
            case PositionKind.END:
                return end
            case PositionKind.BACK:
                return max(first, end - self.number)
            case PositionKind.OFFSET:
                if self.number > end and looks_like_seconds(self.number):
                    raise ClientError(
                        f"offset {self.number} is behind the end of the queue, {end}; "
                        f"{seconds_text(self.number)}"
                    )
                return min(max(self.number, first), end)
            case PositionKind.TIME:
                return min(max(await by_time(self.number), first), end)


FIRST, LAST = Position(PositionKind.BEGINNING), Position(PositionKind.END)


def duration_ms(text: str) -> int:
    """Milliseconds of ``90s``, ``15m``, ``2h``, ``7d``, ``250ms``.

    Raises:
        ValueError: it is no duration.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{printable(text)!r} is no duration; write 90s, 15m, 2h or 7d")
    return int(float(found[1]) * _UNIT_MS[found[2]])


def position_of(text: str, *, at_ms: int | None = None) -> Position:
    """What a text means. ``at_ms``: the time from which durations go back; None: now.

    Raises:
        ValueError: nothing; the text says what would mean something.
    """
    if text in ("beginning", "start", "earliest"):
        return FIRST
    if text in ("end", "now", "latest"):
        return LAST
    if re.fullmatch(rf"-[0-9]{{1,{OFFSET_DIGITS_MAX}}}", text):
        return Position(PositionKind.BACK, int(text[1:]))
    if re.fullmatch(rf"[0-9]{{1,{OFFSET_DIGITS_MAX}}}", text):
        return Position(PositionKind.OFFSET, int(text))
    if _DURATION.fullmatch(text):
        begin = now_ms() if at_ms is None else at_ms
        return Position(PositionKind.TIME, max(begin - duration_ms(text), 0))
    try:
        return Position(PositionKind.TIME, milliseconds_of(text))
    except ValueError:
        raise ValueError(
            f"{printable(text)!r} is no position; write beginning, end, -100 (messages before the "
            "end), 2h (ago), 2026-01-31T12:00, milliseconds since 1970, or an offset"
        ) from None
