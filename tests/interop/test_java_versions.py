"""Java clients and tools from 4.2.0 to 5.5.0, unmodified: their scenarios in one process each.

The oldest and the newest run against our broker. With ``KEROLOX_SOFTWARE=all`` all run, against
the Java 4.9 broker too, which says that what fails there is the client's.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.programs import JAVA_VERSIONS, RUN_VERSIONS, build_java, java_of
from tests.support.servers.software import RUN_SECONDS_MAX, Servers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.timeout(900), pytest.mark.xdist_group("java-versions")]

SOURCES = {
    "Basics": "send async oneway batch compressed two_members orderly broadcast tags sql92 delay "
    "retry pull query statistics reset reset_offline",
    "Before43": "transactions",
    "Since43": "transactions sql92_pull",
    "Since46": "lite_pull lite_sql92 lite_assign request_reply",
    "Since5": "settings asked_group server_rebalance server_pops transaction_id",
    "Since53": "timed recalled",
}
"""Scenarios by the Java source that has them."""

NOT_OF_4_9 = (
    "lite_pull lite_sql92 lite_assign settings statistics reset reset_offline "
    "asked_group server_rebalance server_pops transaction_id timed recalled"
).split()
"""What 5.x asks with codes that a broker of 4.9 does not know."""

AT_ONCE = 2

# Queues are shared anew within a second instead of 20.
OPTIONS = ("-Drocketmq.client.rebalance.waitInterval=1000", "-Drocketmq.client.logUseSlf4j=true")


def scenarios(version: str) -> list[str]:
    """The names of what a version can do."""
    return [name for source in JAVA_VERSIONS[version] for name in SOURCES[source].split()]


Outcomes = dict[str, dict[str, str]]
"""Version, scenario: "ok" or what went wrong."""


def run(servers: Servers, version: str, home: Path) -> dict[str, str]:
    """All scenarios of a version; each has topics and groups of its own."""
    built = build_java(f"versions-{version}")
    prefix = f"V{version.replace('.', '')}"
    arguments = (servers.namesrv, servers.broker, prefix, *JAVA_VERSIONS[version])
    options = (*OPTIONS, f"-Duser.home={home}")
    done = subprocess.run(
        java_of(built, "versions.Scenarios", *arguments, options=options),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    print(version, done.stderr)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "scenario"}


@pytest.fixture(scope="module")
def outcomes(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    homes = [tmp_path_factory.mktemp(f"home-{version}") for version in RUN_VERSIONS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(run, [servers] * len(RUN_VERSIONS), RUN_VERSIONS, homes)
        return dict(zip(RUN_VERSIONS, found, strict=True))


@pytest.mark.parametrize(
    ("version", "scenario"), [(each, name) for each in RUN_VERSIONS for name in scenarios(each)]
)
def test_an_application_of_another_version_works_unmodified(
    version: str, scenario: str, outcomes: Outcomes, servers: Servers
) -> None:
    outcome = outcomes[version][scenario]
    if servers.kind == "java" and version >= "5" and scenario in NOT_OF_4_9:
        assert outcome != "ok"
    else:
        assert outcome == "ok"


@pytest.mark.parametrize("version", RUN_VERSIONS)
def test_no_scenario_of_a_version_is_left_out(version: str, outcomes: Outcomes) -> None:
    assert sorted(outcomes[version]) == sorted(scenarios(version))
