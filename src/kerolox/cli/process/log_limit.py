"""Lines of the same kind are logged a few times a second, however often their cause comes.

Whoever may connect can make a server write lines: bad frames, TLS, refused connections. A thousand
of them a second say no more than ten, fill the disk and cost the time of others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_SECOND_MAX = 10
"""Lines of one kind (one text before its values are filled in) within a second."""

KINDS_MAX = 1024
"""Kinds that are told apart at the same time; more start anew."""


class LogLimit(logging.Filter):
    """Lets at most :data:`LINES_PER_SECOND_MAX` lines of a kind through in a second; the next one
    after it says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, exempt: str = "") -> None:
        """``exempt``: a logger that limits its lines itself; ``clock``: seconds."""
        super().__init__()
        self._exempt = exempt
        self._clock = clock
        self._seen: dict[tuple[str, object], tuple[float, int]] = {}
        """Kind → start of its second, lines in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; called by ``logging``."""
        if record.name == self._exempt:
            return True
        kind = (record.name, record.msg)
        now = self._clock()
        since, count = self._seen.get(kind, (now, 0))
        if now - since >= 1:
            left_out = count - LINES_PER_SECOND_MAX
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more lines like this left out)"
                record.args = ()
            since, count = now, 0
        if kind not in self._seen and len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = (since, count + 1)
        return count < LINES_PER_SECOND_MAX
