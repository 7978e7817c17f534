"""Official clients of RocketMQ 5 at a cluster of several brokers by gRPC: they send and receive
through all of them while brokers are killed, promoted, added and changed. Nothing that was
acknowledged is lost, and no send fails beyond the client's own retries.

It runs with name servers of ours and of RocketMQ 4.9, with ``KEROLOX_SOFTWARE=all`` also of 5.3.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.replication.members import NameServerProcess, OurMember
from tests.support.eventually import wait_until
from tests.support.programs import build_broker_53, build_java, build_python_grpc_client
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

TOPIC, GROUP = "Everywhere", "readers"
SHARE = 20
"""Messages that are sent and handled before the next change."""
REFRESH_SECONDS = 90
"""Clients ask for routes every 30 s."""
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "haSendHeartbeatInterval": 500,
}


class Cluster:
    """Brokers by gRPC behind one name server."""

    def __init__(self, folder: Path, name_server: str, stack: ExitStack) -> None:
        self.folder, self.name_server = folder, name_server
        self._stack = stack
        self._brokers: dict[str, OurMember] = {}
        self.grpc: dict[str, str] = {}
        """Where each broker takes gRPC."""

    def __getitem__(self, name: str) -> OurMember:
        return self._brokers[name]

    def add(self, name: str, **settings: object) -> OurMember:
        """Start one more, ``broker-<name>`` unless the settings say otherwise."""
        port = free_port()
        values = {**SMALL, "brokerName": f"broker-{name}", "grpcServerPort": port, **settings}
        broker = OurMember(self.folder / name, self.name_server, values)
        self._stack.callback(broker.end)
        self._brokers[name], self.grpc[name] = broker, f"127.0.0.1:{port}"
        return broker.start()


@pytest.fixture(
    params=[
        "ours",
        pytest.param("4.9", marks=pytest.mark.java),
        pytest.param("5.3", marks=[pytest.mark.java, pytest.mark.software]),
    ]
)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two masters, ``a`` and ``b``, and the slave ``s`` of the first; the name server is one of
    ours, or of RocketMQ."""
    with ExitStack() as stack:
        if request.param == "ours":
            name_server = stack.enter_context(NameServerProcess(tmp_path / "names")).address
        else:
            built = build_java if request.param == "4.9" else build_broker_53
            peer = JavaPeer(tmp_path / "names", with_broker=False, built=built)
            name_server = f"127.0.0.1:{stack.enter_context(peer).namesrv_port}"
        made = Cluster(tmp_path, name_server, stack)
        made.add("a", brokerRole="SYNC_MASTER")
        made.add("s", brokerName="broker-a", brokerRole="SLAVE", brokerId=1)
        made.add("b")
        yield made


class Client:
    """A program that sends and receives until it is told to end."""

    def __init__(self, cluster: Cluster, command: list[str], *more: str) -> None:
        endpoints = ";".join((cluster.grpc["a"], cluster.grpc["b"]))
        self.log = cluster.folder / "client.log"
        self._errors = cluster.folder / "client.err"
        with self.log.open("wb") as log, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, endpoints, *more, TOPIC, GROUP],
                env={
                    **os.environ,
                    "HOME": str(cluster.folder),
                    "PYTHONPATH": str(build_python_grpc_client().parent),
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=errors,
            )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def count(self, what: str) -> int:
        return sum(line.startswith(f"{what} ") for line in self.lines())

    def wait_for_more(self) -> None:
        """Wait until it has sent and handled some more messages."""
        before = {what: self.count(what) for what in ("sent", "got")}

        def is_so() -> bool:
            assert self._process.poll() is None, self._said()
            return all(self.count(what) >= most + SHARE for what, most in before.items())

        wait_until(is_so, what="more messages", seconds=REFRESH_SECONDS)

    def end(self) -> None:
        """Have it end, with all that it has sent."""
        self._process.communicate(b"\n", timeout=120)
        assert self._process.returncode == 0, self._said()
        assert self.lines()[-1] == "ended", self._said()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _said(self) -> str:
        return f"{self.lines()[-40:]}\n{self._errors.read_text()[-4_000:]}"


def stored(admin: Admin) -> dict[str, int]:
    """How many messages each broker has."""
    found: dict[str, int] = {}
    for each in admin.describe_topic(TOPIC).queues:
        name = each.queue.broker_name
        found[name] = found.get(name, 0) + each.max_offset
    return found


def wait_for_messages(admin: Admin, *names: str) -> None:
    """Wait until these brokers have taken more messages."""
    before = stored(admin)

    def is_so() -> bool:
        now = stored(admin)
        return all(now.get(name, 0) > before.get(name, 0) for name in names)

    wait_until(is_so, what=f"messages at {names}", seconds=REFRESH_SECONDS)


def test_a_python_client_goes_on_while_brokers_die_and_come(cluster: Cluster) -> None:
    command = [sys.executable, str(build_python_grpc_client().with_name("cluster.py"))]
    goes_on(cluster, command, "simple")


def goes_on(cluster: Cluster, command: list[str], *more: str) -> None:
    """Run a client through all changes."""
    with Admin(cluster.name_server) as admin:
        admin.create_topic(TOPIC, queues=2)
        admin.put_group(SubscriptionGroupConfig(group_name=GROUP))
        client = Client(cluster, command, *more)
        try:
            client.wait_for_more()
            wait_for_messages(admin, "broker-a", "broker-b")
            cluster["b"].kill()
            client.wait_for_more()
            cluster["b"].start()
            wait_for_messages(admin, "broker-b")
            cluster["a"].kill()
            client.wait_for_more()
            admin.promote_broker(cluster["s"].address, role="ASYNC_MASTER")
            cluster.add("c")
            admin.create_topic(TOPIC, broker=cluster["c"].address, queues=2)
            admin.put_group(SubscriptionGroupConfig(group_name=GROUP))
            wait_for_messages(admin, "broker-a", "broker-b", "broker-c")
            client.wait_for_more()
            try:
                client.end()
            except AssertionError as error:
                error.add_note(f"stored: {stored(admin)}\n{admin.group_progress(GROUP)}")
                raise
        finally:
            client.kill()
    assert client.count("failed") == 0
