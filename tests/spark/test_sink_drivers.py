"""Drivers of the sink, without Spark, that are killed at each step of a transactional batch.

``KEROLOX_SOFTWARE=all`` kills 21, three at each step.
"""

from __future__ import annotations

import pytest

from tests.spark.drivers import Driver, run_to_its_death
from tests.spark.sink_kill_me import STEPS
from tests.spark.sink_plain_driver import BATCHES, PER_BATCH
from tests.spark.sink_reading import Watch, numbers_of
from tests.support.clients.patient import PatientConnection
from tests.support.programs import RUNS_ALL

KILLED = [step for step in STEPS for _ in range(3 if RUNS_ALL else 1)]
PROGRAM = "tests.spark.sink_plain_driver"
OF_IT = ("pyarrow", "kerolox.spark.sink.job", "tests.spark.sink_kill_me")
"""What it imports, most of its time."""


@pytest.mark.parametrize("step", KILLED)
def test_a_plain_driver_that_dies_at_a_step_writes_each_row_once(
    spark_environment, topics, topic, tmp_path, step
):
    decisions = tmp_path / "kerolox-sink"
    places, log = (topics.namesrv, topic, tmp_path), tmp_path / "log"
    with Watch(topics.broker, topic, decisions, per_batch=PER_BATCH) as watch:
        run_to_its_death(PROGRAM, *places, step, log=log, preloaded=OF_IT)
        with PatientConnection(topics.broker) as connection:
            seen = numbers_of(connection, topic)
        assert len(set(seen)) == len(seen)
        if step in ("write", "before-decide", "decide"):
            # The batch that was killed is not seen before it is decided, nor before it is ended.
            assert seen == list(range(PER_BATCH))
        else:
            assert PER_BATCH < len(seen) <= 2 * PER_BATCH
        with Driver(PROGRAM, *places, "none", log=log, preloaded=OF_IT) as driver:
            driver.wait()
        with PatientConnection(topics.broker) as connection:
            assert numbers_of(connection, topic) == list(range(BATCHES * PER_BATCH))
    assert not watch.early
