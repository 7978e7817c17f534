"""What a check found: sentences with file and position, bounded however broken a store is."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field

KEPT_MAX = 1_000
"""Findings that are kept; more are only counted."""
NOTES_MAX = 200
DAMAGES_MAX = 10_000
"""Damaged ranges of the log that are remembered."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be."""

    part: str
    """log, queue, extension, index, checkpoint, epochs or config."""
    path: str
    position: int
    """Byte of the file; -1 when it is the file as a whole."""
    text: str

    def __str__(self) -> str:
        where = self.path if self.position < 0 else f"{self.path}: byte {self.position}"
        return f"{where}: {self.text}"


@dataclass
class Findings:
    """The findings of one check. ``notes`` are worth telling and no findings."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Findings by part, the ones not kept too."""
    notes: list[str] = field(default_factory=list)
    damages: list[tuple[int, int]] = field(default_factory=list)
    """Physical [start, end) of the log that hold no record, ascending: what elsewhere names a
    record in them is no finding of its own."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def add(self, part: str, path: str, position: int, text: str) -> None:
        """Add a finding."""
        self.counts[part] += 1
        if len(self.kept) < KEPT_MAX:
            self.kept.append(Finding(part, path, position, text))

    def note(self, text: str) -> None:
        """Add a note."""
        if len(self.notes) < NOTES_MAX:
            self.notes.append(text)

    def damage(self, start: int, end: int) -> None:
        """Remember that the log holds no record in [start, end)."""
        if len(self.damages) < DAMAGES_MAX:
            self.damages.append((start, end))

    def is_damaged(self, offset: int) -> bool:
        """``offset`` lies where the log holds no record, and that was found already."""
        at = bisect.bisect_right(self.damages, (offset, 1 << 63))
        return at > 0 and offset < self.damages[at - 1][1]
