"""``format("rocketmq-store")`` in a Spark session: found, planned, read, streamed, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.spark import needs_limits
from tests.support.stores.golden import copy_golden
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 300
COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body,properties,size"


def fill(folder: Path, count: int) -> None:
    with opened(small_settings(folder)) as store:
        for number in range(count):
            topic = "T" if number % 50 else "Rare"
            text = b"TAGS\x01t%d\x02KEYS\x01k%d" % (number % 3, number)
            put(store, topic, number % 2, b"%d " % number * 120, text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    fill(folder, MESSAGES)
    return folder / "store"


def test_a_store_is_a_table(spark: SparkSession, made: Path) -> None:
    reader = spark.read.format("rocketmq-store").option("splitBytes", "64k")
    frame = reader.option("columns", COLUMNS).load(str(made))
    assert frame.columns == COLUMNS.split(",")
    rows = frame.collect()
    assert len(rows) == MESSAGES
    by_key = {row.keys: row for row in rows if row.topic == "T"}
    assert by_key["k7"].body == b"7 " * 120
    assert by_key["k7"].properties == {"TAGS": "t1", "KEYS": "k7"}
    rare = spark.read.format("rocketmq-store").option("subscribe", "Rare").load(str(made))
    assert rare.count() == MESSAGES // 50
    assert rare.columns[:2] == ["topic", "brokerName"]
    both = spark.read.format("rocketmq-store").schema("size INT, crcOk BOOLEAN")
    counted = both.option("brokerName", "a").load(str(made)).groupBy("crcOk").count().collect()
    assert [(row.crcOk, row["count"]) for row in counted] == [(True, MESSAGES)]


def test_the_java_broker_s_store_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    frame = spark.read.format("rocketmq-store").option("includeSystemTopics", "true")
    frame = frame.option("columns", "topic,queueId,queueOffset").load(str(golden.folder / "store"))
    found = {tuple(row) for row in frame.collect()}
    wanted = {(m["topic"], m["queueId"], m["queueOffset"]) for m in golden.messages()}
    assert wanted <= found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "{}/nothing"}, "is not there; give the folder that storePathRootDir names"),
        ({"path": "{}/consumequeue"}, "is no store: it has no folder commitlog"),
        ({"path": "{}", "subscribe": "Tee"}, "has no topic 'Tee'"),
        ({"path": "{}", "splitbyte": "1m"}, "did you mean splitBytes"),
        ({"path": "{}", "columns": "bodi"}, "did you mean body"),
    ],
)
def test_what_is_wrong_is_said_at_planning(
    spark: SparkSession, made: Path, options: dict[str, str], words: str
) -> None:
    given = {name: text.format(made) for name, text in options.items()}
    with pytest.raises(Exception, match=words) as caught:
        spark.read.format("rocketmq-store").options(**given).load().collect()
    assert "Traceback" not in str(caught.value)
    stream = spark.readStream.format("rocketmq-store").options(**given)
    if "subscribe" not in given:
        with pytest.raises(Exception, match=words):
            run(stream.load(), [], made.parent / "wrong")


def run(frame: DataFrame, batches: list[list[Any]], checkpoint: Path, failing: int = -1) -> None:
    def take(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if number == failing:
            raise RuntimeError("failing on purpose")
        batches.append(rows)

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@needs_limits
def test_a_growing_store_is_a_stream_that_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path, 100)

    def stream() -> DataFrame:
        reader = spark.readStream.format("rocketmq-store").option("columns", "keys,size")
        return reader.option("maxBytesPerTrigger", "20k").load(str(tmp_path / "store"))

    batches: list[list[Any]] = []
    with pytest.raises(Exception, match="failing on purpose"):
        run(stream(), batches, tmp_path / "checkpoint", failing=1)
    fill(tmp_path, 60)
    run(stream(), batches, tmp_path / "checkpoint")
    keys = [row["keys"] for batch in batches for row in batch]
    assert keys == [f"k{number}" for number in (*range(100), *range(60))]
    assert all(sum(row["size"] for row in batch) <= 20 * 1024 for batch in batches)
    assert len(batches) > 2
    run(stream(), batches, tmp_path / "checkpoint")
    assert len([row for batch in batches for row in batch]) == 160
