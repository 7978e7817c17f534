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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nameServer": ""}, "option nameServer is empty"),
        ({"topic": " "}, "option topic is empty"),
        ({"topic": "a b"}, "option topic: .*illegal character"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "option topic: .*written by the broker only"),
        ({"topik": "t"}, "no option 'topik'; did you mean topic"),
        ({"tags": "a\x01"}, "option tags=.*control character"),
        ({"properties": "[]"}, "option properties is no object"),
        ({"properties": "{"}, "option properties is no JSON"),
        ({"properties": '{"TAGS":"a"}'}, "option properties: .*reserved"),
        ({"properties": '{"a":1}'}, "option properties: .*texts"),
        ({"flag": "x"}, "option flag='x' must be a whole number of 32 bits"),
        ({"flag": "2147483648"}, "option flag='2147483648' must"),
        ({"delayLevel": "-1"}, "option delayLevel='-1' must"),
        ({"delayLevel": "65"}, "from 0 to 64"),
        ({"deliverTime": "tomorrow"}, "option deliverTime="),
        ({"queueId": "-1"}, "option queueId="),
        ({"reservedProperties": "keep"}, "option reservedProperties='keep' must be fail or drop"),
        ({"producerGroup": "a b"}, "option producerGroup: "),
        ({"sendTimeoutMs": "0"}, "option sendTimeoutMs="),
        ({"maxMessageBytes": "16m"}, "option maxMessageBytes is 16777216 bytes; no frame"),
        ({"batchBytes": "0"}, "option batchBytes="),
        ({"inFlightBytes": "x"}, "option inFlightBytes="),
        ({"transactional": "yes"}, "option transactional="),
        ({"transactionId": "a"}, "transactionId is given, but not transactional=true"),
        ({"transactional": "true"}, "option transactionLocation is missing"),
        ({"transactional": "true", "transactionLocation": "/x"}, "transactionId is missing"),
        (EXACT | {"transactionId": "../a"}, "option transactionId='../a' must be"),
        (EXACT | {"delayLevel": "1"}, "option delayLevel: rows of a transaction can't"),
        ({"path": "/tmp/t"}, "a path \\('/tmp/t'\\) means nothing"),
        ({"accessKey": "a"}, "option secretKey is missing"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(given: dict[str, str], text: str):
    with pytest.raises(ConfigError, match=text):
        parse(**given)


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
