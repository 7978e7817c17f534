"""What the threads of a store have in common: start, wake-up, stop."""

from __future__ import annotations

import threading

PAGE_BYTES = 4_096
STOP_SECONDS_MAX = 5.0
"""How long a stop waits for a thread that is inside a flush."""


class StoreThread:
    """A thread that is started and stopped by its owner; ``run_once`` does the work."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Ask the thread to end and wait, at most ``STOP_SECONDS_MAX``; False: it still runs."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Let the thread look for work now."""
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(self.pause_seconds())
            self._wake.clear()
            if not self._is_stopping:
                self.run_once()

    def pause_seconds(self) -> float:
        """How long to wait for a wake-up."""
        raise NotImplementedError

    def run_once(self) -> None:
        """Do what is to be done now."""
        raise NotImplementedError
