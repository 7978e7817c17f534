"""Clients of others where an account may ask so often a second: they are notified, and lose
nothing.

Code 2 (SYSTEM_BUSY) is what RocketMQ's own flow control answers. No client tries such a send again
by itself; each reports it, and what it sends after a pause is taken.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.interop.secured import OK, OPERATOR, WORKER, accounts_file, java_cases
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.programs import build_go_clients, build_node_clients
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("accounts")]

TOPICS = {"go": "GoLimited", "java": "JavaLimited", "node": "NodeLimited"}
MESSAGES = 60
"""Those of Go and Node.js send so many at once, until some are refused; they look whether each came
once."""
REQUESTS_PER_SECOND = 30
SLOW = {"maxRequestsPerSecondPerAccount": "2"}


@pytest.fixture
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("limited")
    accounts = folder / "plain_acl.yml"
    topics = [f"{topic}=PUB|SUB" for topic in TOPICS.values()]
    accounts.write_text(accounts_file(topics, (), default_group="SUB"))
    settings = {
        "aclEnable": "true",
        "aclFile": accounts,
        "maxRequestsPerSecondPerAccount": REQUESTS_PER_SECOND,
        # So many at once that a client starts, and too few for all that it sends.
        "requestBurstMillis": 1_000,
    }
    with Up(folder, settings=settings) as up:
        with Admin(up.namesrv, settings=ClientSettings(credentials=OPERATOR)) as admin:
            for topic in TOPICS.values():
                admin.create_topic(topic, queues=4)
        yield up


def refused(up: Up) -> int:
    """Requests of accounts that were too many."""
    with PatientConnection(up.broker, credentials=OPERATOR) as connection:
        asked = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        body = fastjson.members_of(fastjson.loads(connection.invoke(asked, SECONDS_MAX).body))
    return int(str(fastjson.members_of(body["table"])["requestsRefusedOfAccount"]))


def stored(up: Up, topic: str) -> int:
    with Admin(up.namesrv, settings=ClientSettings(credentials=OPERATOR)) as admin:
        return sum(each.max_offset for each in admin.describe_topic(topic).queues)


def outcome(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, **environment}
    )
    rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
    assert [row[1] for row in rows] == ["limited"], done.stdout + done.stderr
    return rows[0][2]


@pytest.mark.java
def test_a_java_client_is_told_that_it_asks_too_often_and_loses_nothing(limited: Up) -> None:
    given = {"accessKey": WORKER.access_key, "secretKey": WORKER.secret_key}
    where = {"namesrv": limited.namesrv, "topic": TOPICS["java"]}
    taken = 0
    with Admin(limited.namesrv, settings=ClientSettings(credentials=OPERATOR)) as admin:
        # It sends one message after the other, and slowly where much else runs.
        admin.update_broker_settings(SLOW, broker=limited.broker)
    with java_cases() as java:

        def is_taken() -> bool:
            nonlocal taken
            outcome = java("send", **where, **given)
            assert outcome == OK or "CODE: 2  DESC: [RATE_LIMIT]system busy" in outcome, outcome
            taken += outcome == OK
            return outcome == OK

        wait_until(lambda: not is_taken(), what="a refusal")
        before = taken
        wait_until(is_taken, what="a send that is taken again")
    assert taken == before + 1
    assert stored(limited, TOPICS["java"]) == taken
    assert refused(limited) > 0


@pytest.mark.go
def test_a_go_client_is_told_that_it_asks_too_often_and_loses_nothing(limited: Up) -> None:
    command = [str(build_go_clients()), limited.namesrv, limited.broker]
    account = f"{WORKER.access_key}:{WORKER.secret_key}"
    assert outcome(command, INTEROP_ACCOUNT=account, INTEROP_SCENARIOS="limited") == OK
    assert stored(limited, TOPICS["go"]) % MESSAGES == 0
    assert refused(limited) > 0


@pytest.mark.node
def test_a_node_client_is_told_that_it_asks_too_often_and_loses_nothing(limited: Up) -> None:
    command = ["node", str(build_node_clients()), limited.namesrv]
    assert outcome([*command, WORKER.access_key, WORKER.secret_key, "limited"]) == OK
    assert stored(limited, TOPICS["node"]) % MESSAGES == 0
    assert refused(limited) > 0
