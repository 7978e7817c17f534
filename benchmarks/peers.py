"""The things that the benchmarks run: the load generator, the Java broker and ours, as processes.

The peer and the generator are built once, in ``.cache``, from ``../shared``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
CACHE = ROOT / ".cache"
READY_SECONDS_MAX = 120


class Target(NamedTuple):
    """A running broker."""

    label: str
    address: str
    pid: int


def cpu_seconds(pid: int) -> float:
    """User and system time of a process up to now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def build_loadgen() -> Path:
    """Build the load generator; the folder with ``suite.sh`` and ``target/release/loadgen``."""
    folder = CACHE / "loadgen"
    if not (folder / "target" / "release" / "loadgen").exists():
        shutil.copytree(SHARED / "bench" / "loadgen", folder, dirs_exist_ok=True)
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=folder, check=True)
    return folder


def build_peer() -> Path:
    """Build the Java broker; the folder with ``up.sh`` and ``down.sh``."""
    folder = CACHE / "peer"
    if not (folder / "target" / "lib").exists():
        shutil.copytree(SHARED / "peer", folder, dirs_exist_ok=True)
        subprocess.run(["./build.sh"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


@contextmanager
def java_broker(
    data: Path,
    *settings: str,
    options: str = "",
    port: int = 0,
    namesrv_port: int = 0,
    is_beside: bool = False,
) -> Iterator[Target]:
    """The Java name server and broker, on free ports where none is named; ``options`` are the
    broker's JVM's. ``is_beside``: the broker alone, beside a name server that is there."""
    peer, port = build_peer(), port or free_port()
    alone = {"NO_NAMESRV": "1"} if is_beside else {}
    # a pipe would be inherited by the servers and never close
    with (CACHE / "peer-up.log").open("w") as log:
        subprocess.run(
            ["./up.sh", str(data), str(namesrv_port or free_port()), str(port), *settings],
            cwd=peer,
            check=True,
            stdout=log,
            stderr=log,
            env={**os.environ, "JAVA_OPT_EXT": options, **alone},
        )
    try:
        pid = int((data / "broker.pid").read_text())
        yield Target("java", f"127.0.0.1:{port}", pid)
    finally:
        subprocess.run(["./down.sh", str(data)], cwd=peer, check=False)


@contextmanager
def our_broker(
    data: Path,
    kernel: str,
    *settings: str,
    checkout: Path = ROOT,
    label: str = "",
    home: Path | None = None,
    port: int = 0,
    namesrv_port: int = 0,
    is_beside: bool = False,
) -> Iterator[Target]:
    """``kerolox up`` with one of the kernels, from this checkout or from another one, whose own
    ``.venv`` runs it, on free ports where none is named; ``home`` is its ``ROCKETMQ_HOME``.
    ``is_beside``: the broker alone, beside a name server that is there."""
    port = port or free_port()
    python = sys.executable if checkout == ROOT else str(checkout / ".venv" / "bin" / "python")
    if is_beside:
        names = ["broker", "-n", f"127.0.0.1:{namesrv_port}"]
    else:
        names = ["up", "--namesrv-port", str(namesrv_port or free_port())]
    command = [python, "-m", "kerolox.cli", *names, "--port", str(port)]
    environment = {"KEROLOX_KERNEL": kernel, **({"ROCKETMQ_HOME": str(home)} if home else {})}
    settings = ("brokerIP1=127.0.0.1", *settings)
    with our_process(data, command, settings, cwd=checkout, environment=environment) as pid:
        yield Target(label or kernel, f"127.0.0.1:{port}", pid)


@contextmanager
def our_process(
    data: Path,
    command: list[str],
    settings: Iterable[str],
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    stop_seconds: float = 30,
) -> Iterator[int]:
    """A server of ours with its store, settings and log in a folder; its process id, once it
    answers."""
    data.mkdir(parents=True, exist_ok=True)
    ready, conf = data / "ready", data / "settings.conf"
    conf.write_text("\n".join(settings) + "\n")
    command = [*command, "--data", str(data / "store"), "-c", str(conf)]
    ready.unlink(missing_ok=True)
    with (data / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready)],
            cwd=cwd,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not ready: {(data / 'log').read_text()}")
            time.sleep(0.002)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=stop_seconds)
