"""Sparks that are processes of their own: a standalone cluster on loopback, a Connect server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.clients.spark import QUICK, SECONDS_OF_SPARK, spark_variables
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.up import free_port
from tests.support.spark_versions import PATH_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["connect_server", "settings_of", "standalone_cluster", "told", "user_variables"]

_DEPLOY = "org.apache.spark.deploy"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_LOOPBACK = "127.0.0.1"
_MEMORY = "512m"


_PAGE = Path(__file__).parents[3] / "docs" / "spark" / "deployment.md"
_REDACTED = "spark.redaction.string.regex"


def settings_of(folder: Path) -> dict[str, str]:
    """Settings of a driver whose executors are small and soon there, and whose events are logged
    in a folder."""
    java = "spark.{}.extraJavaOptions"
    events = folder / "events"
    events.mkdir(parents=True, exist_ok=True)
    shown = re.search(rf"^{re.escape(_REDACTED)} +(.+)$", _PAGE.read_text(), re.MULTILINE)
    assert shown is not None
    return {
        _REDACTED: shown[1],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
        **QUICK,
        java.format("executor"): QUICK[java.format("driver")],
        "spark.executor.memory": _MEMORY,
        # Of a cluster both executors are there before the first task is given out.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS_OF_SPARK}s",
        "spark.driver.host": _LOOPBACK,
        "spark.sql.session.timeZone": "UTC",
    }


def told(folder: Path) -> str:
    """All that the event log of a driver says."""
    files = [each for each in (folder / "events").rglob("*") if each.is_file()]
    return "".join(each.read_text(errors="replace") for each in files)


def user_variables(python: Path | str) -> dict[str, str]:
    """Variables of a user's program and of Spark's servers: nothing of the checkout can be
    imported, and Python processes are those of ``python``, by its path or one that is relative."""
    variables = {
        name: value
        for name, value in (os.environ | spark_variables()).items()
        if not name.startswith(("PYSPARK_", "COV_"))
    }
    variables["PYTHONPATH"] = os.environ.get(PATH_VARIABLE, "")
    return variables | {"PYSPARK_PYTHON": str(python)}


@contextmanager
def standalone_cluster(folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """A master and two workers of one core each; the master's address, ``spark://HOST:PORT``.

    The workers are hosts of their own: on the host of a task Spark starts no copy of it.
    """
    port = free_port()
    master = f"spark://{_LOOPBACK}:{port}"
    memory = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
    with ExitStack() as stack:

        def start(name: str, host: str, *command: str) -> subprocess.Popen[bytes]:
            work = folder / name
            more = {**memory, "SPARK_WORKER_DIR": str(work / "work")}
            arguments = [*command, "--host", host, "--webui-port", "0"]
            return stack.enter_context(_spark("spark-class", arguments, work, variables, more))

        first = start("master", _LOOPBACK, f"{_DEPLOY}.master.Master", "--port", str(port))
        _wait_for(port, first, folder / "master")
        for number in (1, 2):
            worker = f"{_DEPLOY}.worker.Worker"
            limits = "--cores", "1", "--memory", "1g"
            start(f"worker-{number}", f"127.0.0.{number}", worker, *limits, master)
        yield master


@contextmanager
def connect_server(
    folder: Path, variables: Mapping[str, str], master: str = "local[2]"
) -> Iterator[str]:
    """A Spark Connect server; its address, ``sc://HOST:PORT``."""
    port = free_port()
    settings = {
        **settings_of(folder),
        "spark.connect.grpc.binding.address": _LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
    }
    arguments = ["--class", _CONNECT, "--master", master, "--driver-memory", "1g"]
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    with _spark("spark-submit", arguments, folder, variables, {}) as process:
        _wait_for(port, process, folder)
        yield f"sc://{_LOOPBACK}:{port}"


@contextmanager
def _spark(
    script: str,
    arguments: list[str],
    folder: Path,
    variables: Mapping[str, str],
    more: Mapping[str, str],
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of one of Spark's scripts, with all that it starts in its group."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [f"{variables['SPARK_HOME']}/bin/{script}", *arguments],
            cwd=folder,
            # Spark's own folders: what is killed does not remove them.
            env={**variables, **more, "SPARK_LOCAL_DIRS": str(folder / "local")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS_MAX)


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError((folder / "log").read_text())
        with suppress(OSError), socket.create_connection((_LOOPBACK, port), 1):
            return True
        return False

    wait_until(answers, seconds=SECONDS_OF_SPARK, what=f"what listens on port {port}")
