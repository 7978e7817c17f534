"""A Node.js client of 4.x, ali-ons 3.12, unmodified, against our name server and broker."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import Producer, PullConsumer
from kerolox.message import Message
from tests.support.eventually import wait_until
from tests.support.programs import build_node_clients
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.node, pytest.mark.timeout(600), pytest.mark.xdist_group("node")]

SCENARIOS = (
    "send properties compressed tags sql92 delay timed retry_to_dlq broadcast two_members "
    "from_last from_timestamp in_order reset_offline resumes"
).split()

TOPICS = (
    "Send Props Big Tags Sql Delay Timed Retry Broadcast Share Last Time Order Reset Resume".split()
)
"""This client sends to topics that are there; it does not ask for new ones."""

SETTINGS = {
    "enablePropertyFilter": "true",
    # All that is stored counts as cold, so that new groups start where their clients want.
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s " * 17 + "3s",
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def reset(producer: Producer, up: Up, group: str, topic: str) -> None:
    """Put a group that is not online, and had read all, back to a time between messages."""
    with PullConsumer(group, up.namesrv) as consumer:
        queues = consumer.queues(topic)

        def send(prefix: str) -> list[str]:
            return [
                producer.send(
                    Message(topic, b"%s%d" % (prefix.encode(), number)), queue=queue
                ).offset_message_id
                for number, queue in enumerate((*queues, *queues))
            ]

        send("old")
        sent_ms = now_ms()
        # The offset of a time is that of the message nearest to it.
        wait_until(lambda: now_ms() >= sent_ms + 200, what="a time nearer to the later ones")
        later = [consumer.view_by_id(topic, each) for each in send("later")]
        for queue in queues:
            consumer.commit(queue, consumer.max_offset(queue))
        for queue, first in zip(queues, later, strict=False):
            consumer.commit(queue, consumer.offset_by_time(queue, first.store_timestamp - 1))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong; all of them in one process, and at once."""
    program: Path = build_node_clients()
    with Up(tmp_path_factory.mktemp("node"), settings=SETTINGS) as up:
        with Producer("node-topics", up.namesrv) as producer:
            for topic in TOPICS:
                producer.create_topic(f"Node{topic}", queues=4)
            reset(producer, up, "node-reset", "NodeReset")
        command = ["node", str(program), up.namesrv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
    assert rows, f"nothing ran:\n{done.stdout}\n{done.stderr}"
    print(done.stderr)
    return {name: outcome for _, name, outcome in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_node_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)
