"""What is read, and where reading starts and ends: patterns, queues, times, offsets of a group."""

import uuid

import pytest
from pyspark.errors import AnalysisException

from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import SECONDS_OF_SPARK, limited, needs_limits, read_to_end
from tests.support.eventually import SECONDS_MAX, wait_until


def numbers(frame) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def committed(topics, group: str, topic: str) -> dict[int, int]:
    """The offsets of a group at the broker, by queue id."""
    found = {}
    with PatientConnection(topics.broker) as connection:
        for queue_id in range(4):
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            answer = connection.invoke(request, SECONDS_MAX)
            if answer.code == ResponseCode.SUCCESS:
                found[queue_id] = int(answer.ext_fields["offset"])
    return found


def test_a_batch_lies_between_two_times(read, topics, topic):
    for first in range(0, 400, 100):
        topics.send_numbers(topic, range(first, first + 100))
    rows = read(topic).load().select("body", "storeTimestamp").collect()
    times = {int(bytes(row.body)): round(row.storeTimestamp.timestamp() * 1000) for row in rows}
    start, end = times[120], times[333]
    frame = read(topic).options(startingTimestamp=start, endingTimestamp=end).load()
    assert numbers(frame) == sorted(n for n, time in times.items() if start <= time < end)
    frame = read(topic).option("startingTimestamp", max(times.values()) + 1).load()
    assert numbers(frame) == []


def test_topics_of_a_pattern_and_single_queues_are_read(spark, topics):
    prefix = f"pattern-{uuid.uuid4().hex[:12]}"
    for number, name in enumerate(("a", "b", "ab")):
        topics.create(f"{prefix}-{name}")
        topics.send_numbers(f"{prefix}-{name}", range(100 * number, 100 * number + 8))
    source = spark.read.format("rocketmq").option("nameServer", topics.namesrv)
    frame = source.option("subscribePattern", f"{prefix}-[ab]").load()
    rows = frame.select("body", "topic", "brokerName").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == [*range(8), *range(100, 108)]
    assert {row.topic for row in rows} == {f"{prefix}-a", f"{prefix}-b"}
    [broker] = {row.brokerName for row in rows}
    source = spark.read.format("rocketmq").option("nameServer", topics.namesrv)
    frame = source.option("assign", f'{{"{prefix}-a":{{"{broker}":[1,3]}}}}').load()
    assert numbers(frame) == [1, 3, 5, 7]


@needs_limits
def test_a_stream_goes_on_where_a_group_was_and_stores_where_it_is(
    spark, read_stream, topics, topic, tmp_path
):
    group = f"group-{uuid.uuid4().hex[:12]}"
    topics.send_numbers(topic, range(400))
    options = {"consumerGroup": group, "commitGroupOffsets": "true"}

    def stream(**more: str):
        return read_stream(topic).options(**options, **more)

    assert read_to_end(stream(**limited(maxOffsetsPerTrigger="150")), tmp_path / "1") == list(
        range(400)
    )
    assert committed(topics, group, topic) == dict.fromkeys(range(4), 100)
    topics.send_numbers(topic, range(400, 440))
    made = stream(startingOffsets="group")
    assert read_to_end(made, tmp_path / "2") == list(range(400, 440))
    assert committed(topics, group, topic) == dict.fromkeys(range(4), 110)
    frame = spark.read.format("rocketmq").option("nameServer", topics.namesrv)
    frame = frame.options(subscribe=topic, startingOffsets="group", consumerGroup=group).load()
    assert numbers(frame) == []


@pytest.mark.skipif(HAS_READ_LIMITS, reason="of PySpark 4.1 alone")
def test_pyspark_4_1_stores_the_end_of_a_run_in_the_next_one(read_stream, topics, topic, tmp_path):
    group = f"group-{uuid.uuid4().hex[:12]}"
    stream = read_stream(topic).options(consumerGroup=group, commitGroupOffsets="true")
    topics.send_numbers(topic, range(400))
    assert read_to_end(stream, tmp_path) == list(range(400))
    topics.send_numbers(topic, range(400, 440))
    assert read_to_end(stream, tmp_path) == list(range(400, 440))
    assert committed(topics, group, topic) == dict.fromkeys(range(4), 100)


@pytest.mark.skipif(HAS_READ_LIMITS, reason="of PySpark 4.1 alone")
def test_pyspark_4_1_says_what_it_lacks(spark, read_stream, topics, topic, tmp_path):
    from kerolox.spark import lag

    bounded = read_stream(topic).option("maxOffsetsPerTrigger", "5")
    store = spark.readStream.format("rocketmq-store").option("maxBytesPerTrigger", "8k")
    for option, stream in (
        ("maxOffsetsPerTrigger", bounded.load()),
        ("maxBytesPerTrigger", store.load(str(tmp_path))),
    ):
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / option))
        with pytest.raises(Exception, match=f"option {option} needs PySpark 4.2 or newer"):
            writer.start().awaitTermination(SECONDS_OF_SPARK)
    topics.send_numbers(topic, range(4))
    writer = read_stream(topic).load().writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "lag")).start()
    assert query.awaitTermination(SECONDS_OF_SPARK)
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [4]
    assert lag(query.lastProgress) == {}


def test_partitions_have_a_size_and_topics_a_namespace(read, topics, topic):
    topics.create(f"ns%{topic}")
    topics.send_numbers(f"ns%{topic}", range(40))
    frame = read(topic).options(namespace="ns", maxRecordsPerPartition=7).load()
    assert frame.rdd.getNumPartitions() == 6
    rows = frame.select("body", "topic").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(40))
    assert {row.topic for row in rows} == {topic}


@needs_limits
def test_lag_and_rates_of_a_query_are_told(spark, read_stream, topics, topic, tmp_path):
    from kerolox.spark import ProgressListener, lag

    topics.send_numbers(topic, range(400))
    listener = ProgressListener(log_seconds=0)
    spark.streams.addListener(listener)
    try:
        stream = read_stream(topic).option("maxOffsetsPerTrigger", "100").load()
        writer = stream.writeStream.format("noop").queryName(topic).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(SECONDS_OF_SPARK)
        progresses = [each for each in query.recentProgress if each.numInputRows]
        behind = [sum(lag(each).values()) for each in progresses]
        assert behind == [300, 200, 100, 0]
        assert {queue.topic for queue in lag(progresses[0])} == {topic}
        assert all(isinstance(queue, MessageQueue) for queue in lag(progresses[0]))

        def told() -> bool:
            figures = listener.figures.get(str(query.id))
            return figures is not None and (figures.name, figures.behind) == (topic, 0)

        wait_until(told, seconds=SECONDS_OF_SPARK, what="the figures of the last batch")
    finally:
        spark.streams.removeListener(listener)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingTimestamp": "soon"}, "option startingTimestamp='soon' must be milliseconds"),
        ({"assign": "{}"}, "option assign and subscribe exclude each other"),
        ({"minPartitions": "0"}, "option minPartitions='0' must be a whole number from 1 up"),
    ],
)
def test_a_wrong_option_is_an_error_at_planning_that_names_it(read, topic, options, text):
    with pytest.raises(AnalysisException, match=text):
        read(topic).options(**options).load()
