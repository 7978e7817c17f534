"""A proxy of RocketMQ 5.5.0, and of 5.3.3, in cluster mode before our servers, with
``KEROLOX_SOFTWARE=all``.

Its clients are Java's of 4.9.7 and, by gRPC, the official ones in Java, Node.js and Python.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.interop.grpc5.driver import CLIENTS, Client, ClientError, Driver, Drivers, Server
from tests.interop.grpc5.scenarios import begun, facts_of
from tests.interop.grpc5.servers import PROXY_STARTED
from tests.support.eventually import wait_until
from tests.support.programs import build_java, build_proxy, build_proxy_53, java_of
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("proxy"),
]

START_SECONDS_MAX, RUN_SECONDS_MAX = 180.0, 180
MESSAGES = 8
NAMES = ("normal", "fifo", "transactions", "simple_consumer", "push_consumer")
PROXIES = {"5.5.0": build_proxy, "5.3.3": build_proxy_53}


class Proxied(NamedTuple):
    """Our servers and a proxy before them."""

    up: Up
    remoting: str
    grpc: str
    home: Path


@pytest.fixture(scope="module", params=PROXIES)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    home = tmp_path_factory.mktemp("proxy")
    remoting, grpc = free_port(), free_port()
    with Up(home / "up", grpc=True) as up:
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": up.namesrv,
            "grpcServerPort": grpc,
            "remotingListenPort": remoting,
            "localServeAddr": "127.0.0.1",
            "remotingAccessAddr": "127.0.0.1",
        }
        (home / "proxy.json").write_text(json.dumps(settings))
        command = java_of(
            PROXIES[request.param](),
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pm", "CLUSTER", "-n", up.namesrv, "-pc", str(home / "proxy.json")),
            options=(f"-Duser.home={home}",),
        )
        log = home / "proxy.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_until(
                lambda: PROXY_STARTED in log.read_text() or process.poll() is not None,
                what="the start of the proxy",
                seconds=START_SECONDS_MAX,
            )
            assert process.poll() is None, log.read_text()
            yield Proxied(up, f"127.0.0.1:{remoting}", f"127.0.0.1:{grpc}", home)
        finally:
            process.kill()
            process.wait()


def test_a_group_that_is_new_receives_through_the_proxy(proxied: Proxied) -> None:
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic("Through", queues=4)
    command = java_of(
        build_java(),
        "interop.Through",
        *(proxied.remoting, "Through", "new-group", str(MESSAGES), "120"),
        options=(f"-Duser.home={proxied.home}",),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    assert f"received {MESSAGES}\n" in done.stdout, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module", params=CLIENTS)
def driver(request: pytest.FixtureRequest, grpc_drivers: Drivers) -> Driver:
    return grpc_drivers(request.param)


@pytest.fixture(scope="module")
def outcomes(driver: Driver, proxied: Proxied) -> Iterator[dict[str, Future[list[object]]]]:
    with Admin(proxied.up.namesrv) as admin:
        yield begun(driver, Server(proxied.grpc), admin, NAMES)


@pytest.mark.node
@pytest.mark.go
def test_a_group_moves_to_the_broker_s_own_port_and_back(driver: Driver, proxied: Proxied) -> None:
    """Each place goes on where the other one stopped: nothing comes twice, nothing is lost."""
    topic = f"Moves-{driver.kind}"
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic(topic, queues=4)
        admin.put_group(SubscriptionGroupConfig(group_name=topic))
        for turn, endpoint in enumerate((proxied.grpc, proxied.up.grpc, proxied.grpc)):
            client = Client(driver, Server(endpoint), topic)
            producer, consumer = client.producer(), client.simple()
            sent = [f"{turn}-{number}" for number in range(MESSAGES)]
            for body in sent:
                client.send(producer, body)
            got = client.receive(consumer, MESSAGES)
            assert sorted(each["body"] for each in got) == sent

            def is_done() -> bool:
                progress = admin.group_progress(topic)
                return not progress.lag and not progress.in_flight

            wait_until(is_done, what="the last acknowledgement")
            for name in (producer, consumer):
                driver.ask("close", name=name)


@pytest.mark.node
@pytest.mark.go
@pytest.mark.parametrize("name", NAMES)
def test_a_client_by_grpc_does(
    outcomes: dict[str, Future[list[object]]], driver: Driver, name: str
) -> None:
    assert outcomes[name].result(RUN_SECONDS_MAX) == facts_of(driver.kind, name)


@pytest.mark.node
@pytest.mark.go
def test_a_proxy_learns_from_the_broker_what_a_topic_takes(
    driver: Driver, proxied: Proxied
) -> None:
    """One without a type is NORMAL to it."""
    client = Client(driver, Server(proxied.grpc), f"Plain-{driver.kind}")
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic(client.topic, queues=1)
        producer = client.producer()
        with pytest.raises(ClientError, match=r"(?i)transaction|message.?type"):
            client.send(producer, "no", transaction=True)
        assert list(admin.read_messages(client.topic)) == []
