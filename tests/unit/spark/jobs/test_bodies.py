"""Schemas of bodies, and what bodies of strangers are decoded to."""

import io
import json

import pyarrow
import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive import ArchiveOptions
from kerolox.spark.jobs.archive.bodies.decoding import decoder_of
from kerolox.spark.jobs.archive.bodies.in_workers import with_values
from kerolox.spark.jobs.archive.bodies.json_bodies import JsonDecoder

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")
avro_bodies = pytest.importorskip("kerolox.spark.jobs.archive.bodies.avro_bodies")
protobuf_bodies = pytest.importorskip("kerolox.spark.jobs.archive.bodies.protobuf_bodies")

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}


def order(**values) -> bytes:
    stream = io.BytesIO()
    plain = json.loads(json.dumps(AVRO).replace(', "logicalType": "uuid"', ""))
    given = {"id": 1, "note": None, "lines": [1, 2], "at": 0, "key": "k"} | values
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), given)
    return stream.getvalue()


def test_avro_bodies_are_decoded_and_others_have_a_reason():
    kind = avro_bodies.AvroDecoder(json.dumps(AVRO)).value_type()
    assert kind.simpleString() == (
        "struct<id:bigint,note:string,lines:array<int>,at:timestamp,key:string>"
    )
    decode = avro_bodies.reader_of(json.dumps(AVRO))
    value = decode(order(note="x"))
    assert (value["id"], value["note"], value["lines"], value["key"]) == (1, "x", [1, 2], "k")
    for wrong in (order() + b"\0", order()[:-1], b"", b"\xff" * 40):
        with pytest.raises(Exception, match=r".*"):
            decode(wrong)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is no Avro schema"),
        ('{"type": "no-such"}', "is no Avro schema"),
        ('["int", "string"]', "has a union of several types"),
        ('{"type": "array", "items": "null"}', "has type null"),
        ('{"type": "array", "items": {"type": "record", "name": "a", "fields": []}}', "without"),
        ('{"type": "fixed", "name": "a", "size": 0}', "has a fixed of no bytes"),
        (
            '{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["null", "a"]}]}',
            "refers to a within itself",
        ),
        ('{"type": "int", "logicalType": "time-millis"}', "logical type time-millis"),
    ],
)
def test_an_avro_schema_that_no_column_can_be_is_an_error(schema, text):
    with pytest.raises(ValueError, match=text):
        avro_bodies.AvroDecoder(schema)


def protobuf() -> bytes:
    """A descriptor set as protoc writes it."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message = file.message_type.add(name="Order")
    add = message.field.add
    add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    add(name="colour", number=2, type=kinds.TYPE_ENUM, type_name=".shop.Colour", label=1)
    add(name="lines", number=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=3)
    add(name="main", number=4, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=1)
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=1)
    add(
        name="counts",
        number=5,
        type=kinds.TYPE_MESSAGE,
        type_name=".shop.Order.CountsEntry",
        label=3,
    )
    add(name="raw", number=6, type=kinds.TYPE_BYTES, label=1)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="up", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Tree", label=1)
    file.message_type.add(name="Nothing")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_protobuf_bodies_are_decoded_and_others_have_a_reason():
    kind = protobuf_bodies.ProtobufDecoder(protobuf(), "shop.Order").value_type()
    assert kind.simpleString() == (
        "struct<id:decimal(20,0),colour:string,lines:array<struct<sku:string>>,"
        "main:struct<sku:string>,counts:map<string,int>,raw:binary>"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(protobuf()).file[0])
    order_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    body = order_class(id=2**64 - 1, colour=7, counts={"a": 1}, raw=b"\xff")
    body.lines.add(sku="x")
    decode = protobuf_bodies.reader_of(protobuf(), "shop.Order")
    assert decode(body.SerializeToString()) == {
        "id": 2**64 - 1,
        "colour": "7",
        "lines": [{"sku": "x"}],
        "main": None,
        "counts": {"a": 1},
        "raw": b"\xff",
    }
    with pytest.raises(Exception, match=r".*"):
        decode(b"\xff\xff")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop.Odrer", "has no message shop.Odrer"),
        ("shop.Tree", "has message shop.Tree within itself"),
        ("shop.Nothing", "without fields"),
    ],
)
def test_a_protobuf_message_that_no_column_can_be_is_an_error(name, text):
    with pytest.raises(ValueError, match=text):
        protobuf_bodies.ProtobufDecoder(protobuf(), name)
    with pytest.raises(ValueError, match="is no descriptor set"):
        protobuf_bodies.ProtobufDecoder(b"\xff", name)


def test_schemas_of_json_and_of_spark_describe_the_same_column():
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "paid": {"type": "boolean"},
            "at": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
    text = (
        "id bigint, price double, paid boolean, at timestamp, lines array<struct<sku string>>, "
        "counts map<string, bigint>"
    )
    assert JsonDecoder(json.dumps(schema)).value_type().simpleString() == (
        "struct<id:bigint,price:double,paid:boolean,at:timestamp,lines:array<struct<sku:string>>,"
        "counts:map<string,bigint>>"
    )
    assert text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is no JSON"),
        ('{"type": "object"}', "an object without properties"),
        ('{"type": "string"}', "is no schema of an object"),
        ('{"properties": {"a": {"type": "null"}}}', "has type 'null'"),
        ('{"properties": {"a": {"type": "array"}}}', "where a schema must be"),
        ('{"properties": {"a": {"type": "string"}}, "required": ["b"]}', "requires b"),
    ],
)
def test_a_json_schema_that_no_column_can_be_is_an_error(schema, text):
    with pytest.raises(ValueError, match=text):
        JsonDecoder(schema)


def test_a_schema_that_can_not_be_read_is_an_error_that_names_the_option(tmp_path):
    def options(text):
        path = tmp_path / "schema"
        path.write_text(text)
        return ArchiveOptions(topics=("t",), to="x", body="avro", body_schema=str(path))

    with pytest.raises(ConfigError, match=r"option --body-schema: .*schema: is no Avro schema"):
        decoder_of(options("{"))
    missing = ArchiveOptions(topics=("t",), to="x", body="avro", body_schema=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match=r"option --body-schema: .*no can't be read"):
        decoder_of(missing)
    assert decoder_of(ArchiveOptions(topics=("t",), to="x")) is None


def test_a_value_that_has_no_place_in_the_column_is_put_aside_alone():
    batch = pyarrow.record_batch({"body": [b"1", b"99999999999", None, b"x"]})
    made = with_values(batch, pyarrow.int32(), int)
    assert made.column("value").to_pylist() == [1, None, None, None]
    reasons = made.column("reason").to_pylist()
    assert reasons[0] is None
    assert reasons[2] == "there is no body"
    assert all(reasons[1:])
