"""How idle the processors of this machine are, whoever uses them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["STATISTICS", "Idle", "read_statistics", "share"]

STATISTICS = Path("/proc/stat")
"""Of Linux; elsewhere nothing is said about the machine."""


def read_statistics(text: str) -> tuple[int, int]:
    """(idle, all) ticks of all processors, of the text of ``/proc/stat``; idle is who waits for a
    disk, too."""
    ticks = [int(field) for field in text.partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def share(first: tuple[int, int], last: tuple[int, int]) -> float:
    """Per cent of the ticks between two samples in which a processor was idle."""
    idle, every = last[0] - first[0], last[1] - first[1]
    return 100 * idle / every if every else 0.0


class Idle:
    """Asked now and then."""

    def __init__(self, statistics: Path) -> None:
        self._statistics = statistics
        self._last = self._read()

    def _read(self) -> tuple[int, int]:
        return (
            read_statistics(self._statistics.read_text()) if self._statistics.exists() else (0, 0)
        )

    def share(self) -> float:
        """Per cent since it was asked last; 0 where nobody knows."""
        before, self._last = self._last, self._read()
        return share(before, self._last)
