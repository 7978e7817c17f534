"""A Node.js client of 4.x, ali-ons 3.12, unmodified, against our name server and broker."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import Producer
from tests.interop.build import build_node_clients
from tests.support.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.node, pytest.mark.timeout(600), pytest.mark.xdist_group("node")]

SCENARIOS = (
    "send properties compressed tags sql92 delay retry_to_dlq broadcast two_members from_last "
    "from_timestamp resumes"
).split()

TOPICS = "Send Props Big Tags Sql Delay Retry Broadcast Share Last Time Resume".split()
"""This client sends to topics that are there; it does not ask for new ones."""

SETTINGS = {
    "enablePropertyFilter": "true",
    # All that is stored counts as cold, so that new groups start where their clients want.
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s " * 17 + "3s",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong; all of them in one process, and at once."""
    program: Path = build_node_clients()
    with Up(tmp_path_factory.mktemp("node"), settings=SETTINGS) as up:
        with Producer("node-topics", up.namesrv) as producer:
            for topic in TOPICS:
                producer.create_topic(f"Node{topic}", queues=4)
        command = ["node", str(program), up.namesrv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
    assert rows, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    print(done.stderr)
    return {name: outcome for _, name, outcome in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_node_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)
