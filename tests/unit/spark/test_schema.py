import importlib.util
import zlib
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.kernel.choice import load_kernel
from kerolox.message import MessageExt, MessageQueue, encode_properties
from kerolox.protocol.records import encode_record
from kerolox.spark.options import SourceOptions
from kerolox.spark.rows.decoding import ColumnDecoder
from kerolox.spark.rows.schema import (
    COLUMNS,
    arrow_schema,
    check_schema,
    full_schema,
    schema_of,
)

KERNELS = ["python"] + ["native"] * (importlib.util.find_spec("kerolox_kernel") is not None)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest):
    return load_kernel(request.param)


def record(offset: int, *, body: bytes = b"x", sys_flag: int = 0, **properties: str) -> bytes:
    message = MessageExt(
        topic="Žilina",
        body=body,
        queue_id=3,
        queue_offset=offset,
        commit_log_offset=offset * 1000,
        properties={},
        flag=-5,
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_123,
        store_timestamp=1_700_000_000_456,
        born_host=("10.0.0.1", 4242),
        store_host=("10.0.0.2", 10911),
        reconsume_times=2,
        prepared_transaction_offset=77,
    )
    return encode_record(message, encode_properties(properties))


QUEUE = MessageQueue("t", "broker-a", 3)


def decode(decoder: ColumnDecoder, data: bytes) -> tuple[pa.RecordBatch, int]:
    """The one batch that few records make."""
    ((batch, rows),) = decoder.decode(data, QUEUE)
    return batch, rows


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"nameServer": "a:1", "subscribe": "t", **given})


def test_all_columns_are_decoded_with_the_types_that_spark_compares(kernel):
    data = record(0, TAGS="a", KEYS="k", UNIQ_KEY="u", city="Žilina") + record(
        1, body=zlib.compress(b"long " * 99), sys_flag=1
    )
    batch, rows = decode(ColumnDecoder(full_schema(), kernel=kernel), data)
    assert batch.schema == arrow_schema(full_schema())
    batch.validate(full=True)
    assert rows == batch.num_rows == 2
    first, second = batch.to_pylist()
    assert first == {
        "topic": "Žilina",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 0,
        "commitLogOffset": 0,
        "bornTimestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
        "storeTimestamp": datetime.fromtimestamp(1_700_000_000.456, UTC),
        "bornHost": "10.0.0.1:4242",
        "storeHost": "10.0.0.2:10911",
        "flag": -5,
        "sysFlag": 0,
        "tags": "a",
        "keys": "k",
        "msgId": "0A00000200002A9F0000000000000000",
        "uniqKey": "u",
        "reconsumeTimes": 2,
        "preparedTransactionOffset": 77,
        "body": b"x",
        "properties": [("TAGS", "a"), ("KEYS", "k"), ("UNIQ_KEY", "u"), ("city", "Žilina")],
    }
    assert second["body"] == b"long " * 99
    assert second["msgId"] == "0A00000200002A9F00000000000003E8"
    assert (second["tags"], second["keys"], second["uniqKey"]) == (None, None, None)
    assert second["properties"] == []


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_a_column_alone_is_what_it_is_among_all(kernel, name: str):
    data = b"".join(record(offset, TAGS="ab"[offset % 2]) for offset in range(5))
    alone, _ = decode(ColumnDecoder(schema_of([name]), kernel=kernel), data)
    among, _ = decode(ColumnDecoder(full_schema(), kernel=kernel), data)
    assert alone.column(name).equals(among.column(name))


def test_tags_are_filtered_by_text_and_rows_left_out_are_counted(kernel):
    data = b"".join(record(offset, TAGS=["Aa", "BB"][offset % 2]) for offset in range(6))
    data += record(6)
    decoder = ColumnDecoder(schema_of(["queueOffset"]), tags=["BB"], kernel=kernel)
    batch, rows = decode(decoder, data)
    assert batch.column("queueOffset").to_pylist() == [1, 3, 5]
    assert rows == 7


def test_a_torn_record_is_an_error_that_names_the_queue(kernel):
    with pytest.raises(RemoteProtocolError, match=r"t queue 3 on broker-a: .*byte"):
        decode(ColumnDecoder(full_schema(), kernel=kernel), record(0)[:-3])


def test_map_columns_may_be_empty_in_the_middle(kernel):
    data = record(0, a="1", b="2") + record(1) + record(2, c="3")
    batch, _ = decode(ColumnDecoder(schema_of(["properties"]), kernel=kernel), data)
    assert batch.column(0).to_pylist() == [[("a", "1"), ("b", "2")], [], [("c", "3")]]
    assert isinstance(batch.column(0).type, pa.MapType)


def test_a_schema_may_name_columns_in_any_order_and_case():
    schema = StructType([StructField("QUEUEOFFSET", LongType()), StructField("tags", StringType())])
    check_schema(schema, options().columns)


@pytest.mark.parametrize(
    ("fields", "given", "text"),
    [
        ([("boddy", StringType())], {}, "no column 'boddy'; did you mean body"),
        ([("body", StringType())], {}, "column body is binary, not string"),
        ([("properties", MapType(StringType(), LongType()))], {}, "is map<string,string>"),
        ([("tags", StringType()), ("TAGS", StringType())], {}, "names a column twice"),
        ([], {}, "has no column"),
        ([("tags", StringType())], {"columns": "keys"}, "contradicts the schema"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(fields, given, text: str):
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(ConfigError, match=text):
        check_schema(schema, options(**given).columns)


def test_topics_are_shown_without_their_namespace(kernel):
    schema = schema_of(["topic", "queueId"])
    plain = ColumnDecoder(schema, kernel=kernel)
    assert decode(plain, record(0) + record(1))[0].column("topic").to_pylist() == ["Žilina"] * 2
    made = ColumnDecoder(schema, namespace="ns", kernel=kernel)
    data = record(0).replace("Žilina".encode(), b"ns%abcd") + record(1)
    batch, rows = decode(made, data)
    assert rows == 2
    assert batch.column("topic").to_pylist() == ["abcd", "Žilina"]
    assert batch.schema.field("topic").type == pa.string()
