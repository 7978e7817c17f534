"""The Java 4.9 client and mqadmin, unmodified, against our name server and broker."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.message import MessageId
from tests.interop.mqadmin import MqAdmin
from tests.support.kernels import KERNELS
from tests.support.programs import java_command
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

SCENARIOS = (
    "send async oneway consume batch tags keys query_by_id properties compressed pull lite_pull "
    "orderly broadcast two_members resumes offsets"
).split()


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp(f"java-{request.param}")
    with Up(folder, kernel=request.param) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(up: Up) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong; all of them in one Java process."""
    done = subprocess.run(
        java_command("interop.Clients", up.namesrv), capture_output=True, text=True, timeout=500
    )
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("scenario\t")]
    assert lines, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    return {name: outcome for _, name, outcome in lines}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_mqadmin_cluster_list_shows_the_broker(up: Up, mqadmin: MqAdmin) -> None:
    rows = [line.split() for line in mqadmin("clusterList").splitlines()]
    row = next(row for row in rows if row and row[0] == "DefaultCluster")
    assert row[2] == "0"
    assert row[3] == up.broker
    assert row[4] == "V4_9_8"


def test_mqadmin_broker_status_shows_the_metrics_of_the_store(up: Up, mqadmin: MqAdmin) -> None:
    lines = mqadmin("brokerStatus", "-b", up.broker).splitlines()
    shown = {
        key.strip(): value.strip() for key, _, value in (each.partition(":") for each in lines)
    }
    assert int(shown["putMessageTimesTotal"]) >= 1
    assert int(shown["commitLogMaxOffset"]) >= int(shown["putMessageSizeTotal"])
    assert (
        shown["putMessageDistributeTime"] == "null" or shown["putMessageDistributeTime"][0] == "["
    )
    assert len(shown["putTps"].split()) == 3
    assert float(shown["putLatency999"]) >= 0
    assert shown["pageCacheLockTimeMills"] == "0"


@pytest.mark.parametrize(
    "command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"]
)
def test_mqadmin_cleans_the_store(up: Up, mqadmin: MqAdmin, command: str) -> None:
    assert mqadmin(command, "-c", "DefaultCluster").strip().endswith("success")


def test_mqadmin_update_topic_creates_a_topic_that_list_and_route_show(
    up: Up, mqadmin: MqAdmin
) -> None:
    created = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Made", "-r", "3", "-w", "3")
    assert "success" in created
    assert "Made" in mqadmin("topicList").split()
    route = json.loads(
        re.sub(r"([{,])(\d+):", r'\1"\2":', mqadmin("topicRoute", "-t", "Made")).replace("\t", "")
    )
    assert route["queueDatas"][0]["writeQueueNums"] == 3
    assert list(route["brokerDatas"][0]["brokerAddrs"].values()) == [up.broker]


def test_mqadmin_finds_a_message_by_id_and_by_key(up: Up, mqadmin: MqAdmin) -> None:
    sent = mqadmin("sendMessage", "-t", "Made2", "-p", "hello mqadmin", "-k", "akey")
    message_id = re.search(r"\b[0-9A-F]{32,56}\b", sent)
    assert message_id is not None, sent
    by_key = mqadmin("queryMsgByKey", "-t", "Made2", "-k", "akey")
    assert message_id.group() in by_key
    by_unique = mqadmin("queryMsgByUniqueKey", "-t", "Made2", "-i", message_id.group())
    offset = re.search(r"CommitLog Offset:\s+(\d+)", by_unique)
    assert offset is not None, by_unique
    offset_id = MessageId("127.0.0.1", up.port, int(offset.group(1))).text
    by_id = mqadmin("queryMsgById", "-i", offset_id)
    assert re.search(r"Topic:\s+Made2", by_id), by_id
