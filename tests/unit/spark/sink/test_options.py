import re
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from kerolox.errors import ConfigError
from kerolox.spark.sink.options import OPTIONS, ReservedProperties, SinkOptions
from kerolox.spark.sink.rows import COLUMNS, check_schema

NEEDED = {"nameServer": "n:1", "topic": "t"}
EXACT = {"transactional": "true", "transactionLocation": "/tmp/x", "transactionId": "day-1"}


def parse(*, is_stream: bool = False, **given: str) -> SinkOptions:
    return SinkOptions.parse(NEEDED | given, is_stream=is_stream)


def test_every_option_is_read():
    options = parse(
        TAGS="a",
        keys="k1 k2",
        properties='{"city":"Žilina"}',
        flag="-7",
        delayLevel="3",
        deliverTime="1700000000000",
        queueId="0",
        brokerName="broker-a",
        orderingKey="o",
        reservedProperties="drop",
        producerGroup="g",
        namespace="ns",
        sendTimeoutMs="5",
        maxMessageBytes="1m",
        batchBytes="32k",
        inFlightBytes="64m",
    )
    assert (options.tags, options.keys, options.properties) == ("a", "k1 k2", {"city": "Žilina"})
    assert (options.flag, options.delay_level, options.deliver_time) == (-7, 3, 1_700_000_000_000)
    assert (options.queue_id, options.broker_name, options.ordering_key) == (0, "broker-a", "o")
    assert options.reserved_properties is ReservedProperties.DROP
    assert (options.producer_group, options.namespace) == ("ns%g", "ns")
    assert (options.send_timeout_ms, options.message_bytes_max) == (5, 1 << 20)
    assert (options.batch_bytes, options.in_flight_bytes) == (32 << 10, 64 << 20)


def test_a_path_is_an_error_that_says_how_to_name_the_topic():
    with pytest.raises(ConfigError, match=r"a path \('/tmp/t'\) means nothing.*option topic"):
        parse(path="/tmp/t")


def test_decisions_of_a_stream_are_in_its_checkpoint():
    given = {"transactional": "true", "checkpointLocation": "/c/"}
    assert parse(is_stream=True, **given).folder_of("q") == "/c/kerolox-sink"
    given["transactionLocation"] = "/d"
    assert parse(is_stream=True, **given).folder_of("q") == "/d/q"
    with pytest.raises(ConfigError, match="give option checkpointLocation to the query itself"):
        parse(is_stream=True, transactional="true")
    with pytest.raises(ConfigError, match="transactionId is for batches"):
        parse(is_stream=True, **EXACT)


def test_a_batch_keeps_its_decision_under_its_own_name():
    assert parse(**EXACT).folder_of("day-1") == "/tmp/x/day-1"


def test_transactions_of_each_query_have_a_group_of_their_own():
    assert parse().group_of("") == "spark-rocketmq"
    assert parse(namespace="ns").group_of("q-1") == "ns%spark-rocketmq-q-1"
    assert parse(producerGroup="g").group_of("q-1") == "g"


def schema(**columns: object) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


def test_all_columns_in_all_their_types_are_taken():
    texts = StringType()
    check_schema(
        schema(
            BODY=texts,
            topic=texts,
            tags=texts,
            keys=ArrayType(texts),
            properties=MapType(texts, texts),
            flag=IntegerType(),
            delayLevel=IntegerType(),
            deliverTime=TimestampType(),
            queueId=IntegerType(),
            brokerName=texts,
            orderingKey=LongType(),
        ),
        SinkOptions.parse({"nameServer": "n:1"}, is_stream=False),
    )


@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ({"value": BinaryType()}, {}, "can't write a column 'value'"),
        ({"bodi": BinaryType()}, {}, "did you mean body"),
        ({"body": LongType()}, {}, "column body is bigint, but must be binary or string"),
        ({"body": BinaryType(), "keys": ArrayType(LongType())}, {}, "must be string or array<str"),
        ({"body": BinaryType(), "properties": MapType(StringType(), LongType())}, {}, "map<string"),
        ({"tags": StringType()}, {}, "no column body"),
        ({"body": BinaryType(), "Body": BinaryType()}, {}, "a column twice: body, Body"),
        ({"body": BinaryType(), "delayLevel": IntegerType()}, EXACT, "column delayLevel: rows of"),
    ],
)
def test_a_wrong_column_is_an_error_that_names_it(columns, given, text):
    with pytest.raises(ConfigError, match=text):
        check_schema(schema(**columns), parse(**given))


def test_rows_need_a_topic():
    options = SinkOptions.parse({"nameServer": "n:1"}, is_stream=False)
    with pytest.raises(ConfigError, match="option topic is missing, and the rows have no column"):
        check_schema(schema(body=BinaryType()), options)
    check_schema(schema(body=BinaryType(), topic=StringType()), options)


def test_the_page_of_the_sink_has_every_option_and_column():
    page = Path(__file__).parents[4] / "docs" / "spark" / "sink.md"
    shown = set(re.findall(r"`(\w+)`", page.read_text()))
    assert set(OPTIONS) <= shown
    assert set(COLUMNS) <= shown
