import threading

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.clients.spark import SECONDS_OF_SPARK, Sent, needs_limits, read_to_end


def test_a_restarted_stream_reads_each_record_once(spark, read_stream, topics, topic, tmp_path):
    table = str(tmp_path / "table")

    def run() -> list[int]:
        writer = read_stream(topic).load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.start(table).awaitTermination(SECONDS_OF_SPARK)
        return sorted(int(bytes(row.body)) for row in spark.read.parquet(table).collect())

    topics.send_numbers(topic, range(1000))
    assert run() == list(range(1000))
    topics.send_numbers(topic, range(1000, 1500))
    assert run() == list(range(1500))
    assert run() == list(range(1500))


@needs_limits
def test_max_offsets_per_trigger_bounds_each_batch(read_stream, topics, topic, tmp_path):
    topics.send_numbers(topic, range(1000))
    sizes: list[int] = []
    stream = read_stream(topic).option("maxOffsetsPerTrigger", "300")
    assert read_to_end(stream, tmp_path, sizes=sizes) == list(range(1000))
    assert sizes == [300, 300, 300, 100]


def test_a_stream_reads_only_the_tags_asked_for(read_stream, topics, topic, tmp_path):
    topics.send(
        topic,
        [Sent(str(n).encode(), properties={"TAGS": "ab"[n % 2]}) for n in range(100)],
    )
    stream = read_stream(topic).option("subExpression", "b")
    assert read_to_end(stream, tmp_path) == list(range(1, 100, 2))


def test_queues_and_topics_that_appear_later_are_read_from_their_start(
    read_stream, topics, topic, tmp_path
):
    topics.send_numbers(topic, range(40))
    assert read_to_end(read_stream(topic), tmp_path) == list(range(40))
    topics.create(topic, queues=6)
    topics.send_numbers(topic, range(40, 100), queues=6)
    assert read_to_end(read_stream(topic), tmp_path) == list(range(40, 100))
    other = topics.create(f"{topic}-other")
    topics.send_numbers(other, range(100, 120))
    assert read_to_end(read_stream(f"{topic},{other}"), tmp_path) == list(range(100, 120))


def test_messages_in_queues_that_a_topic_lost_are_missed_and_read_when_they_are_back(
    read_stream, topics, topic, tmp_path
):
    topics.send_numbers(topic, range(40))
    assert read_to_end(read_stream(topic), tmp_path) == list(range(40))
    topics.send_numbers(topic, range(40, 80))
    topics.create(topic, queues=1)
    with pytest.raises(StreamingQueryException, match=f"{topic} has no queue 1 on .* any more"):
        read_to_end(read_stream(topic), tmp_path)
    topics.create(topic, queues=4)
    assert read_to_end(read_stream(topic), tmp_path) == list(range(40, 80))


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
        assert arrived.wait(SECONDS_OF_SPARK), query.exception()
    finally:
        query.stop()
    assert sorted(seen) == list(range(300))


def test_a_stream_without_starting_offsets_starts_at_the_end(spark, topics, topic, tmp_path):
    topics.send_numbers(topic, range(50))

    def stream():
        made = spark.readStream.format("rocketmq").option("nameServer", topics.namesrv)
        return made.option("subscribe", topic)

    assert read_to_end(stream(), tmp_path) == []
    topics.send_numbers(topic, range(50, 70))
    assert read_to_end(stream(), tmp_path) == list(range(50, 70))


def test_a_checkpoint_beyond_the_queues_end_is_an_error(read_stream, topics, topic, tmp_path):
    topics.send_numbers(topic, range(8))
    read_to_end(read_stream(topic), tmp_path)
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))[-1]
    offsets.write_text(offsets.read_text().replace('"0": 2', '"0": 9').replace('"0":2', '"0":9'))
    with pytest.raises(StreamingQueryException, match="but the query has seen it end before 9"):
        read_to_end(read_stream(topic), tmp_path)


def test_an_end_for_a_stream_is_refused(read_stream, topic, tmp_path):
    with pytest.raises(StreamingQueryException, match="endingOffsets is for batches only"):
        read_to_end(read_stream(topic).option("endingOffsets", "latest"), tmp_path)
