"""Drivers that are killed, and queries that go on from what they left.

``KEROLOX_SPARK_ROUNDS=20`` kills as many.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.clients.spark import SECONDS_OF_SPARK, Gathered, Sending
from tests.support.eventually import wait_until

HERE = Path(__file__).parent
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
    log, stuck = folder / "log", folder / "stuck"
    command = [sys.executable, str(HERE / "kill_me.py"), namesrv, busy, str(folder)]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ["PYTHONPATH"]])

    while not stuck.exists():
        stuck.unlink(missing_ok=True)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )
        try:
            wait_until(
                lambda p=process: stuck.exists() or p.poll() is not None,
                seconds=2 * SECONDS_OF_SPARK,
                what="first batches that are stuck",
            )
            # Spark gives a Python process ten seconds to start: then another driver has to do it.
            assert stuck.exists() or "Python worker failed to connect back" in log.read_text(), (
                log.read_text()
            )
        finally:
            # The JVM and its Python workers die with it, as on a machine that fails.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
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
