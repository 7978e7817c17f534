"""Brokers of a pair in processes of their own: ours and Java's with one face, on one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tests.support.eventually import SECONDS_MAX
from tests.support.programs import build_broker_53, build_java
from tests.support.servers import forked
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.settings import write_settings
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Self

__all__ = [
    "KINDS",
    "ControllerProcess",
    "Java53Member",
    "JavaMember",
    "Member",
    "NameServerProcess",
    "OurMember",
]


def _started(
    command: list[str], ready: Path, log: Path, prefix: tuple[str, ...], kernel: str | None
) -> subprocess.Popen[Any]:
    """A server of our command line that answers."""
    ready.unlink(missing_ok=True)
    environment = dict(os.environ)
    if kernel is not None:
        environment["KEROLOX_KERNEL"] = kernel
    command = [*command, "--ready-file", str(ready)]
    with log.open("ab") as output:
        files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        if prefix:
            whole = [*prefix, sys.executable, "-m", "kerolox.cli", *command]
            process: subprocess.Popen[Any] = subprocess.Popen(whole, env=environment, **files)
        else:
            process = forked.start("kerolox.cli", command, environment, **files)
    deadline = time.monotonic() + SECONDS_MAX
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"not ready:\n{log.read_text()}")
        time.sleep(0.005)
    return process


class _OurServer:
    """A server of ours that is no broker; a context manager."""

    folder: Path
    prefix: tuple[str, ...]
    _process: subprocess.Popen[Any]

    def _start(self, *command: str) -> Self:
        ready, log = self.folder / "ready", self.folder / "log"
        command = (*command, "--data", str(self.folder))
        self._process = _started([*command], ready, log, self.prefix, None)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(SECONDS_MAX)


class NameServerProcess(_OurServer):
    """A name server of ours."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", prefix: tuple[str, ...] = ()
    ) -> None:
        self.folder, self.host, self.prefix = folder, host, prefix
        self.port = free_port()
        self.address = f"{host}:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._start("namesrv", "--port", str(self.port), "--host", self.host)


class ControllerProcess(_OurServer):
    """A controller of ours.

    Args:
        folder: for its files.
        settings: lines of its settings.
        host: where it listens.
        prefix: command that the process is started by.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        *,
        host: str,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.folder, self.settings = folder, settings
        self.host, self.prefix = host, prefix

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = self.folder / "controller.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return self._start("controller", "--host", self.host, "-c", str(conf))


class Member(ABC):
    """A broker in a process of its own, on a folder that outlives it.

    Args:
        folder: for the store, the settings and the log.
        namesrv: address of the name server.
        settings: lines of broker.conf, of either kind.
        port: 0: a free one. The port for slaves is the one behind it.
        host: where it listens and is reached.
        prefix: command that the process is started by.
        kernel: of ours; None: the one that Kerolox chooses.
    """

    kind = ""

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        settings: Mapping[str, object],
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        kernel: str | None = None,
    ) -> None:
        self.folder, self.host, self.prefix, self.kernel = folder, host, prefix, kernel
        self.port = port or free_port()
        self.settings = {
            "brokerName": "broker-a",
            "brokerIP1": host,
            "brokerIP2": host,
            "namesrvAddr": namesrv,
            **settings,
        }

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{self.host}:{self.port}"

    @property
    def store(self) -> Path:
        """Its storePathRootDir."""
        return self.folder / "store"

    @property
    @abstractmethod
    def process(self) -> subprocess.Popen[Any]:
        """The last one that was started."""

    @abstractmethod
    def start(self) -> Self:
        """Start and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """SIGTERM, and wait until it ended well."""

    @property
    @abstractmethod
    def log(self) -> str:
        """What it printed."""

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait(SECONDS_MAX)

    def pause(self) -> None:
        """SIGSTOP: it stands still, and its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Have no process left, whatever state it is in. Idempotent."""
        if self.is_alive():
            self.kill()

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether its process runs."""


class OurMember(Member):
    """A broker of ours."""

    kind = "ours"
    keeps_role = True
    """What a promotion made of it outlives a restart; else its settings count again, as Java's."""
    _process: subprocess.Popen[Any] | None = None

    @property
    def process(self) -> subprocess.Popen[Any]:
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = write_settings(self.folder / "broker.conf", **self.settings)
        command = ["broker", "--port", str(self.port), "--host", self.host]
        command += ["--data", str(self.store), "-c", str(conf)]
        command += [] if self.keeps_role else ["--role-of-settings"]
        ready, log = self.folder / "ready", self.folder / "log"
        self._process = _started(command, ready, log, self.prefix, self.kernel)
        return self

    def stop(self) -> None:
        self.process.terminate()
        status = self.process.wait(SECONDS_MAX)
        assert status == 0, f"exit status {status}:\n{self.log}"

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


class JavaMember(Member):
    """A Java broker."""

    kind = "java"
    built = staticmethod(build_java)
    """Gives the folder with its libraries."""
    _peer: JavaPeer | None = None

    @property
    def process(self) -> subprocess.Popen[Any]:
        assert self._peer is not None, "it was never started"
        return self._peer.broker

    @property
    def log(self) -> str:
        return (self.folder / "broker.log").read_text()

    def start(self) -> Self:
        self._drop_empty_files()
        lines = tuple(f"{key}={value}" for key, value in self.settings.items())
        peer = JavaPeer(
            self.folder,
            settings=lines,
            with_namesrv=False,
            prefix=self.prefix,
            built=self.built,
        )
        peer.port = self.port
        peer.__enter__()
        self._peer = peer
        return self

    def _drop_empty_files(self) -> None:
        """What an operator has to do after a kill: Java's makes a file and its size in two steps,
        and refuses to start when it was killed between them."""
        for path in self.store.rglob("[0-9]*"):
            if path.is_file() and not path.stat().st_size:
                path.unlink()

    def stop(self) -> None:
        assert self._peer is not None, "it was never started"
        self._peer.__exit__()
        self._peer = None

    def kill(self) -> None:
        super().kill()
        self._peer = None

    def is_alive(self) -> bool:
        return self._peer is not None


class Java53Member(JavaMember):
    """A broker of RocketMQ 5.3.3."""

    built = staticmethod(build_broker_53)


KINDS: dict[str, type[Member]] = {"ours": OurMember, "java": JavaMember}
