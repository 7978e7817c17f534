"""Values of dataclasses, msgspec, pydantic and protoc in Confluent's wire format."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2

from kerolox import Message, Producer, PushConsumer, PushConsumerSettings
from kerolox.admin import Admin
from kerolox.errors import ConfigError, SerializationError
from kerolox.schemas.registry import Reference, RegistryError, Schema, SchemaRegistry
from kerolox.schemas.serializers import avro_serializer, json_serializer, protobuf_serializer
from kerolox.schemas.wire import header
from kerolox.testing import LocalBroker
from kerolox.text.avro_values import named_schema
from tests.schemas.server import RegistryServer
from tests.support.eventually import until

AVSC = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
OLDER = json.dumps(
    {**json.loads(AVSC), "fields": [*json.loads(AVSC)["fields"][:3], {"name": "x", "type": "int"}]}
)
MOMENT = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@dataclass
class DataOrder:
    id: str
    amount: float
    at: datetime.datetime
    tags: list[str] = field(default_factory=list)
    note: str | None = None


class StructOrder(msgspec.Struct):
    id: str
    amount: float
    at: datetime.datetime
    tags: list[str] = []
    note: str | None = None


class ModelOrder(pydantic.BaseModel):
    id: str
    amount: float
    at: datetime.datetime
    tags: list[str] = []
    note: str | None = None


@dataclass
class Inner:
    a: int = 0


@dataclass
class Outer:
    amount: int
    data: bytes
    inner: Inner | None = None


KINDS: list[Any] = [DataOrder, StructOrder, ModelOrder]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
async def test_avro_is_written_and_read_as_any_type(server: RegistryServer, kind: Any) -> None:
    order = kind(id="1", amount=2.5, at=MOMENT, tags=["a"], note="x")
    async with SchemaRegistry(server.address) as registry:
        orders = await avro_serializer(registry, kind, "O-value", schema=AVSC, register=True)
        body = orders.dump(order)
        assert body[:5] == header(orders.id)
        assert await orders.load(body) == order
        again = await avro_serializer(registry, kind, "O-value")
        assert again.dump(order) == body
        assert await (await avro_serializer(registry, dict, "O-value")).load(body) == {
            "id": "1",
            "amount": 2.5,
            "at": MOMENT,
            "tags": ["a"],
            "note": "x",
        }


async def test_what_another_schema_wrote_is_read_as_the_own_one_wants_it(
    server: RegistryServer,
) -> None:
    async with SchemaRegistry(server.address) as registry:
        older = await avro_serializer(registry, dict, "O-value", schema=OLDER, register=True)
        orders = await avro_serializer(registry, DataOrder, "O-value", schema=AVSC, register=True)
        body = older.dump({"id": "1", "amount": 2.0, "at": MOMENT, "x": 5})
        server.asked.clear()
        for _ in range(3):
            assert await orders.load(body) == DataOrder("1", 2.0, MOMENT)
        assert server.asked == ["GET /schemas/ids/1"]


async def test_references_of_a_schema_are_fetched_first(server: RegistryServer) -> None:
    inner = '{"type":"record","name":"shop.Inner","fields":[{"name":"a","type":"int"}]}'
    outer = (
        '{"type":"record","name":"shop.Outer","fields":[{"name":"inner","type":"shop.Inner"},'
        '{"name":"b","type":"int"}]}'
    )
    wanted = '{"type":"record","name":"shop.Outer","fields":[{"name":"b","type":"int"}]}'
    async with SchemaRegistry(server.address) as registry:
        await registry.register("inner", Schema(inner))
        reference = Reference("shop.Inner", "inner", 1)
        other = await registry.register("outer", Schema(outer, references=(reference,)))
        mine = await avro_serializer(registry, dict, "mine", schema=wanted, register=True)
        assert await mine.load(header(other) + b"\x02\x04") == {"b": 2}


@pytest.mark.parametrize("kind", KINDS)
async def test_json_is_written_and_read_as_any_type(server: RegistryServer, kind: Any) -> None:
    order = kind(id="1", amount=2.5, at=MOMENT)
    async with SchemaRegistry(server.address) as registry:
        orders = await json_serializer(registry, kind, "O-value", register=True)
        body = orders.dump(order)
        assert json.loads(body[5:])["amount"] == 2.5
        assert await orders.load(body) == order
        assert server.schemas[0]["schemaType"] == "JSON"
        assert "amount" in server.schemas[0]["schema"]


async def test_protobuf_has_the_place_of_its_message_before_it(server: RegistryServer) -> None:
    async with SchemaRegistry(server.address) as registry:
        first = await protobuf_serializer(
            registry, timestamp_pb2.Timestamp, "T-value", register=True
        )
        stamp = timestamp_pb2.Timestamp(seconds=5)
        assert first.dump(stamp)[5:] == b"\x00" + stamp.SerializeToString()
        assert await first.load(first.dump(stamp)) == stamp
        nested = descriptor_pb2.DescriptorProto.ExtensionRange
        deeper = await protobuf_serializer(registry, nested, "D-value", register=True)
        value = nested(start=1, end=2)
        assert deeper.dump(value)[5:8] == b"\x04\x04\x00", "message 2, and in it message 0"
        assert await deeper.load(deeper.dump(value)) == value
        with pytest.raises(SerializationError, match=r"is message \[0\] of its file"):
            await deeper.load(header(deeper.id, (0,)) + value.SerializeToString())


async def test_files_that_a_message_imports_are_referred_to(server: RegistryServer) -> None:
    made = descriptor_pb2.FileDescriptorSet()
    inner = made.file.add(name="inner.proto", package="shop", syntax="proto3")
    inner.message_type.add(name="Inner").field.add(name="a", number=1, type=5, label=1)
    outer = made.file.add(
        name="outer.proto", package="shop", syntax="proto3", dependency=["inner.proto"]
    )
    message = outer.message_type.add(name="Outer")
    message.field.add(name="inner", number=1, type=11, type_name=".shop.Inner", label=1)
    message.field.add(name="amount", number=2, type=3, label=1)
    message.field.add(name="data", number=3, type=12, label=1)

    kinds = {"descriptors": made.SerializeToString(), "message": "shop.Outer"}
    async with SchemaRegistry(server.address) as registry:
        with pytest.raises(RegistryError, match="Schema not found"):
            await protobuf_serializer(registry, Outer, "O-value", **kinds)
        outers = await protobuf_serializer(registry, Outer, "O-value", register=True, **kinds)
        assert server.schemas[1]["references"] == [
            {"name": "inner.proto", "subject": "inner.proto", "version": 1}
        ]
        for value in (Outer(2**60, b"\xff", Inner(5)), Outer(0, b"")):
            assert await outers.load(outers.dump(value)) == value
        assert (await protobuf_serializer(registry, Outer, "O-value", **kinds)).id == outers.id


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "needs 5"),
        (b"{}", "needs 5"),
        (b'{"id": "1"}', "begins with byte"),
        (header(99) + b"x", "schema 99 of the body is unknown"),
        (header(2) + b"x", "is JSON, not AVRO"),
        (header(1) + b"\xff", "no DataOrder"),
        (header(1) + b"\x021" + bytes(18) + b"more", "are left behind"),
        (header(3) + b"", "within itself"),
        (header(4) + b"", "without bytes"),
        (header(5) + b"", "is no Avro schema"),
    ],
)
async def test_a_body_that_holds_no_value_says_why(
    server: RegistryServer, body: bytes, says: str
) -> None:
    async with SchemaRegistry(server.address) as registry:
        orders = await avro_serializer(registry, DataOrder, "O-value", schema=AVSC, register=True)
        server.schemas += [
            {"schema": "{}", "schemaType": "JSON"},
            {"schema": '{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}'},
            {"schema": '{"type":"array","items":"null"}'},
            {"schema": '{"type":"nonsense"}'},
        ]
        with pytest.raises(SerializationError, match=says):
            await orders.load(body)


def doubling(levels: int, leaf: str) -> str:
    """Records with twice the one before: small as a text, large as a value."""
    schema: Any = leaf
    for number in range(levels):
        former = f"R{number - 1}" if number else leaf
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": former}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    return json.dumps(schema)


@pytest.mark.parametrize(("leaf", "is_read"), [("null", False), ("int", True)])
def test_a_schema_that_is_large_without_bytes_is_refused_at_once(leaf: str, is_read: bool) -> None:
    began = time.process_time()
    if is_read:
        named_schema(doubling(60, leaf))
    else:
        with pytest.raises(ValueError, match="values without bytes"):
            named_schema(doubling(60, leaf))
    assert time.process_time() - began < 5, "each type is gone through once"


async def test_values_that_do_not_fit_and_wrong_arguments_are_refused(
    server: RegistryServer,
) -> None:
    async with SchemaRegistry(server.address) as registry:
        orders = await avro_serializer(registry, DataOrder, "O-value", schema=AVSC, register=True)
        with pytest.raises(SerializationError, match="not DataOrder"):
            orders.dump("text")
        with pytest.raises(SerializationError, match="no DataOrder"):
            orders.dump(DataOrder("1", "two", MOMENT))
        with pytest.raises(ConfigError, match="give the schema"):
            await avro_serializer(registry, DataOrder, "O-value", register=True)
        with pytest.raises(ConfigError, match="newest schema of O-value is AVRO"):
            await json_serializer(registry, DataOrder, "O-value")
        with pytest.raises(ConfigError, match="descriptors="):
            await protobuf_serializer(registry, DataOrder, "O-value")
        with pytest.raises(ConfigError, match="has no message"):
            await protobuf_serializer(
                registry, DataOrder, "O", descriptors=struct_set(), message="x.Y"
            )
        with pytest.raises(RegistryError, match="Invalid schema"):
            await avro_serializer(registry, dict, "Bad", schema='"int"', register=True)


def struct_set() -> bytes:
    made = descriptor_pb2.FileDescriptorSet()
    struct_pb2.DESCRIPTOR.CopyToProto(made.file.add())
    return made.SerializeToString()


async def test_logical_types_are_the_values_of_python(server: RegistryServer) -> None:
    schema = (
        '{"type":"record","name":"P","fields":[{"name":"price","type":'
        '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},'
        '{"name":"day","type":{"type":"int","logicalType":"date"}}]}'
    )

    @dataclass
    class Price:
        price: Decimal
        day: datetime.date

    async with SchemaRegistry(server.address) as registry:
        prices = await avro_serializer(registry, Price, "P-value", schema=schema, register=True)
        price = Price(Decimal("1.10"), datetime.date(2026, 1, 31))
        assert await prices.load(prices.dump(price)) == price


async def test_a_listener_gets_values_and_bodies_without_one_are_dead_letters(
    server: RegistryServer,
) -> None:
    seen: list[DataOrder] = []

    async def listen(order: DataOrder, message: object) -> None:
        seen.append(order)

    async with LocalBroker() as broker, SchemaRegistry(server.address) as registry:
        topic = broker.create_topic(queues=1)
        orders = await avro_serializer(registry, DataOrder, "O-value", schema=AVSC, register=True)
        settings = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
        consumer = PushConsumer("schema-readers", broker.name_server, settings=settings)
        consumer.subscribe_each(topic, "*", orders.listener(listen))
        order = DataOrder("1", 2.5, MOMENT)
        async with Producer("shop", broker.name_server) as producer, consumer:
            await producer.send(Message(topic, b"no order"))
            await producer.send(Message(topic, orders.dump(order)))
            await until(lambda: seen == [order])
            async with Admin(broker.name_server) as admin:

                async def is_dead() -> bool:
                    found = [each async for each in admin.dead_letters("schema-readers")]
                    return [each.body for each in found] == [b"no order"]

                await until(is_dead)
