"""The Go v2.1.2 client, unmodified, against our name server and broker.

Its public interface has no query by key or id; keys are checked on what its consumer receives.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.kernels import KERNELS
from tests.support.programs import build_go_clients
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.go, pytest.mark.timeout(600), pytest.mark.xdist_group("go")]

SCENARIOS = "send async oneway consume batch tags keys compressed resumes topics".split()


@pytest.fixture(scope="module", params=KERNELS)
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Scenario name to "ok" or what went wrong; all of them in one process."""
    folder = tmp_path_factory.mktemp(f"go-{request.param}")
    with Up(folder, kernel=request.param) as up:
        command = [str(build_go_clients()), up.namesrv, up.broker]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
        assert rows, f"nothing ran:\n{done.stdout}\n{done.stderr}"
        yield {name: outcome for _, name, outcome in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_go_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"
