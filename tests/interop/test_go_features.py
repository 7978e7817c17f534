"""What the Go v2.1.2 client does beside sending and reading, unmodified, against our broker.

Order, filters, delay, retry, broadcast, pulls, transactions, requests, positions, and what
operators ask of its consumers.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.interop.build import build_go_clients
from tests.support.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.go, pytest.mark.timeout(600), pytest.mark.xdist_group("go")]

SCENARIOS = (
    "orderly orderly_retry sql92 delay retry_to_dlq broadcast pull poll transactions "
    "request_reply from_last from_time directly reset"
).split()

SETTINGS = {
    "brokerName": "broker-go",
    "enablePropertyFilter": "true",
    # All that is stored counts as cold, so that new groups start where their clients want.
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s " * 17 + "3s",
    "transactionCheckInterval": 500,
    "transactionTimeOut": 300,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong; all of them in one process, and at once."""
    folder: Path = tmp_path_factory.mktemp("go-features")
    with Up(folder, settings=SETTINGS) as up:
        command = [str(build_go_clients()), up.namesrv, up.broker, SETTINGS["brokerName"]]
        environment = {**os.environ, "HOME": str(folder)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
    assert rows, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    print(done.stderr)
    return {name: outcome for _, name, outcome in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_go_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)
