"""The official Python client of RocketMQ 5 by gRPC, ``rocketmq-python-client`` of PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trustme

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.docs.examples import ROOT, blocks_of
from tests.support.eventually import wait_until
from tests.support.programs import build_python_grpc_client
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("grpc-python")]

GUIDE = ROOT / "docs" / "guides" / "rocketmq5.md"
RUN_SECONDS_MAX = 180
TYPES = {
    "simple": "NORMAL",
    "ordered": "FIFO",
    "later": "DELAY",
    "decided": "TRANSACTION",
    "push": "NORMAL",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("grpc")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.pem",
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 500,
    }
    with (
        Up(folder / "up", settings=settings, grpc=True) as started,
        Admin(started.namesrv) as admin,
    ):
        for case, kind in TYPES.items():
            admin.create_topic(case, queues=2, attributes={"message.type": kind})
            is_ordered = True if case == "ordered" else None
            admin.put_group(
                SubscriptionGroupConfig(group_name=case, consume_message_orderly=is_ordered)
            )
        yield started


def printed(up: Up, *arguments: str) -> list[str]:
    """What Python prints beside the client."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "HOME": str(up.data),
            "PYTHONPATH": str(build_python_grpc_client().parent),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(up.data.parent / "ca.pem"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def ran(up: Up, transport: str, case: str) -> list[str]:
    """What the program prints of a case, behind its name."""
    said = printed(up, str(build_python_grpc_client()), up.grpc, transport, case)
    assert (said[0], said[-1]) == (f"-- {case}", "ended all"), said
    return said[1:-1]


@pytest.mark.parametrize("transport", ["plain", "tls"])
def test_messages_are_sent_received_changed_and_acknowledged(up: Up, transport: str) -> None:
    said = ran(up, transport, "simple")
    assert said[0] == "sent True"
    assert "parts True tag key {'name': 'value'} False" in said
    assert sorted(line for line in said if line.startswith("got ")) == [
        "got one attempt 1",
        "got two attempt 2",
    ]
    with Admin(up.namesrv) as admin:

        def is_done() -> bool:
            progress = admin.group_progress("simple")
            return not progress.lag and not progress.in_flight

        wait_until(is_done, what="the last acknowledgement")


def test_up_says_where_it_listens_for_grpc(up: Up) -> None:
    assert f"             listens for gRPC on {up.grpc} (this machine only)" in up.log.read_text()


def test_messages_of_a_group_come_in_order(up: Up) -> None:
    assert ran(up, "plain", "ordered") == [f"got {number} attempt 1" for number in range(5)]


def test_a_message_comes_at_its_time_and_one_that_is_recalled_never(up: Up) -> None:
    assert ran(up, "plain", "later") == ["recalled True", "got later attempt 1", "in time True"]


def test_transactions_end_also_those_that_the_broker_asks_about(up: Up) -> None:
    said = ran(up, "plain", "decided")
    assert said[:2] == ["ended commit", "ended rollback"]
    assert sorted(said[2:]) == ["checked open", "got commit attempt 1", "got open attempt 1"]


def test_a_push_consumer_gets_again_what_it_could_not_handle(up: Up) -> None:
    said = ran(up, "plain", "push")
    assert said == ["got pushed attempt 1", "got pushed attempt 2", "again True"]


def test_the_first_message_of_the_guide_is_sent_and_received(up: Up) -> None:
    [example] = [each.code for each in blocks_of(GUIDE) if each.needs == "rocketmq"]
    with Admin(up.namesrv) as admin:
        admin.create_topic("Orders", queues=4)
        admin.put_group(SubscriptionGroupConfig(group_name="billing"))
    assert "127.0.0.1:8081" in example
    sent, got = printed(up, "-c", example.replace("127.0.0.1:8081", up.grpc))
    assert sent.startswith("sent 01")
    assert got.startswith("got hello ")
    assert "order-1" in got
