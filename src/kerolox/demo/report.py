"""What the demo shows: progress while it runs, and at the end the counts side by side."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_SECONDS_MIN = 2.0
"""Without a terminal a stage prints a line this often at most."""

TERMINAL_SECONDS_MIN = 0.1


class Progress:
    """Shows stages as they go on: one line that changes on a terminal, else a few lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._shown = 0.0
        self._width = 0

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        elapsed = time.monotonic() - self._started
        print(f"[{elapsed:5.1f} s] {text}", file=self._stream, flush=True)

    def show(self, text: str) -> None:
        """How far the current stage is; dropped when the last one was just shown."""
        now = time.monotonic()
        pause = TERMINAL_SECONDS_MIN if self._is_terminal else LINE_SECONDS_MIN
        if now - self._shown < pause:
            return
        self._shown = now
        if not self._is_terminal:
            self.say(f"  {text}")
            return
        line = f"[{now - self._started:5.1f} s]   {text}"
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def _clear(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


class Proof:
    """Counts that must be equal, with what each of them is."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._counts: list[tuple[str, int, int]] = []

    def add(self, what: str, count: int, *, expected: int | None = None) -> None:
        """A count; ``expected`` where it is not the number of records."""
        self._counts.append((what, count, self.expected if expected is None else expected))

    @property
    def is_whole(self) -> bool:
        """Every count is as expected: nothing was lost, nothing doubled."""
        return all(count == expected for _, count, expected in self._counts)

    def lines(self) -> list[str]:
        """A table; counts that differ are marked."""
        width = max(len(what) for what, _, _ in self._counts)
        return [
            f"{what:<{width}}  {count:>15,}"
            + ("" if count == expected else f"  DIFFERS from {expected:,}")
            for what, count, expected in self._counts
        ]
