"""Drivers of the sink, without Spark, that are killed at each step of a transactional batch.

``KEROLOX_SOFTWARE=all`` kills 21, three at each step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox.remoting.blocking import BlockingConnection
from tests.spark.sink_kill_me import STEPS
from tests.spark.sink_plain_driver import BATCHES, PER_BATCH
from tests.spark.sink_reading import Watch, numbers_of
from tests.support.programs import RUNS_ALL

HERE = Path(__file__).parent
KILLED = [step for step in STEPS for _ in range(3 if RUNS_ALL else 1)]
SECONDS_MAX = 240


def drive(namesrv: str, topic: str, folder: Path, step: str) -> int:
    """The exit status of a driver."""
    program = [sys.executable, str(HERE / "sink_plain_driver.py"), namesrv, topic, str(folder)]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [*program, step],
        capture_output=True,
        start_new_session=True,
        timeout=SECONDS_MAX,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


@pytest.mark.parametrize("step", KILLED)
def test_a_plain_driver_that_dies_at_a_step_writes_each_row_once(
    spark_environment, topics, topic, tmp_path, step
):
    decisions = tmp_path / "kerolox-sink"
    with Watch(topics.broker, topic, decisions, per_batch=PER_BATCH) as watch:
        assert drive(topics.namesrv, topic, tmp_path, step) == -signal.SIGKILL
        with BlockingConnection(topics.broker) as connection:
            seen = numbers_of(connection, topic)
        assert len(set(seen)) == len(seen)
        if step in ("write", "before-decide", "decide"):
            # The batch that was killed is not seen before it is decided, nor before it is ended.
            assert seen == list(range(PER_BATCH))
        else:
            assert PER_BATCH < len(seen) <= 2 * PER_BATCH
        assert drive(topics.namesrv, topic, tmp_path, "none") == 0
        with BlockingConnection(topics.broker) as connection:
            assert numbers_of(connection, topic) == list(range(BATCHES * PER_BATCH))
    assert not watch.early
