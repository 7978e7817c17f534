"""Archives whose driver is killed, and which go on: each message once, then queried and replayed.

One driver of a Parquet archive is killed. ``KEROLOX_SOFTWARE=all`` kills ten of each format, twice
at each step of a batch, and a driver at each step of a replay.
"""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from kerolox.spark.jobs.archive import archive
from kerolox.spark.jobs.replay import ReplayOptions, replay
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from tests.spark.archive_me import options_in
from tests.spark.drivers import run_to_its_death
from tests.spark.dying import STEPS_OF_ARCHIVE, STEPS_OF_REPLAY
from tests.spark.replay_me import options_of
from tests.spark.test_archive import FORMATS, rows_of
from tests.support.clients.spark import needs_limits
from tests.support.programs import RUNS_ALL

STEPS = STEPS_OF_ARCHIVE * 2 if RUNS_ALL else ("placing",)
PER_BATCH = 100
TOTAL = PER_BATCH * (len(STEPS) + 2)

pytestmark = [
    # The session of the tests beside it is asked for when the drivers are dead.
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900 + 100 * len(STEPS)),
    # PySpark's own remark on the versions of what it needs.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning"),
]


def bodies(rows) -> Counter[int]:
    return Counter(int(bytes(row["body"])) for row in rows)


@needs_limits
@pytest.mark.parametrize("format", FORMATS if RUNS_ALL else ["parquet"])
def test_an_archive_killed_and_resumed_has_each_message_once(
    spark_environment, topics, topic, request, tmp_path, format
):
    # Of two topics, so that a batch has more than one file.
    names = topic, topics.create(f"{topic}-other", queues=2)
    for first, name in enumerate(names):
        topics.send_numbers(name, range(first, TOTAL, 2), queues=2)
    for step in STEPS:
        places = topics.namesrv, tmp_path, PER_BATCH, format, step, *names
        run_to_its_death("tests.spark.archive_me", *places, log=tmp_path / "log")
    spark, read = request.getfixturevalue("spark"), request.getfixturevalue("read")
    options = options_in(tmp_path, format, topics.namesrv, names, PER_BATCH)
    summary = archive(spark, options)
    once = Counter(range(TOTAL))
    assert summary.rows_in_all == TOTAL
    assert summary.rows > 0
    assert bodies(rows_of(spark, options)) == once
    again = ReplayOptions(
        name_server=topics.namesrv,
        from_archive=options.to,
        format=format,
        catalog=options.catalog,
        to_topic=topics.create(f"again-{uuid.uuid4().hex[:12]}"),
    )
    assert replay(spark, again).rows == TOTAL
    assert bodies(read(again.to_topic).load().collect()) == once


@pytest.mark.skipif(HAS_READ_LIMITS, reason="of PySpark 4.1 alone")
def test_on_pyspark_4_1_an_archive_that_was_killed_is_whole_after_one_run(
    spark, topics, topic, tmp_path
):
    options = options_in(tmp_path, "parquet", topics.namesrv, (topic,), PER_BATCH)
    topics.send_numbers(topic, range(PER_BATCH))
    assert archive(spark, options).rows == PER_BATCH
    topics.send_numbers(topic, range(PER_BATCH, 2 * PER_BATCH))
    places = topics.namesrv, tmp_path, PER_BATCH, "parquet", "placing", topic
    run_to_its_death("tests.spark.archive_me", *places, log=tmp_path / "log")
    topics.send_numbers(topic, range(2 * PER_BATCH, 3 * PER_BATCH))
    assert archive(spark, options).rows_in_all == 3 * PER_BATCH
    assert bodies(rows_of(spark, options)) == Counter(range(3 * PER_BATCH))


@pytest.mark.skipif(not RUNS_ALL, reason="a driver for each step; KEROLOX_SOFTWARE=all runs it")
def test_a_replay_killed_at_each_step_sends_each_row_once(spark, topics, topic, read, tmp_path):
    count = 100 * (len(STEPS_OF_REPLAY) + 1)
    origin = topics.create(f"origin-{uuid.uuid4().hex[:12]}")
    topics.send_numbers(origin, range(count))
    places = topics.namesrv, origin, topic, str(tmp_path / "state")
    for step in STEPS_OF_REPLAY:
        run_to_its_death("tests.spark.replay_me", *places, 100, step, log=tmp_path / "log")
        seen = bodies(read(topic).load().collect())
        assert set(seen.values()) <= {1}, step
    summary = replay(spark, options_of(*places, rows=100))
    assert (summary.rows, summary.units) == (count, len(STEPS_OF_REPLAY) + 1)
    assert bodies(read(topic).load().collect()) == Counter(range(count))
