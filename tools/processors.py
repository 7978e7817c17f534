"""What the processors of this machine do during a run: whether it waits for work or for time."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

__all__ = ["Processors", "wait_used"]

SAMPLE_SECONDS = 60.0
STATISTICS = Path("/proc/stat")
"""Of Linux; elsewhere nothing is said about the machine."""


def wait_used(process: subprocess.Popen[Any]) -> float:
    """Wait for a process; the seconds of a processor that it used, with all that it waited for."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def read_statistics(text: str) -> tuple[int, int]:
    """(idle, all) ticks of all processors, of the text of ``/proc/stat``; idle is who waits for a
    disk, too."""
    ticks = [int(field) for field in text.partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


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


def share(first: tuple[int, int], last: tuple[int, int]) -> float:
    """Per cent of the ticks between two samples in which a processor was idle."""
    idle, every = last[0] - first[0], last[1] - first[1]
    return 100 * idle / every if every else 0.0
