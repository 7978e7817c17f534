"""Memory of Spark's processes: the JVM, the Python of the driver, and the workers."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

SAMPLE_SECONDS = 0.2


class Memory:
    """The most that a process and each one below it has had, while the context lasts.

    Args:
        pid: of a driver, or of its JVM.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[int, tuple[str, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def as_json(self) -> dict[str, object]:
        """In MiB: of the JVM, of the driver, and of the workers, the largest first."""
        kinds: dict[str, list[int]] = {kind: [] for kind in ("jvm", "driver", "workers")}
        for kind, peak in self._peaks.values():
            kinds[kind].append(peak)
        workers = sorted(kinds["workers"], reverse=True)
        jvm, driver = max(kinds["jvm"], default=0), max(kinds["driver"], default=0)
        return {"jvm_mib": jvm, "driver_mib": driver, "worker_mib": workers[:6]}

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        pending = [self._pid]
        while pending:
            pid = pending.pop()
            place = Path("/proc", str(pid))
            with contextlib.suppress(OSError, KeyError):
                for task in (place / "task").iterdir():
                    pending += map(int, (task / "children").read_text().split())
                command = (place / "cmdline").read_bytes()
                lines = (place / "status").read_text().splitlines()
                status = dict(line.split(":", 1) for line in lines)
                kind = "driver" if pid == self._pid else "workers"
                kind = "jvm" if b"java" in command.split(b"\0")[0] else kind
                self._peaks[pid] = kind, int(status["VmHWM"].split()[0]) // 1024
