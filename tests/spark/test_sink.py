"""Rows written by Spark, as a batch and as a stream."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql import functions as F

from kerolox.spark.sink.transactions.decisions import store_at
from tests.support.clients.spark import SECONDS_OF_SPARK, limited


@pytest.fixture
def write(topics):
    """A batch writer of rows, options still open."""

    def writer(frame, topic, **given):
        made = frame.write.format("rocketmq").mode("append").option("nameServer", topics.namesrv)
        return made.options(topic=topic, **given)

    return writer


@pytest.fixture
def bodies(read):
    def texts(topic: str) -> list[str]:
        return sorted(bytes(row.body).decode() for row in read(topic).load().collect())

    return texts


def numbers(spark, count: int, partitions: int = 2):
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def expected(count: int) -> list[str]:
    return sorted(str(n) for n in range(count))


def test_each_row_of_a_batch_is_one_message_with_all_it_says(spark, write, read, topic):
    frame = spark.range(0, 5000, 1, 2).select(
        F.concat(F.lit("body-"), "id").alias("body"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.array(F.concat(F.lit("k"), "id"), F.lit("all")).alias("keys"),
        F.create_map(F.lit("number"), F.col("id").cast("string")).alias("properties"),
        F.col("id").cast("int").alias("flag"),
    )
    write(frame, topic).save()
    rows = {row.flag: row for row in read(topic).load().collect()}
    assert sorted(rows) == list(range(5000))
    for number, row in rows.items():
        assert bytes(row.body).decode() == f"body-{number}"
        assert row.tags == (None if number % 2 else "even")
        assert row["keys"] == f"k{number} all"
        assert row.properties["number"] == str(number)
        assert row.uniqKey
    assert len({row.uniqKey for row in rows.values()}) == 5000


def test_what_can_not_be_written_is_told_at_planning(spark, write, topic):
    frame = numbers(spark, 1)
    for writer, text in (
        (write(frame, topic, tagz="a"), "no option 'tagz'; did you mean tags"),
        (write(frame.withColumnRenamed("body", "bdy"), topic), "did you mean body"),
        (write(frame, topic).mode("overwrite"), "can't be overwritten; write with mode"),
        (write(frame, topic, transactional="true"), "option transactionLocation is missing"),
    ):
        with pytest.raises(Exception, match=text):
            writer.save()


def test_an_illegal_row_is_told_with_partition_and_number(spark, write, topic, bodies):
    frame = spark.range(0, 100, 1, 1).select(
        F.when(F.col("id") != 77, "x").otherwise("").alias("body")
    )
    with pytest.raises(Exception, match="partition 0: row 77: the body is empty"):
        write(frame, topic).save()
    assert bodies(topic) == []


def test_a_transactional_batch_is_written_once_under_its_name(
    spark, write, topic, bodies, tmp_path
):
    given = {
        "transactional": "true",
        "transactionLocation": str(tmp_path),
        "transactionId": uuid.uuid4().hex,
    }
    write(numbers(spark, 1000), topic, **given).save()
    assert bodies(topic) == expected(1000)
    write(numbers(spark, 1000), topic, **given).save()
    assert bodies(topic) == expected(1000)


def test_a_failed_task_leaves_nothing_of_a_transactional_batch(
    spark, write, topic, bodies, tmp_path
):
    frame = spark.range(0, 100, 1, 2).select(
        F.when(F.col("id") != 77, F.col("id").cast("string")).otherwise("").alias("body")
    )
    given = {
        "transactional": "true",
        "transactionLocation": str(tmp_path),
        "transactionId": "a",
    }
    with pytest.raises(Exception, match="row 27: the body is empty"):
        write(frame, topic, **given).save()
    assert bodies(topic) == []
    write(numbers(spark, 100), topic, **given).save()
    assert bodies(topic) == expected(100)


@pytest.mark.parametrize("transactional", ["false", "true"])
def test_a_stream_writes_each_row_once(
    spark, topics, topic, bodies, read_stream, tmp_path, transactional
):
    origin = topics.create(f"origin-{uuid.uuid4().hex[:12]}", queues=2)
    topics.send_numbers(origin, range(600), queues=2)
    stream = (
        read_stream(origin).options(**limited(maxOffsetsPerTrigger="200")).load().select("body")
    )
    writer = stream.writeStream.format("rocketmq").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).options(
        nameServer=topics.namesrv, topic=topic, transactional=transactional
    )
    for count in (600, 900):
        query = writer.start()
        assert query.awaitTermination(SECONDS_OF_SPARK)
        assert bodies(topic) == expected(count)
        topics.send_numbers(origin, range(600, 900), queues=2)
    folder = tmp_path / "c" / "kerolox-sink"
    assert folder.exists() == (transactional == "true")
    if folder.exists():
        store = store_at(str(folder))
        assert store.undone(100) == []
        assert store.done(0) is not None


def test_a_stream_in_complete_mode_is_refused(spark, topics, topic, read_stream, tmp_path):
    stream = read_stream(topic).load().groupBy(F.col("tags").alias("body")).count()
    writer = stream.select("body").writeStream.format("rocketmq").outputMode("complete")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(Exception, match="can't be overwritten; write with outputMode"):
        writer.options(nameServer=topics.namesrv, topic=topic).start().awaitTermination(
            SECONDS_OF_SPARK
        )
