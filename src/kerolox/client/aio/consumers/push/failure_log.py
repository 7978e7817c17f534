"""Log lines about listeners that raise: a traceback now and then, no flood.

A listener that fails for one message often fails for all. The traceback of each would say the same
and fill the disk.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from kerolox import clock
from kerolox.client.core.failures import FailureCallback, notify_failure

TRACEBACK_MS = 10_000
"""A failure of one kind, raised at one place, has its traceback at most once in so long."""

LINES_PER_SECOND_MAX = 10
"""Most lines of one kind in a second; the next one after it says how many were left out."""

KINDS_MAX = 256
"""Kinds that are told apart; more start anew."""


@dataclass(slots=True)
class _Kind:
    """What was logged of failures that are alike."""

    traceback_ms: int
    second_ms: int
    lines: int = 0
    left_out: int = 0


class FailureLog:
    """Logs failures of listeners."""

    def __init__(self, log: logging.Logger, now_ms: Callable[[], int] = clock.steady_ms) -> None:
        """``now_ms``: steady milliseconds."""
        self._log = log
        self._now_ms = now_ms
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def add(
        self, message_id: str, error: BaseException, on_failure: FailureCallback | None = None
    ) -> None:
        """A listener failed for a message; ``on_failure`` is told of each failure."""
        notify_failure(on_failure, f"listener failed for message {message_id}", error)
        now = self._now_ms()
        key = _place(error)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(now - TRACEBACK_MS, now)
        if now - kind.second_ms >= 1_000:
            kind.second_ms, kind.lines = now, 0
        if kind.lines == LINES_PER_SECOND_MAX:
            kind.left_out += 1
            return
        kind.lines += 1
        more = f" ({kind.left_out} more failures like this left out)" if kind.left_out else ""
        kind.left_out = 0
        if now - kind.traceback_ms >= TRACEBACK_MS:
            kind.traceback_ms = now
            self._log.warning("listener failed for message %s%s", message_id, more, exc_info=error)
            return
        said = " ".join("".join(traceback.format_exception_only(error)).split())
        self._log.warning("listener failed for message %s%s: %.500s", message_id, more, said)


def _place(error: BaseException) -> tuple[object, ...]:
    """What failures have in common that are alike: their class and where they were raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return (type(error),)
    return type(error), at.tb_frame.f_code, at.tb_lineno
