"""``kerolox up`` as a process of its own, on free ports, stopped when the demo ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from kerolox.errors import KeroloxError

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


class Servers:
    """A name server and a broker.

    Args:
        folder: their store is ``folder/broker``, their log ``folder/broker.log``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "broker.log"
        self.name_server = ""
        self.broker = ""

    def __enter__(self) -> Self:
        settings, ready = self._folder / "broker.conf", self._folder / "ready"
        settings.write_text("brokerIP1=127.0.0.1\n")
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kerolox.cli", "up", "--port", "0", "--namesrv-port", "0"]
        command += ["--data", str(self._folder / "broker"), "-c", str(settings)]
        command += ["--ready-file", str(ready)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise KeroloxError(f"kerolox up did not start; its log:\n{self.log.read_text()}")
            time.sleep(0.01)
        addresses = dict(line.split("=", 1) for line in ready.read_text().splitlines())
        self.name_server, self.broker = addresses["namesrv"], addresses["broker"]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop them; a process that does not stop is killed. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
