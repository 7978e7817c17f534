"""The official clients of RocketMQ 5 in Java, Node.js, Python, Go and Rust, unmodified, at our port
for gRPC.

All scenarios of a client run at once, in one process. What takes long needs
``KEROLOX_SOFTWARE=all``, and so do the clients of 4.x in Java, Node.js and Go, whose messages
cross.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.interop.grpc5.crossing import check_from_4_x, check_to_4_x
from tests.interop.grpc5.driver import (
    CLIENTS,
    OLD_CLIENTS,
    Client,
    ClientError,
    Driver,
    Drivers,
)
from tests.interop.grpc5.guide import check_first_message, example
from tests.interop.grpc5.scenarios import OWN_FACTS, SCENARIOS, begun, facts_of
from tests.interop.grpc5.servers import Served, our_server
from tests.interop.secured import OPERATOR, WORKER, accounts_file
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL, build_python_grpc_client
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("grpc-clients")]

SECONDS_MAX = 200
DEAR = ("leaves",)
"""A client in Node.js waits for its last receive, up to 20 s."""

MARKS = {"java": [pytest.mark.java], "node": [pytest.mark.node], "go": [pytest.mark.go]}

ALLOWED, FORBIDDEN = "Allowed", "Forbidden"
PARAMS = [pytest.param(kind, marks=MARKS.get(kind, [])) for kind in CLIENTS]
OLD = [
    pytest.param(kind, marks=[pytest.mark.software] if kind != "kerolox" else [])
    for kind in OLD_CLIENTS
]
SOFTWARE_OF_JAVA = pytest.mark.parametrize(
    "driver",
    [
        pytest.param("java", marks=[pytest.mark.java, pytest.mark.software]),
        *PARAMS[1:],
    ],
    indirect=True,
    scope="module",
)
"""A Java client that has no server tries so often that it costs seconds of a processor."""

CASES = [
    pytest.param(name, marks=[pytest.mark.software] if name in DEAR else []) for name in SCENARIOS
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, grpc_drivers: Drivers) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("grpc")
    with our_server(folder, grpc_drivers.authority, messageDelayLevel="1s 2s") as started:
        yield started


@pytest.fixture(scope="module", params=PARAMS)
def driver(request: pytest.FixtureRequest, grpc_drivers: Drivers) -> Driver:
    return grpc_drivers(request.param)


@pytest.fixture(scope="module")
def outcomes(driver: Driver, served: Served) -> Iterator[dict[str, Future[list[object]]]]:
    """What scenarios give, all begun at once."""
    names = [name for name in SCENARIOS if RUNS_ALL or name not in DEAR]
    with Admin(served.namesrv) as admin:
        yield begun(driver, served.server, admin, names)


@pytest.mark.parametrize("name", CASES)
def test_a_client_does(
    outcomes: dict[str, Future[list[object]]], driver: Driver, name: str
) -> None:
    assert outcomes[name].result(SECONDS_MAX) == facts_of(driver.kind, name)


def test_what_is_acknowledged_is_done(
    outcomes: dict[str, Future[list[object]]], driver: Driver, served: Served
) -> None:
    with Admin(served.namesrv) as admin:
        for name in ("normal", "simple_consumer", "push_consumer"):
            outcomes[name].result(SECONDS_MAX)
            if (driver.kind, name) in OWN_FACTS:
                continue  # It has no such consumer.

            def is_done(group: str = f"{driver.kind}-{name}") -> bool:
                progress = admin.group_progress(group)
                return not progress.lag and not progress.in_flight

            wait_until(is_done, what=f"the last acknowledgement of {name}")


@SOFTWARE_OF_JAVA
def test_a_killed_broker_that_starts_again_is_served(
    driver: Driver, grpc_drivers: Drivers, tmp_path: Path
) -> None:
    """Clients have streams, receives, settings and an open transaction at the one that dies."""
    with our_server(tmp_path, grpc_drivers.authority) as mortal:
        assert mortal.up is not None
        topic = "Killed"
        with Admin(mortal.namesrv) as admin:
            admin.create_topic(topic, queues=2)
            admin.put_group(SubscriptionGroupConfig(group_name=topic))
        client = Client(driver, mortal.server, topic)
        producer, consumer = client.producer(), client.listener()
        before, after = {f"before {n}" for n in range(5)}, {f"after {n}" for n in range(5)}
        for body in before:
            client.send(producer, body)
        client.taken_until(consumer, before)
        client.send(producer, "half", transaction=True)
        mortal.up.kill()
        mortal.up.start()
        _in_the_end(lambda: driver.ask("end", name=producer, body="half", how="commit"))
        for body in after:
            _in_the_end(partial(client.send, producer, body))
        client.taken_until(consumer, {*after, "half"})


def _in_the_end(act: Callable[[], object]) -> None:
    """Do what a broker that starts may refuse, until it is done."""

    def is_done() -> bool:
        try:
            act()
        except ClientError:
            return False
        return True

    wait_until(is_done, what=f"the end of {act}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, grpc_drivers: Drivers) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    accounts = folder / "plain_acl.yml"
    topics = [f"{ALLOWED}-{kind}=PUB|SUB" for kind in CLIENTS]
    groups = [f"{ALLOWED}-{kind}=SUB" for kind in CLIENTS]
    accounts.write_text(accounts_file(topics, groups))
    settings = {"aclEnable": "true", "aclFile": accounts}
    operator = ClientSettings(credentials=OPERATOR)
    with our_server(folder, grpc_drivers.authority, **settings) as started:
        with Admin(started.namesrv, settings=operator) as admin:
            for kind in CLIENTS:
                admin.create_topic(f"{ALLOWED}-{kind}", queues=2)
                admin.create_topic(f"{FORBIDDEN}-{kind}", queues=2)
                admin.put_group(SubscriptionGroupConfig(group_name=f"{ALLOWED}-{kind}"))
        yield started


@SOFTWARE_OF_JAVA
def test_an_account_does_what_it_may_and_no_more(driver: Driver, guarded: Served) -> None:
    key, secret = WORKER.access_key, WORKER.secret_key
    worker = guarded.server._replace(key=key, secret=secret)
    allowed = Client(driver, worker, f"{ALLOWED}-{driver.kind}")
    producer, consumer = allowed.producer(), allowed.simple()
    allowed.send(producer, "mine")
    assert [each["body"] for each in allowed.receive(consumer, 1)] == ["mine"]
    nobody, stranger = guarded.server, worker._replace(key="stranger")
    refused = (nobody, stranger, worker._replace(secret="another-secret"))
    forbidden = Client(driver, worker, f"{FORBIDDEN}-{driver.kind}")
    clients = [(allowed, server) for server in refused] + [(forbidden, worker)]
    for client, server in clients:
        before = _denials(guarded)
        with pytest.raises(ClientError, match=REFUSED):
            client.send(client.producer(server), "refused")
        assert _denials(guarded) > before


def _denials(guarded: Served) -> int:
    """As the broker counts them: its audit log leaves lines out."""
    assert guarded.up is not None
    with Admin(guarded.namesrv, settings=ClientSettings(credentials=OPERATOR)) as admin:
        return int(admin.broker_runtime(guarded.up.broker).values["aclDenied"])


REFUSED = r"(?i)unauthorized|\[FAILED\]|failed to fetch topic"
"""Some libraries hide why they can't start."""


@pytest.mark.java
@pytest.mark.node
@pytest.mark.go
@pytest.mark.parametrize("old", OLD)
def test_messages_of_4_x_are_received_by_5_x(
    served: Served, grpc_drivers: Drivers, old: str
) -> None:
    check_from_4_x(served, grpc_drivers, old)


@pytest.mark.java
@pytest.mark.node
@pytest.mark.go
@pytest.mark.parametrize("old", OLD)
def test_messages_of_5_x_are_received_by_4_x(
    served: Served, grpc_drivers: Drivers, old: str
) -> None:
    check_to_4_x(served, grpc_drivers, old)


def test_up_says_where_it_listens_for_grpc(served: Served) -> None:
    assert isinstance(served.up, Up)
    said = f"             listens for gRPC on {served.up.grpc} (this machine only)"
    assert said in served.up.log.read_text()


def test_the_first_message_of_the_guide_is_sent_and_received(
    served: Served, tmp_path: Path
) -> None:
    with Admin(served.namesrv) as admin:
        admin.create_topic("Orders", queues=4)
        admin.put_group(SubscriptionGroupConfig(group_name="billing"))
    check_first_message(
        [sys.executable, "-c", example("python", served.server.endpoint)],
        tmp_path,
        SECONDS_MAX,
        PYTHONPATH=str(build_python_grpc_client().parent),
    )
