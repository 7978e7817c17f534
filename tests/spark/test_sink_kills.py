"""Drivers that are killed at each step of a transactional batch, and queries that go on.

``KEROLOX_SOFTWARE=all`` kills 21, three at each step, and reads what was written by the Java client
as well; and two whose brokers, ours and Java's, have set halves aside when the query goes on.
"""

from __future__ import annotations

import uuid

import pytest

from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC
from tests.spark.drivers import run_to_its_death
from tests.spark.sink_kill_me import STEPS, copying
from tests.spark.sink_reading import Watch, java_bodies, numbers_of
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import SECONDS_OF_SPARK, Topics, needs_limits
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL
from tests.support.servers.clusters import often_asking

KILLED = [step for step in STEPS for _ in range(3)] if RUNS_ALL else ["end"]
TOTAL = 600
PER_BATCH = 200

pytestmark = [pytest.mark.timeout(900), *([pytest.mark.java] if RUNS_ALL else [])]


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
        places = topics.namesrv, origin, topic, tmp_path
        run_to_its_death("tests.spark.sink_kill_me", *places, step, log=tmp_path / "log")
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


@needs_limits
@pytest.mark.skipif(not RUNS_ALL, reason="with KEROLOX_SOFTWARE=all")
@pytest.mark.parametrize("kind", ["ours", "java"])
def test_a_driver_that_is_away_for_longer_than_all_checks_writes_each_row_once(
    spark, tmp_path, kind
):
    with often_asking(kind, tmp_path / "servers") as cluster:
        topics = Topics(cluster.name_server, cluster.broker)
        origin, target = topics.create("origin", queues=2), topics.create("target")
        topics.send_numbers(origin, range(TOTAL), queues=2)
        places = cluster.name_server, origin, target, tmp_path
        run_to_its_death("tests.spark.sink_kill_me", *places, "decide", log=tmp_path / "log")
        decided = set(range(PER_BATCH, 2 * PER_BATCH))
        with PatientConnection(cluster.broker) as connection:
            wait_until(
                lambda: decided <= {*numbers_of(connection, CHECK_MAX_TIME_TOPIC, queues=1)},
                seconds=SECONDS_OF_SPARK,
                what="halves of the batch that the broker has set aside",
            )
            assert numbers_of(connection, target) == list(range(PER_BATCH))
            copy = copying(spark, *places[:3], str(tmp_path / "checkpoint"))
            assert copy.format("rocketmq").start().awaitTermination(SECONDS_OF_SPARK)
            wait_until(lambda: len(numbers_of(connection, target)) >= TOTAL, what="all rows")
            assert numbers_of(connection, target) == list(range(TOTAL))
