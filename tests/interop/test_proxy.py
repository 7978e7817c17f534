"""A proxy of RocketMQ 5.5.0, and of 5.3.3, in cluster mode before our servers, with
``KEROLOX_SOFTWARE=all``.

Its clients are Java's of 4.9.7 and, by gRPC, ``rocketmq-client-java`` 5.2.0 of Maven and
``rocketmq-client-nodejs`` 1.0.8 of npm.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.message import Message
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.support.eventually import wait_until
from tests.support.programs import (
    build_java,
    build_node_proxy_client,
    build_proxy,
    build_proxy_53,
    java_by_grpc,
    java_of,
)
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("proxy"),
]

STARTED = "rocketmq-proxy startup successfully"
START_SECONDS_MAX, RUN_SECONDS_MAX = 180.0, 180
MESSAGES = 8
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
    with Up(home / "up") as up:
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
                lambda: STARTED in log.read_text() or process.poll() is not None,
                what="the start of the proxy",
                seconds=START_SECONDS_MAX,
            )
            assert process.poll() is None, log.read_text()
            yield Proxied(up, f"127.0.0.1:{remoting}", f"127.0.0.1:{grpc}", home)
        finally:
            process.kill()
            process.wait()


def by_grpc(program: str, proxied: Proxied, *arguments: str) -> list[str]:
    """The command that runs a client by gRPC."""
    return java_by_grpc(program, proxied.grpc, *arguments, home=proxied.home)


def ran(command: list[str], home: Path | None = None) -> str:
    """What a program prints; it may write below a home."""
    environment = None if home is None else {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, env=environment
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_group_that_is_new_receives_through_the_proxy(proxied: Proxied) -> None:
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic("Through", queues=4)
    said = ran(
        java_of(
            build_java(),
            "interop.Through",
            *(proxied.remoting, "Through", "new-group", str(MESSAGES), "120"),
            options=(f"-Duser.home={proxied.home}",),
        )
    )
    assert f"received {MESSAGES}\n" in said


def decided(admin: Admin, topic: str, ends: int) -> None:
    """Wait until two transactions have ended, and only one is seen; ``ends``: of all so far."""
    found: list[bytes] = []

    def is_delivered() -> bool:
        found[:] = [bytes(each.body) for each in admin.read_messages(topic)]
        return bool(found)

    # The proxy passes the end on without waiting for an answer.
    wait_until(is_delivered, what="the message of the transaction that was committed")
    assert found == [b"commit"]
    wait_until(
        lambda: len(list(admin.read_messages("RMQ_SYS_TRANS_OP_HALF_TOPIC"))) == ends,
        what="the ends of both transactions",
    )
    assert [bytes(each.body) for each in admin.read_messages(topic)] == [b"commit"]


def ended(admin: Admin) -> int:
    """How many transactions have ended so far."""
    topic = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    return len(list(admin.read_messages(topic))) if topic in admin.list_topics() else 0


def test_transactions_by_grpc_are_committed_and_rolled_back(proxied: Proxied) -> None:
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic("Decided", queues=1, attributes={"message.type": "TRANSACTION"})
        before = ended(admin)
        assert "ended\n" in ran(by_grpc("proxied.Transactions", proxied, "Decided"))
        decided(admin, "Decided", before + 2)


def test_a_proxy_learns_from_the_broker_what_a_topic_takes(proxied: Proxied) -> None:
    """One without a type is NORMAL to it."""
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic("Plain", queues=1)
        done = subprocess.run(
            by_grpc("proxied.Transactions", proxied, "Plain"),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
        )
        assert done.returncode != 0
        assert "TRANSACTION" in done.stdout + done.stderr
        assert list(admin.read_messages("Plain")) == []


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_a_client_by_grpc_receives_and_acknowledges_messages(proxied: Proxied, kind: str) -> None:
    topic, group = f"Popped-{kind}", f"popped-{kind}"
    with Admin(proxied.up.namesrv) as admin:
        admin.create_topic(topic, queues=4)
        admin.put_group(SubscriptionGroupConfig(group_name=group))
        with Producer("popped-producer", proxied.up.namesrv) as producer:
            for number in range(MESSAGES):
                producer.send(Message(topic, b"%d" % number))
        said = ran(by_grpc("proxied.Pops", proxied, kind, topic, group, str(MESSAGES)))
        assert said.splitlines() == ["again 2", f"received {MESSAGES}"]

        def is_done() -> bool:
            progress = admin.group_progress(group)
            return not progress.lag and not progress.in_flight

        wait_until(is_done, what="the last acknowledgement")


@pytest.mark.node
def test_a_node_client_by_grpc_sends_and_ends_transactions(proxied: Proxied) -> None:
    with Admin(proxied.up.namesrv) as admin:
        topics = {"NodePlain": "NORMAL", "NodeOrdered": "FIFO", "NodeDecided": "TRANSACTION"}
        for topic, kind in topics.items():
            admin.create_topic(topic, queues=2, attributes={"message.type": kind})
        before = ended(admin)
        said = ran(
            ["node", str(build_node_proxy_client()), proxied.grpc, *topics], proxied.home
        ).splitlines()
        assert said[-1] == "ended"
        assert [line for line in said if line.startswith("check ")] == []
        [plain] = admin.read_messages("NodePlain")
        assert (plain.body, plain.properties["KEYS"], plain.properties["TAGS"]) == (
            b"plain",
            "key",
            "node",
        )
        assert plain.properties["kind"] == "plain"
        ordered = list(admin.read_messages("NodeOrdered"))
        assert len({each.queue_id for each in ordered}) == 1
        assert [bytes(each.body) for each in ordered] == [b"ordered %d" % n for n in range(4)]
        decided(admin, "NodeDecided", before + 2)
