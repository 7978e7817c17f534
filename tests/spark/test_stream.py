import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.eventually import wait_until

HERE = Path(__file__).parent
SECONDS_MAX = 240
"""Of what takes some seconds on a machine that does nothing else."""


def numbers_of(spark, folder) -> list[int]:
    rows = spark.read.parquet(str(folder)).select("body").collect()
    return sorted(int(bytes(row.body)) for row in rows)


def run_to_end(stream, folder: Path):
    """Everything that is there now, into Parquet, with a checkpoint beside it."""
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    assert query.awaitTermination(SECONDS_MAX)
    return query


def test_a_restarted_stream_reads_each_record_once(spark, read_stream, topics, topic, tmp_path):
    topics.send_numbers(topic, range(1000))
    run_to_end(read_stream(topic), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(1000))
    topics.send_numbers(topic, range(1000, 1500))
    run_to_end(read_stream(topic), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(1500))
    run_to_end(read_stream(topic), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(1500))


def test_max_offsets_per_trigger_bounds_each_batch(spark, read_stream, topics, topic, tmp_path):
    topics.send_numbers(topic, range(1000))
    query = run_to_end(read_stream(topic).option("maxOffsetsPerTrigger", "300"), tmp_path)
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert [count for count in rows if count] == [300, 300, 300, 100]
    assert numbers_of(spark, tmp_path / "table") == list(range(1000))


def test_a_stream_reads_only_the_tags_asked_for(spark, read_stream, topics, topic, tmp_path):
    from tests.support.clients.spark import Sent

    topics.send(
        topic,
        [Sent(str(n).encode(), properties={"TAGS": "ab"[n % 2]}) for n in range(100)],
    )
    run_to_end(read_stream(topic).option("subExpression", "b"), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(1, 100, 2))


def test_queues_that_appear_later_are_read_from_their_start(
    spark, read_stream, topics, topic, tmp_path
):
    topics.send_numbers(topic, range(40))
    run_to_end(read_stream(topic), tmp_path)
    topics.create(topic, queues=6)
    topics.send_numbers(topic, range(40, 100), queues=6)
    run_to_end(read_stream(topic), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(100))


def test_a_topic_added_to_the_subscription_is_read_from_its_start(
    spark, read_stream, topics, topic, tmp_path
):
    topics.send_numbers(topic, range(40))
    run_to_end(read_stream(topic), tmp_path)
    other = topics.create(f"{topic}-other")
    topics.send_numbers(other, range(40, 60))
    run_to_end(read_stream(f"{topic},{other}"), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(60))


def test_a_running_stream_sees_what_is_sent_meanwhile(read_stream, topics, topic, tmp_path):
    seen: list[int] = []
    arrived = threading.Event()

    def take(frame, batch_id: int) -> None:
        seen.extend(int(bytes(row.body)) for row in frame.select("body").collect())
        if len(seen) >= 300:
            arrived.set()

    query = (
        read_stream(topic)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for first in range(0, 300, 100):
            topics.send_numbers(topic, range(first, first + 100))
        assert arrived.wait(SECONDS_MAX), query.exception()
    finally:
        query.stop()
    assert sorted(seen) == list(range(300))


def test_a_stream_without_starting_offsets_starts_at_the_end(spark, topics, topic, tmp_path):
    topics.send_numbers(topic, range(50))

    def stream():
        made = spark.readStream.format("rocketmq").option("nameServer", topics.namesrv)
        return made.option("subscribe", topic)

    run_to_end(stream(), tmp_path)
    topics.send_numbers(topic, range(50, 70))
    run_to_end(stream(), tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(50, 70))


def test_a_checkpoint_beyond_the_queues_end_is_an_error(read_stream, topics, topic, tmp_path):
    topics.send_numbers(topic, range(8))
    run_to_end(read_stream(topic), tmp_path)
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))[-1]
    offsets.write_text(offsets.read_text().replace('"0": 2', '"0": 9').replace('"0":2', '"0":9'))
    (offsets.parent / f".{offsets.name}.crc").unlink()
    with pytest.raises(StreamingQueryException, match="but the query was at 9"):
        run_to_end(read_stream(topic), tmp_path)


def test_an_end_for_a_stream_is_refused(read_stream, topic, tmp_path):
    with pytest.raises(StreamingQueryException, match="endingOffsets is for batches only"):
        run_to_end(read_stream(topic).option("endingOffsets", "latest"), tmp_path)


def test_a_query_killed_midway_and_restarted_gives_each_record_once(
    spark, spark_environment, read_stream, topics, topic, tmp_path
):
    total, per_batch = 12_000, 400
    topics.send_numbers(topic, range(total))
    output, checkpoint, log = (tmp_path / name for name in ("table", "checkpoint", "log"))
    command = [sys.executable, str(HERE / "kill_me.py"), topics.namesrv, topic]
    command += [str(output), str(checkpoint), str(per_batch), "earliest"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
    try:
        commits = checkpoint / "commits"

        def midway() -> bool:
            assert process.poll() is None, log.read_text()
            return len(list(commits.glob("[0-9]*"))) >= 4

        wait_until(midway, seconds=SECONDS_MAX, what="four micro-batches")
    finally:
        # The JVM and its Python workers die with it, as on a machine that fails.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    assert len(list(commits.glob("[0-9]*"))) < total // per_batch
    run_to_end(read_stream(topic).option("columns", "queueId,queueOffset,body"), tmp_path)
    rows = spark.read.parquet(str(output)).collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(total))
    assert len({(row.queueId, row.queueOffset) for row in rows}) == total
