"""The official Java and Node.js clients of RocketMQ 5 by gRPC, to our own port; with
``KEROLOX_SOFTWARE=all``. The programs are those of ``test_proxy.py``.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.message import Message
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.support.eventually import wait_until
from tests.support.programs import build_node_proxy_client, java_by_grpc
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.software,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("proxy"),
]

RUN_SECONDS_MAX = 120
MESSAGES = 8


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("grpc"), grpc=True) as started:
        yield started


@pytest.fixture
def admin(up: Up) -> Iterator[Admin]:
    with Admin(up.namesrv) as made:
        yield made


def ran(up: Up, command: list[str]) -> list[str]:
    """The lines that a program prints; it may write below the servers' folder."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env={**os.environ, "HOME": str(up.data)},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def java(up: Up, program: str, *arguments: str) -> list[str]:
    """Run a Java program of the proxy's folder."""
    return ran(up, java_by_grpc(program, up.grpc, *arguments, home=up.data))


def bodies(admin: Admin, topic: str) -> list[bytes]:
    return [bytes(each.body) for each in admin.read_messages(topic)]


@pytest.mark.java
def test_transactions_of_a_java_client_are_committed_and_rolled_back(up: Up, admin: Admin) -> None:
    admin.create_topic("Decided", queues=1, attributes={"message.type": "TRANSACTION"})
    assert java(up, "proxied.Transactions", "Decided")[-1] == "ended"
    assert bodies(admin, "Decided") == [b"commit"]


@pytest.mark.java
@pytest.mark.parametrize("kind", ["simple", "push"])
def test_a_java_client_receives_and_acknowledges(up: Up, admin: Admin, kind: str) -> None:
    topic, group = f"Popped-{kind}", f"popped-{kind}"
    admin.create_topic(topic, queues=4)
    admin.put_group(SubscriptionGroupConfig(group_name=group))
    with Producer("popped-producer", up.namesrv) as producer:
        for number in range(MESSAGES):
            producer.send(Message(topic, b"%d" % number))
    assert java(up, "proxied.Pops", kind, topic, group, str(MESSAGES)) == [
        "again 2",
        f"received {MESSAGES}",
    ]

    def is_done() -> bool:
        progress = admin.group_progress(group)
        return not progress.lag and not progress.in_flight

    wait_until(is_done, what="the last acknowledgement")


@pytest.mark.node
def test_a_node_client_sends_and_ends_transactions(up: Up, admin: Admin) -> None:
    topics = {"NodePlain": "NORMAL", "NodeOrdered": "FIFO", "NodeDecided": "TRANSACTION"}
    for topic, kind in topics.items():
        admin.create_topic(topic, queues=2, attributes={"message.type": kind})
    said = ran(up, ["node", str(build_node_proxy_client()), up.grpc, *topics])
    assert said[-1] == "ended"
    [plain] = admin.read_messages("NodePlain")
    assert (plain.body, plain.properties["KEYS"], plain.properties["TAGS"]) == (
        b"plain",
        "key",
        "node",
    )
    ordered = list(admin.read_messages("NodeOrdered"))
    assert len({each.queue_id for each in ordered}) == 1
    assert [bytes(each.body) for each in ordered] == [b"ordered %d" % n for n in range(4)]
    assert bodies(admin, "NodeDecided") == [b"commit"]
