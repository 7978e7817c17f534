import json
import zlib
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from kerolox.message import MessageId
from kerolox.spark.rows.schema import COLUMNS
from tests.support.clients.spark import Sent, now_ms
from tests.support.servers.up import deaf_address


def bodies(frame) -> list[bytes]:
    return sorted(bytes(row.body) for row in frame.select("body").collect())


def numbers(frame) -> list[int]:
    return sorted(int(body) for body in bodies(frame))


def test_times_of_birth_that_no_calendar_has_are_collected_as_the_nearest(read, topics, topic):
    times = [0, -1, -(2**63), 2**63 - 1]
    topics.send(topic, [Sent(b"%d" % n, born_timestamp=ms) for n, ms in enumerate(times)])
    frame = read(topic).load().selectExpr("CAST(body AS STRING) AS n", "bornTimestamp")
    rows = {int(row.n): row.bornTimestamp.astimezone(UTC) for row in frame.collect()}
    assert rows == {
        0: datetime(1970, 1, 1, tzinfo=UTC),
        1: datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        2: datetime(1678, 1, 1, tzinfo=UTC),
        3: datetime(2261, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    }
    assert sorted(frame.toPandas()["bornTimestamp"].dt.year) == [1678, 1969, 1970, 2261]


def test_every_column_of_a_batch_is_what_was_sent(read, topics, topic):
    long_body = b"compress me " * 400
    before = now_ms()
    sent = topics.send(
        topic,
        [
            Sent(b"plain", queue_id=0),
            Sent(
                b"all",
                queue_id=1,
                flag=-7,
                properties={"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "U" * 32, "city": "Žilina"},
                reconsume_times=3,
            ),
            Sent(
                long_body,
                queue_id=1,
                sys_flag=1,
                wire_body=zlib.compress(long_body),
                properties={"TAGS": "b"},
            ),
            Sent(bytes(range(256)), queue_id=3, born_timestamp=0),
        ],
    )
    rows = read(topic).load().collect()
    by_id = {row.msgId: row for row in rows}
    assert len(rows) == len(by_id) == len(sent)
    for each in sent:
        row = by_id[each.message_id]
        host, port, physical_offset = MessageId.parse(each.message_id)
        assert row.topic == topic
        assert row.brokerName
        assert (row.queueId, row.queueOffset) == (each.queue_id, each.queue_offset)
        assert row.commitLogOffset == physical_offset
        assert row.storeHost == f"{host}:{port}"
        assert row.bornHost.startswith("127.0.0.1:")
        assert row.bornTimestamp.astimezone(UTC) == datetime.fromtimestamp(
            each.born_timestamp / 1000, UTC
        )
        assert before <= row.storeTimestamp.timestamp() * 1000 <= now_ms()
        assert (row.flag, row.sysFlag) == (each.flag, each.sys_flag)
        assert row.tags == each.properties.get("TAGS")
        assert row["keys"] == each.properties.get("KEYS")
        assert row.uniqKey == each.properties.get("UNIQ_KEY")
        assert row.reconsumeTimes == each.reconsume_times
        assert row.preparedTransactionOffset == 0
        assert bytes(row.body) == each.body
        assert each.properties.items() <= row.properties.items()
        assert row.properties.keys() - each.properties.keys() <= {"CLUSTER"}


def test_the_schema_has_all_columns_in_order_and_their_types(read, topic):
    schema = read(topic).load().schema
    assert [(field.name, field.dataType) for field in schema] == list(COLUMNS.items())


def test_ranges_are_read_exactly(read, topics, topic):
    topics.send_numbers(topic, range(4000))
    (broker,) = {row.brokerName for row in read(topic).load().select("brokerName").collect()}
    start = {topic: {broker: {"0": 10, "1": -2, "2": 0, "3": 999}}}
    end = {topic: {broker: {"0": 13, "1": 1, "2": -1, "3": 999}}}
    frame = (
        read(topic)
        .option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
        .load()
    )
    rows = frame.select("queueId", "queueOffset").collect()
    expected = {(0, offset) for offset in (10, 11, 12)} | {(1, 0)}
    expected |= {(2, offset) for offset in range(1000)}
    assert len(rows) == len(expected)
    assert {tuple(row) for row in rows} == expected


def test_many_small_partitions_read_each_record_once(read, topics, topic):
    topics.send_numbers(topic, range(3000))
    frame = read(topic).option("minPartitions", "7").load()
    assert frame.rdd.getNumPartitions() == 7
    assert numbers(frame) == list(range(3000))


def test_little_data_is_one_partition(read, topics, topic):
    topics.send_numbers(topic, range(100))
    assert read(topic).load().rdd.getNumPartitions() == 1


def test_tags_are_compared_by_text_though_the_broker_compares_hashes(read, topics, topic):
    # "Aa" and "BB" have the same hash code in Java.
    tags = ["Aa", "BB", "c", "d"]
    topics.send(
        topic,
        [
            Sent(str(number).encode(), properties={"TAGS": tags[number % 4]})
            for number in range(400)
        ],
    )
    frame = read(topic).option("subExpression", "Aa || c").load()
    assert numbers(frame) == [number for number in range(400) if number % 4 in (0, 2)]
    without_tags = read(topic).option("subExpression", "BB").option("columns", "body").load()
    assert numbers(without_tags) == list(range(1, 400, 4))


def test_option_columns_chooses_and_orders(read, topics, topic):
    topics.send_numbers(topic, range(3))
    frame = read(topic).option("columns", "body,brokerName , queueId").load()
    assert frame.columns == ["body", "brokerName", "queueId"]
    assert numbers(frame) == [0, 1, 2]


def test_a_users_schema_is_honoured(read, topics, topic):
    topics.send_numbers(topic, range(8))
    schema = StructType().add("queueOffset", LongType()).add("topic", StringType())
    frame = read(topic).schema(schema).load()
    assert sorted(map(tuple, frame.collect())) == sorted([(0, topic), (1, topic)] * 4)


def test_a_users_schema_with_another_type_is_refused(read, topic):
    schema = StructType().add("queueOffset", IntegerType())
    with pytest.raises(AnalysisException, match="column queueOffset is bigint, not int"):
        read(topic).schema(schema).load().collect()


def test_an_unknown_column_is_an_error_that_names_the_nearest(read, topic):
    with pytest.raises(AnalysisException, match="no column 'boddy'; did you mean body"):
        read(topic).option("columns", "boddy").load()


def test_an_unknown_option_is_an_error_that_names_the_nearest(read, topic):
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        read(topic).option("startingOfsets", "earliest").load()


def test_an_unknown_topic_is_an_error_that_names_it(read):
    with pytest.raises(AnalysisException, match="knows no topic no-such-topic"):
        read("no-such-topic").load().collect()


def test_a_name_server_that_is_down_is_an_error_that_names_it(read, topic):
    with (
        deaf_address() as address,
        pytest.raises(AnalysisException, match=f"can't connect to {address}"),
    ):
        read(topic).options(nameServer=address, pollTimeoutMs=2_000).load().collect()


def test_one_name_server_of_two_is_enough(read, topics, topic):
    topics.send_numbers(topic, range(4))
    with deaf_address() as address:
        frame = read(topic).option("nameServer", f"{address};{topics.namesrv}").load()
        assert numbers(frame) == [0, 1, 2, 3]


def test_an_offset_that_the_queue_does_not_hold_is_an_error_or_moved(read, topics, topic):
    topics.send_numbers(topic, range(8))
    (broker,) = {row.brokerName for row in read(topic).load().select("brokerName").collect()}
    start = json.dumps({topic: {broker: {"0": 99, "1": 0, "2": 0, "3": 0}}})
    reader = read(topic).option("startingOffsets", start)
    with pytest.raises(AnalysisException, match="not the 99 to start from"):
        reader.load().collect()
    frame = reader.option("failOnDataLoss", "false").load()
    assert numbers(frame) == [1, 2, 3, 5, 6, 7]


def test_an_empty_topic_has_no_rows(read, topic):
    frame = read(topic).load()
    assert frame.count() == 0
    assert frame.collect() == []


def test_several_topics_are_read_together(read, topics, topic):
    other = topics.create(f"{topic}-other", queues=2)
    topics.send_numbers(topic, range(5))
    topics.send_numbers(other, range(5, 9), queues=2)
    frame = read(f"{topic},{other}").load()
    assert numbers(frame) == list(range(9))
    assert {row.topic for row in frame.select("topic").collect()} == {topic, other}


def test_messages_of_a_megabyte_are_read(read, topics, topic):
    topics.send(topic, [Sent(bytes([n]) * 1_000_000) for n in range(30)])
    frame = read(topic).load()
    assert frame.selectExpr("sum(length(body)) as bytes").collect()[0].bytes == 30_000_000
