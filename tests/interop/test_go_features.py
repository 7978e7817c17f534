"""What the Go v2.1.2 client does beside sending and reading, unmodified, against our broker.

Order, filters, delay, retry, broadcast, pulls, transactions, requests, positions, and what
operators ask of its consumers.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client.core.tracing.trace import PubTrace, SubAfterTrace, SubBeforeTrace
from tests.interop.traces import traces_of
from tests.support.programs import build_go_clients
from tests.support.servers.clusters import QUICK_CHECKS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.go, pytest.mark.timeout(600), pytest.mark.xdist_group("go")]

SCENARIOS = (
    "orderly orderly_retry orderly_kill sql92 delay timed retry_to_dlq broadcast pull "
    "pull_filtered pull_from_stored poll transactions request_reply from_last from_time directly "
    "reset trace"
).split()

SETTINGS = {
    "brokerName": "broker-go",
    "enablePropertyFilter": "true",
    # All that is stored counts as cold, so that new groups start where their clients want.
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s " * 17 + "3s",
    **QUICK_CHECKS,
    # The queues of a consumer that was killed wait so long for another one.
    "rebalanceLockMaxLiveTime": 1_500,
    "traceTopicEnable": "true",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("go-features"), settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def rows(up: Up) -> list[list[str]]:
    """What one process printed that runs all scenarios at once."""
    command = [str(build_go_clients()), up.namesrv, up.broker, str(SETTINGS["brokerName"])]
    environment = {**os.environ, "HOME": str(up.data)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    print(done.stderr)
    return [row.split("\t") for row in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes(rows: list[list[str]]) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong."""
    return {row[1]: row[2] for row in rows if row[0] == "scenario"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_go_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)


async def test_the_traces_of_a_go_producer_and_consumer_are_read(
    up: Up, rows: list[list[str]]
) -> None:
    [message_id] = [row[1] for row in rows if row[0] == "message"]
    pub, before, after = await traces_of(up, message_id, 3)
    assert isinstance(pub, PubTrace)
    assert (pub.group, pub.topic, pub.tags) == ("go-feat-traced", "GoFeatTrace", "tag")
    assert pub.keys.split() == ["key1", "key2"]
    assert (pub.store_host, pub.body_bytes, pub.is_success) == (up.broker, 6, True)
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert before.group == after.group == "go-feat-trace"
    assert before.request_id == after.request_id
    assert after.is_success
