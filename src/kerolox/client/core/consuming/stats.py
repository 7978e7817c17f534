"""Rates of one topic over the last minute, for operators (``ConsumeStatus``)."""

from __future__ import annotations

WINDOW_SECONDS = 60


class RateWindow:
    """Counts and milliseconds per second, for the last ``WINDOW_SECONDS`` seconds."""

    def __init__(self) -> None:
        self._second = [0] * WINDOW_SECONDS
        self._count = [0] * WINDOW_SECONDS
        self._elapsed_ms = [0] * WINDOW_SECONDS
        self.total = 0

    def add(self, now_ms: int, count: int, elapsed_ms: int = 0) -> None:
        """Something happened ``count`` times and took ``elapsed_ms`` in all."""
        second = now_ms // 1000
        slot = second % WINDOW_SECONDS
        if self._second[slot] != second:
            self._second[slot], self._count[slot], self._elapsed_ms[slot] = second, 0, 0
        self._count[slot] += count
        self._elapsed_ms[slot] += elapsed_ms
        self.total += count

    def per_second(self, now_ms: int) -> float:
        """Average count per second over the window."""
        return self._sums(now_ms)[0] / WINDOW_SECONDS

    def mean_ms(self, now_ms: int) -> float:
        """Average milliseconds of one, over the window; 0 when nothing happened."""
        count, elapsed_ms = self._sums(now_ms)
        return elapsed_ms / count if count else 0.0

    def _sums(self, now_ms: int) -> tuple[int, int]:
        oldest = now_ms // 1000 - WINDOW_SECONDS
        recent = [slot for slot in range(WINDOW_SECONDS) if self._second[slot] > oldest]
        count = sum(self._count[slot] for slot in recent)
        return count, sum(self._elapsed_ms[slot] for slot in recent)


class TopicStats:
    """The statistics of one topic in a consumer."""

    def __init__(self) -> None:
        self.pulls = RateWindow()
        self.pulled = RateWindow()
        self.consumed = RateWindow()
        self.failed = RateWindow()

    def consume_status(self, now_ms: int) -> dict[str, float | int]:
        """The members of ``ConsumeStatus``."""
        return {
            "consumeFailedMsgs": self.failed.total,
            "consumeFailedTPS": self.failed.per_second(now_ms),
            "consumeOKTPS": self.consumed.per_second(now_ms),
            "consumeRT": self.consumed.mean_ms(now_ms),
            "pullRT": self.pulls.mean_ms(now_ms),
            "pullTPS": self.pulled.per_second(now_ms),
        }
