"""The graphs of the guide for Airflow, in a real Airflow: scheduler, triggerer, a worker, SQLite.

Runs with ``KEROLOX_SOFTWARE=all``: it installs Airflow. In each run ``test_airflow.py`` holds what
the provider's classes do.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.sync import Producer
from kerolox.message import Message
from kerolox.testing import LocalBroker
from tests.docs.examples import ROOT, blocks_of
from tests.support.eventually import wait_until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(1_200)]

DEFERRED = re.compile(r"executor event with state success .*task_id='order'")

SECONDS = 240
"""So long each step may take: Airflow starts five processes, and one for each task."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the newest Airflow of the extra, and this Kerolox."""
    folder = tmp_path_factory.mktemp("airflow") / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", f"{ROOT}[airflow]"]
    subprocess.run(command, check=True)
    return python


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        for topic in ("Orders", "Parcels"):
            broker.create_topic(topic)
        yield broker


class Airflow:
    """``airflow standalone`` with one worker, in a folder of its own."""

    def __init__(self, python: Path, home: Path, name_server: str) -> None:
        self.home = home
        self._port = port = free_port()
        self._command = str(python.with_name("airflow"))
        self._environment = {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW_CONN_KEROLOX_DEFAULT": json.dumps(
                {"conn_type": "kerolox", "host": name_server}
            ),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # What waits in a worker would hold up all others.
            "AIRFLOW__CORE__PARALLELISM": "1",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
        }
        (home / "dags").mkdir(parents=True)

    def __enter__(self) -> Airflow:
        self._log = (self.home / "standalone.log").open("w")
        self._process = subprocess.Popen(
            [self._command, "standalone"],
            env=self._environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        finally:
            # A server that would not end with the others.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._log.close()

    def run(self, *words: str) -> str:
        """What a command prints."""
        command = [self._command, *words]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True
        ).stdout

    @property
    def log(self) -> str:
        """All that its processes said."""
        return (self.home / "standalone.log").read_text()

    def rows(self, question: str) -> list[Any]:
        """What its database answers; nothing before it is made."""
        try:
            with sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True) as database:
                return database.execute(question).fetchall()
        except sqlite3.OperationalError:
            return []

    def answers(self) -> bool:
        """Whether its server takes what workers ask."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1):
                return True
        except OSError:
            return False

    def states(self) -> dict[str, str]:
        """Tasks and their states."""
        return dict(self.rows("select task_id, state from task_instance"))

    def returned(self, task: str) -> Any:
        """What a task gave."""
        [(value,)] = self.rows(
            f"select value from xcom where task_id = '{task}' and key = 'return_value'"
        )
        return json.loads(value)


def test_graphs_wait_for_messages_and_run(python: Path, local: LocalBroker, tmp_path: Path) -> None:
    airflow = Airflow(python, tmp_path / "home", local.name_server)
    [graphs] = [
        block for block in blocks_of(ROOT / "docs/guides/airflow.md") if block.needs == "airflow"
    ]
    assert "kerolox" in airflow.run("providers", "list")
    assert "KeroloxMessageQueueProvider" in airflow.run("providers", "queues")
    with airflow, Producer("shop", local.name_server) as producer:
        try:
            # A task that begins before the server answers fails.
            wait_until(airflow.answers, seconds=SECONDS, what="Airflow's server")
            (airflow.home / "dags" / graphs.file).write_text(graphs.code)
            wait_until(
                lambda: (
                    airflow.states().get("order") == "deferred"
                    and len(airflow.rows("select id from trigger")) == 2
                    # Airflow fails a task that goes on before its executor knows of the deferral.
                    and DEFERRED.search(airflow.log)
                ),
                seconds=SECONDS,
                what="a task that is deferred, and the trigger of an asset",
            )
            # The only worker is free: it runs another task while that one waits.
            producer.send(Message("Parcels", b"a parcel"))
            wait_until(
                lambda: airflow.states().get("ship") == "success",
                seconds=SECONDS,
                what="the run that the message began",
            )
            assert airflow.returned("ship") == ["a parcel"]
            assert airflow.states()["order"] == "deferred"
            producer.send(Message("Orders", b"of others", tags="old"))
            airflow.run("dags", "trigger", "send_order")
            wait_until(
                lambda: airflow.states().get("bill") == "success",
                seconds=SECONDS,
                what="the task that had waited, and the next one",
            )
            assert airflow.returned("bill") == "billed order 42"
            assert airflow.returned("order")[0]["keys"] == "42"
        except BaseException:
            print(airflow.states(), airflow.log[-20_000:])
            raise
