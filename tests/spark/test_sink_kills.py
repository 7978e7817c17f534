"""Drivers that are killed at each step of a transactional batch, and queries that go on.

``KEROLOX_SOFTWARE=all`` kills 21, three at each step, and reads what was written by the Java client
as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.sink_kill_me import STEPS, copying
from tests.spark.sink_reading import Watch, java_bodies
from tests.support.clients.spark import SECONDS_OF_SPARK, needs_limits
from tests.support.programs import RUNS_ALL

HERE = Path(__file__).parent
KILLED = [step for step in STEPS for _ in range(3)] if RUNS_ALL else ["end"]
TOTAL = 600
PER_BATCH = 200

pytestmark = [pytest.mark.timeout(900), *([pytest.mark.java] if RUNS_ALL else [])]


def run_to_its_death(namesrv: str, origin: str, target: str, folder: Path, step: str) -> None:
    command = [sys.executable, str(HERE / "sink_kill_me.py")]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ["PYTHONPATH"]])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, namesrv, origin, target, str(folder), step],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path},
        )
    try:
        process.wait(2 * SECONDS_OF_SPARK)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    assert process.returncode == -signal.SIGKILL, (folder / "log").read_text()


@needs_limits
@pytest.mark.parametrize("step", KILLED)
def test_a_driver_that_dies_at_a_step_writes_each_row_once(
    spark, topics, topic, read, tmp_path, step
):
    origin = topics.create(f"origin-{uuid.uuid4().hex[:12]}", queues=2)
    topics.send_numbers(origin, range(TOTAL), queues=2)

    def written() -> list[int]:
        return sorted(int(bytes(row.body)) for row in read(topic).load().collect())

    decisions = tmp_path / "checkpoint" / "kerolox-sink"
    with Watch(topics.broker, topic, decisions, per_batch=PER_BATCH) as watch:
        run_to_its_death(topics.namesrv, origin, topic, tmp_path, step)
    assert not watch.early
    seen = written()
    assert len(set(seen)) == len(seen)
    assert len(seen) < TOTAL
    if step in ("write", "before-decide", "decide"):
        # The batch that was killed is not seen before it is decided, nor before it is ended.
        assert len(seen) == PER_BATCH
    checkpoint = str(tmp_path / "checkpoint")
    query = copying(spark, topics.namesrv, origin, topic, checkpoint).format("rocketmq").start()
    assert query.awaitTermination(SECONDS_OF_SPARK)
    assert written() == list(range(TOTAL))
    if RUNS_ALL:
        assert sorted(map(int, java_bodies(topics.namesrv, topic))) == list(range(TOTAL))
