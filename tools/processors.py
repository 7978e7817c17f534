"""What the processors of this machine do during a run: whether it waits for work or for time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.idle import STATISTICS, read_statistics, share

__all__ = ["Processors", "wait_used"]

SAMPLE_SECONDS = 60.0


def wait_used(process: subprocess.Popen[Any]) -> float:
    """Wait for a process; the seconds of a processor that it used, with all that it waited for."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


class Processors:
    """The idle share of all processors since it was made, whoever uses them."""

    def __init__(self, statistics: Path = STATISTICS) -> None:
        """Begin to sample, in a thread that ends with the process."""
        self._statistics = statistics
        self._samples: list[tuple[int, int]] = []
        self._end = threading.Event()
        if statistics.exists():
            self._sample()
            threading.Thread(target=self._watch, daemon=True).start()

    def _sample(self) -> None:
        self._samples.append(read_statistics(self._statistics.read_text()))

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self._sample()

    def line(self) -> str:
        """The idle share of the time until now, and of each minute; empty where nobody knows."""
        self._end.set()
        if not self._samples:
            return ""
        self._sample()
        pairs = zip(self._samples, self._samples[1:], strict=False)
        minutes = " ".join(f"{share(first, last):.0f}" for first, last in pairs)
        whole = share(self._samples[0], self._samples[-1])
        return f"processors idle: {whole:.0f} %; by minute: {minutes}"
