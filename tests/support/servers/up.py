"""A real ``kerolox up`` process for tests: free ports, ready by file, its log when it dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.eventually import SECONDS_MAX
from tests.support.servers import forked
from tests.support.servers.counted import COUNTED_VARIABLE
from tests.support.servers.settings import write_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["Up", "deaf_address", "free_port"]

PORTS_APART = 3
"""From the VIP port of the one to the HA port of the other."""


_GIVEN: deque[int] = deque(maxlen=64)
"""Ports of this process that may not be bound yet: the next one has to be apart from them."""


def free_port() -> int:
    """A port P so that P, P-2 (VIP) and P+1 (HA) are free right now, and apart from those that
    were given to others before.

    Below the range from which the system takes the ports of outgoing connections: one of those
    could be in the way when a server starts again on its port. Each of the processes that run
    tests beside each other has a part of that range to itself.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = 17_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    begin = 15_000 + width * worker
    while True:
        port = random.randrange(begin + PORTS_APART, begin + width)
        if any(abs(port - other) <= PORTS_APART for other in _GIVEN):
            continue
        try:
            for near in (port, port - 2, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", near))
        except OSError:
            continue
        _GIVEN.append(port)
        return port


@contextlib.contextmanager
def deaf_address() -> Iterator[str]:
    """An address at which nobody listens, and nobody else can as long as the context lasts."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{deaf.getsockname()[1]}"


class Up:
    """Name server and broker in one process, with a data folder that outlives it.

    Args:
        data: folder for the store, the configuration and the log.
        settings: lines of broker.conf.
        kernel: value of ``KEROLOX_KERNEL``; None leaves the choice to Kerolox.
        environment: more variables for the process, for example those of ``Faults``.
        grpc: listen for clients of RocketMQ 5, too.
        counted: have the process count its work, see :mod:`tests.support.servers.counted`.
    """

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, object] | None = None,
        kernel: str | None = None,
        environment: Mapping[str, str] | None = None,
        counted: bool = False,
        grpc: bool = False,
    ) -> None:
        self.data = data
        self.kernel = kernel
        self.environment = dict(environment or {})
        self.settings = dict(settings or {})
        self.port, self.namesrv_port = free_port(), free_port()
        self.grpc_port = free_port() if grpc else 0
        self.process: subprocess.Popen[bytes] | None = None
        self.counted = f"kerolox-counted-{self.port}" if counted else None
        """Name of the socket that tells what was counted."""

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc(self) -> str:
        """Where clients of RocketMQ 5 connect."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.data / "up.log"

    def start(self, *, keep_settings: bool = False) -> Self:
        """Start and wait until it answers; ``keep_settings``: the file is as it was left."""
        self.data.mkdir(parents=True, exist_ok=True)
        conf, ready = self.data / "broker.conf", self.data / "ready"
        if not keep_settings:
            write_settings(conf, **self.settings)
        ready.unlink(missing_ok=True)
        environment = {**os.environ, **self.environment}
        if self.kernel is not None:
            environment["KEROLOX_KERNEL"] = self.kernel
        module = "kerolox.cli"
        if self.counted is not None:
            module, environment[COUNTED_VARIABLE] = "tests.support.servers.counted", self.counted
        command = ["up", "--port", str(self.port), "--namesrv-port", str(self.namesrv_port)]
        command += ["--data", str(self.data / "store"), "-c", str(conf)]
        command += ["--grpc-port", str(self.grpc_port)]
        command += ["--ready-file", str(ready)]
        with self.log.open("ab") as log:
            self.process = forked.start(
                module, command, environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + SECONDS_MAX
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"kerolox up is not ready:\n{self.log.read_text()}")
            time.sleep(0.005)
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=SECONDS_MAX)

    def stop(self) -> None:
        """SIGTERM and wait. The exit status must be 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=SECONDS_MAX)
        assert status == 0, f"exit status {status}:\n{self.log.read_text()}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
