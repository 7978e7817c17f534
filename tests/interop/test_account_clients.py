"""Accounts of our broker (``aclEnable``), and the clients of each language as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from tests.interop.mqadmin import MqAdminProcess
from tests.interop.secured import (
    OK,
    OPERATOR,
    WORKER,
    Cases,
    accounts_file,
    go_cases,
    java_cases,
    python_cases,
)
from tests.support.programs import build_go_clients, build_node_clients
from tests.support.servers.clusters import QUICK_CHECKS
from tests.support.servers.tls import Authority
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("accounts")]

ALLOWED, READ_ONLY, FORBIDDEN = "Allowed", "ReadOnly", "Forbidden"
TOPICS = [ALLOWED, READ_ONLY, FORBIDDEN, "NodeSend", "NodeTags", "NodeForbidden"]
ACCOUNTS = accounts_file(
    (f"{ALLOWED}=PUB|SUB", f"{READ_ONLY}=SUB", "NodeSend=PUB|SUB", "NodeTags=PUB|SUB"),
    ("shut=DENY",),
    default_group="SUB",
)
KEYS = {"accessKey": WORKER.access_key, "secretKey": WORKER.secret_key}

REFUSED = {
    "no-account": (ALLOWED, {}),
    "wrong-secret": (ALLOWED, {"accessKey": "worker-account", "secretKey": "another-secret"}),
    "stranger": (ALLOWED, {"accessKey": "stranger", "secretKey": "worker-secret"}),
    "read-only": (READ_ONLY, KEYS),
    "forbidden": (FORBIDDEN, KEYS),
}
"""Sends that are refused: topic and account."""


class Guarded:
    """A server that demands accounts, and maybe TLS."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        accounts = folder / "plain_acl.yml"
        accounts.write_text(ACCOUNTS)
        settings: dict[str, object] = {"aclEnable": "true", "aclFile": accounts, **QUICK_CHECKS}
        self.settings = ClientSettings(credentials=OPERATOR)
        if authority is not None:
            certificate, key = authority.files("127.0.0.1")
            settings["tls.server.mode"] = "enforcing"
            settings["tls.server.certPath"], settings["tls.server.keyPath"] = certificate, key
        self.up = Up(folder, settings=settings)

    def __enter__(self) -> Guarded:
        self.up.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.up.stop()

    def create_topics(self) -> None:
        with Admin(self.up.namesrv, settings=self.settings) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=4)

    def count(self, topic: str) -> int:
        """Messages that a topic has."""
        with Admin(self.up.namesrv, settings=self.settings) as admin:
            return sum(each.max_offset for each in admin.describe_topic(topic).queues)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as made:
        made.create_topics()
        yield made


CLIENTS = {"java": java_cases, "go": go_cases, "python": python_cases}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("java", marks=pytest.mark.java),
        pytest.param("go", marks=pytest.mark.go),
        "python",
    ],
)
def client(request: pytest.FixtureRequest) -> Iterator[Cases]:
    start: Callable[[], Cases] = CLIENTS[request.param]
    with start() as cases:
        yield cases


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_did_not_happen(case: str, client: Cases, guarded: Guarded) -> None:
    topic, account = REFUSED[case]
    before = guarded.count(topic)
    outcome = client("send", namesrv=guarded.up.namesrv, topic=topic, **account)
    assert outcome != OK
    assert "secret" not in outcome
    assert guarded.count(topic) == before


def test_a_worker_sends_and_reads_what_it_may(client: Cases, guarded: Guarded) -> None:
    group = f"readers-{id(client)}"
    outcome = client("push", namesrv=guarded.up.namesrv, topic=ALLOWED, group=group, **KEYS)
    assert outcome == OK


@pytest.mark.java
def test_the_java_client_does_all_with_an_account_and_tls(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    tls = {"tls": True, "authServer": True, "trust": authority.ca}
    with (
        Guarded(tmp_path_factory.mktemp("both"), authority) as both,
        java_cases() as java,
    ):
        where = {"namesrv": both.up.namesrv, "topic": ALLOWED, "group": "all", **tls}
        assert java("all", **where, **KEYS) == OK
        assert "No accessKey is configured" in java("send", **where)
        assert "Check signature failed" in java(
            "send", **where, accessKey="worker-account", secretKey="another-secret"
        )


@pytest.mark.go
def test_the_released_go_client_works_with_an_account(guarded: Guarded) -> None:
    environment = {
        "INTEROP_ACCOUNT": f"{OPERATOR.access_key}:{OPERATOR.secret_key}",
        # Its administration signs nothing.
        "INTEROP_SCENARIOS": "send batch consume",
    }
    command = [str(build_go_clients()), guarded.up.namesrv, guarded.up.broker]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, **environment}
    )
    assert outcomes(done.stdout) == dict.fromkeys(("send", "batch", "consume"), OK)


@pytest.mark.node
def test_the_node_client_works_with_an_account(guarded: Guarded) -> None:
    scenarios = ("send", "tags", "refused")
    command = ["node", str(build_node_clients()), guarded.up.namesrv, *KEYS.values(), *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert outcomes(done.stdout) == dict.fromkeys(scenarios, OK)
    assert guarded.count("NodeForbidden") == 0


def outcomes(printed: str) -> dict[str, str]:
    """Scenario → outcome."""
    rows = [row.split("\t") for row in printed.splitlines() if row.startswith("scenario\t")]
    return {name: outcome for _, name, outcome in rows}


@pytest.mark.java
def test_mqadmin_takes_its_account_and_tls_as_with_java(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    home = tmp_path_factory.mktemp("mqadmin")
    options = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.ca,
    }
    given = tuple(f"-D{name}={value}" for name, value in options.items())
    with (
        Guarded(tmp_path_factory.mktemp("both"), authority) as both,
        MqAdminProcess(home, options=given) as mqadmin,
    ):
        where = ("-n", both.up.namesrv)
        made = ("updateTopic", *where, "-c", "DefaultCluster", "-t", "ByMqadmin")
        assert "No accessKey is configured" in mqadmin.ask(*made)
        tools = home / "conf" / "tools.yml"
        tools.write_text("accessKey: worker-account\nsecretKey: worker-secret\n")
        assert "Need admin permission for request code=17" in mqadmin.ask(*made)
        tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
        assert "success" in mqadmin.run(*made)
        assert "ByMqadmin" in mqadmin.run("topicList", *where).split()
        assert both.up.broker in mqadmin.run("clusterList", *where)
        assert "SEND_OK" in mqadmin.run("sendMessage", *where, "-t", "ByMqadmin", "-p", "x")
