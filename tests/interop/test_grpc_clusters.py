"""Official clients of RocketMQ 5 at a cluster of several brokers by gRPC: they send and receive
through all of them while brokers are killed, promoted, added and changed. Nothing that was
acknowledged is lost, and no send fails beyond the client's own retries.

The client in Python always runs, with name servers of ours and of RocketMQ 4.9. With
``KEROLOX_SOFTWARE=all`` those in Java and Node.js do, push consumers, and a name server of 5.3.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.interop.grpc5.driver import Client, ClientError, Driver, Server
from tests.replication.members import NameServerProcess, OurMember
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL, build_broker_53, build_java
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.tls import Authority
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

TOPIC, GROUP, PUSHED = "Everywhere", "readers", "pushed"
PAUSE_SECONDS = 0.02
LEFT_SECONDS = 150
"""What a push consumer held comes again after a minute."""
SHARE = 20
"""Messages that are sent and handled before the next change."""
REFRESH_SECONDS = 90
"""Clients ask for routes every 30 s."""
CASES = [
    pytest.param("python", "ours"),
    pytest.param("python", "4.9", marks=pytest.mark.java),
    pytest.param("python", "5.3", marks=[pytest.mark.java, pytest.mark.software]),
    pytest.param("java", "ours", marks=[pytest.mark.java, pytest.mark.software]),
    pytest.param("node", "ours", marks=[pytest.mark.node, pytest.mark.software]),
]
"""The client, and whose the name server is."""
BACKLOG_MAX = 60
"""Messages that are sent and not received: a simple consumer waits 5 s at each broker in turn."""
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


@pytest.fixture
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


class Load:
    """A client that sends and receives until it is told to end: as a simple consumer, and in
    another group as a push consumer where ``pushes`` says so."""

    def __init__(self, driver: Driver, endpoint: str, *, pushes: bool) -> None:
        self._client = Client(driver, Server(endpoint), TOPIC, GROUP)
        self._producer, self._consumer = self._client.producer(), self._client.simple()
        pusher = Client(driver, self._client.server, TOPIC, PUSHED)
        self._pusher = (pusher, pusher.push()) if pushes else None
        self.sent: set[str] = set()
        self.failed: list[str] = []
        """Sends that failed beyond the client's own retries."""
        self.received: set[str] = set()
        self._is_over, self._has_all = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self._work = [self._pool.submit(self._send), self._pool.submit(self._receive)]

    def _send(self) -> None:
        for number in itertools.count():
            while len(self.sent) - len(self.received) > BACKLOG_MAX:
                if self._is_over.wait(PAUSE_SECONDS):
                    return
            if self._is_over.wait(PAUSE_SECONDS):
                return
            try:
                self._client.send(self._producer, str(number))
            except ClientError as error:
                self.failed.append(f"{number}: {error}")
            else:
                self.sent.add(str(number))

    def _receive(self) -> None:
        members = {"name": self._consumer, "count": 32, "invisible": 10}
        while not self._has_all.is_set():
            # A receive, or the acknowledgement of a message, at a broker that has died.
            with contextlib.suppress(ClientError):
                for each in self._client.driver.ask("receive", **members):
                    self.received.add(each["body"])
                    self._client.driver.ask("ack", name=self._consumer, n=each["n"])

    def lacking(self) -> dict[str, list[str]]:
        """What was sent and not received, by group."""
        got = {GROUP: self.received}
        if self._pusher is not None:
            client, name = self._pusher
            got[PUSHED] = {each["body"] for each in client.seen(name)}
        return {group: sorted(self.sent - bodies) for group, bodies in got.items()}

    def wait_for_more(self) -> None:
        """Wait until it has sent and received some more messages."""
        before = len(self.sent), len(self.received)

        def is_so() -> bool:
            assert not any(each.done() for each in self._work)
            now = len(self.sent), len(self.received)
            return all(new >= old + SHARE for new, old in zip(now, before, strict=True))

        wait_until(is_so, what="more messages", seconds=REFRESH_SECONDS)

    def end(self) -> None:
        """Have it end, with all that it has sent."""
        self._is_over.set()
        self._work[0].result(REFRESH_SECONDS)
        try:
            wait_until(
                lambda: not any(self.lacking().values()),
                what="all that was sent",
                seconds=LEFT_SECONDS,
            )
        finally:
            self.stop()

    def stop(self) -> None:
        """Have it do no more."""
        self._is_over.set()
        self._has_all.set()
        self._pool.shutdown()


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


@pytest.mark.parametrize(("kind", "cluster"), CASES, indirect=["cluster"])
def test_a_client_goes_on_while_brokers_die_and_come(
    kind: str, cluster: Cluster, tmp_path: Path
) -> None:
    """The client in Node.js takes one address alone. It asks for routes, but its producers and
    simple consumers never use a second one, and a producer sends nothing more to a broker at which
    a send has failed, while it knows another: so sends fail when that one dies, too."""
    authority = Authority(tmp_path).ca
    with Admin(cluster.name_server) as admin, Driver(kind, tmp_path, authority) as driver:
        admin.create_topic(TOPIC, queues=2)
        put_groups(admin)
        endpoint = ";".join(cluster.grpc[each] for each in ("b" if kind == "node" else "ab"))
        load = Load(driver, endpoint, pushes=RUNS_ALL)
        try:
            load.wait_for_more()
            wait_for_messages(admin, "broker-a", "broker-b")
            cluster["b"].kill()
            load.wait_for_more()
            cluster["b"].start()
            wait_for_messages(admin, "broker-a" if kind == "node" else "broker-b")
            cluster["a"].kill()
            load.wait_for_more()
            if kind == "node":
                cluster["a"].start()
            else:
                # A SYNC_MASTER without a slave stores messages and says that they failed.
                admin.promote_broker(cluster["s"].address, role="ASYNC_MASTER")
                admin.create_topic(TOPIC, broker=cluster.add("c").address, queues=2)
                put_groups(admin)
                wait_for_messages(admin, "broker-a", "broker-b", "broker-c")
            load.wait_for_more()
            load.end()
        except AssertionError as error:
            error.add_note(f"{load.lacking()}, {stored(admin)}, {admin.group_progress(GROUP)}")
            raise
        finally:
            load.stop()
    assert load.failed == [] or kind == "node"


def put_groups(admin: Admin) -> None:
    for group in (GROUP, PUSHED):
        admin.put_group(SubscriptionGroupConfig(group_name=group))
