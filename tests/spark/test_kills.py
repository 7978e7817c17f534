"""Drivers that are killed, and queries that go on from what they left.

``KEROLOX_SPARK_ROUNDS=20`` kills as many.
"""

import json
import os
import uuid
from pathlib import Path

import pytest

from tests.spark.drivers import Driver
from tests.support.clients.spark import Gathered, Sending

ROUNDS = int(os.environ.get("KEROLOX_SPARK_ROUNDS", "0"))
KILLS = ROUNDS or 1

pytestmark = pytest.mark.timeout(1200 + 90 * ROUNDS)


@pytest.fixture(scope="module")
def sending(topics):
    """Sends to a topic as long as the tests of this module run."""
    with Sending(topics.broker, topics.create(f"kills-{uuid.uuid4().hex[:12]}")) as sending:
        yield sending


@pytest.fixture(scope="module")
def killed(spark_environment, topics, sending, tmp_path_factory):
    """The folder that each killed driver left."""
    folders = [tmp_path_factory.mktemp("killed") for _ in range(KILLS)]
    for folder in folders:
        kill_a_driver(topics.namesrv, sending.topic, folder)
    return folders


def commits(folder: Path, name: str) -> int:
    return len(list((folder / name / "checkpoint" / "commits").glob("[0-9]*")))


def kill_a_driver(namesrv: str, busy: str, folder: Path) -> None:
    """Start one, and kill it in two first batches."""
    stuck = folder / "stuck"
    with Driver("tests.spark.kill_me", namesrv, busy, folder, log=folder / "log") as driver:
        driver.wait_for(stuck.exists, "first batches that are stuck")
    assert commits(folder, "latest") == commits(folder, "earliest") == 0


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_driver_killed_in_its_first_batch_starts_again(start, sending, killed, starting):
    for folder in killed:
        checkpoint = folder / starting / "checkpoint"
        document = (checkpoint / "offsets" / "0").read_text().splitlines()[-1]
        gathered = Gathered()
        with start(sending.topic, checkpoint, gathered.take, startingOffsets=starting) as query:
            gathered.catch_up(query, sending)
        [begun] = json.loads(document)["starts"][sending.topic].values()
        begun = {int(queue_id): max(offset, 0) for queue_id, offset in begun.items()}
        assert gathered.first() == begun
