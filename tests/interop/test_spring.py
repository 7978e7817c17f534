"""A Spring Boot application with RocketMQ's starter, unmodified.

The newest starter runs against our broker; with ``KEROLOX_SOFTWARE=all`` older ones run too, and
all of them against the Java 4.9 broker, which says that what fails there is the client's.
"""

from __future__ import annotations

import subprocess

import pytest

from kerolox.client.sync import Producer
from tests.support.programs import RUN_STARTERS, build_java, java_of
from tests.support.servers.software import RUN_SECONDS_MAX, Servers

pytestmark = [pytest.mark.java, pytest.mark.timeout(900), pytest.mark.xdist_group("java-versions")]

SCENARIOS = "send tags sql92 orderly delay receive transactions request_reply".split()

NOT_OF_4_9 = ("receive",)
"""What the starter's client, one of 5.x, asks with a code that a broker of 4.9 does not know."""

TOPICS = "Plain Tags Sql Orderly Tran Request Receive".split()


@pytest.fixture(scope="module", params=RUN_STARTERS)
def outcomes(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong."""
    version = request.param
    prefix = f"S{version.replace('.', '')}"
    with Producer("spring-topics", servers.namesrv) as producer:
        for topic in TOPICS:
            producer.create_topic(f"{prefix}-{topic}", queues=4)
    arguments = {
        "app.prefix": prefix,
        "rocketmq.name-server": servers.namesrv,
        "rocketmq.producer.group": f"{prefix}-producer",
        "rocketmq.producer.send-message-timeout": "30000",
        "rocketmq.pull-consumer.group": f"{prefix}-receive",
        "rocketmq.pull-consumer.topic": f"{prefix}-Receive",
        "logging.level.root": "WARN",
        "spring.main.banner-mode": "off",
    }
    home = tmp_path_factory.mktemp(f"home-{version}")
    done = subprocess.run(
        java_of(
            build_java(f"spring-{version}"),
            "spring.App",
            *(f"--{name}={value}" for name, value in arguments.items()),
            options=("-Drocketmq.client.logUseSlf4j=true", f"-Duser.home={home}"),
        ),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    print(done.stdout, done.stderr)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "scenario"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_spring_application_works_unmodified(
    scenario: str, outcomes: dict[str, str], servers: Servers
) -> None:
    if servers.kind == "java" and scenario in NOT_OF_4_9:
        assert outcomes[scenario] != "ok"
    else:
        assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)
