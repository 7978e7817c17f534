"""Typed values as bodies: what is written, what is read, what is refused, and with which words."""

from __future__ import annotations

import datetime
import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
import pytest_asyncio

from kerolox.client import Outcome, Producer, Serializer, serializer_of
from kerolox.errors import ConfigError, SerializationError
from kerolox.message import DEAD_LETTER_REASON, Message, MessageExt, decode_properties
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import Consumer, QueueBroker, record

DAY = datetime.date(2026, 11, 28)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: str
    amount: float
    colour: Colour = Colour.RED


class Line(msgspec.Struct, rename="camel"):
    order_id: str
    day: datetime.date


class Model(pydantic.BaseModel):
    order_id: Annotated[str, pydantic.Field(alias="orderId")]
    amount: Annotated[int, pydantic.Field(gt=0)]


class Row(TypedDict):
    id: int


def message(body: bytes, error: str = "") -> MessageExt:
    return MessageExt(
        topic="Orders",
        body=body,
        queue_id=0,
        queue_offset=7,
        commit_log_offset=700,
        store_timestamp=1,
        properties={"UNIQ_KEY": "A1"},
        body_error=error,
    )


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


# -- there and back -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "Köln", "Köln".encode()),
        (int, 5, b"5"),
        (float, 5, b"5"),
        (dict, {"a": [1]}, b'{"a":[1]}'),
        (list[int], [1, 2], b"[1,2]"),
        (Order, Order("o-1", 2.5), b'{"id":"o-1","amount":2.5,"colour":"red"}'),
        (list[Order], [Order("o", 1)], b'[{"id":"o","amount":1,"colour":"red"}]'),
        (Line, Line("o-1", DAY), b'{"orderId":"o-1","day":"2026-11-28"}'),
        (Row, {"id": 1}, b'{"id":1}'),
        (object, {"a": None}, b'{"a":null}'),
        (
            Model,
            Model.model_validate({"orderId": "o-1", "amount": 3}),
            b'{"orderId":"o-1","amount":3}',
        ),
        (
            list[Model],
            [Model.model_validate({"orderId": "o", "amount": 3})],
            b'[{"orderId":"o","amount":3}]',
        ),
    ],
    ids=str,
)
def test_a_value_is_written_and_read_by_its_type(kind: Any, value: object, body: bytes) -> None:
    made = serializer_of(kind)
    assert made.dump(value) == body
    assert made.load(body) == value
    assert type(made.load(body)) is type(value) or kind is float


def test_msgspec_writes_messagepack_where_it_is_asked_to() -> None:
    made = serializer_of(Order, format="msgpack")
    assert msgspec.msgpack.decode(made.dump(Order("o-1", 2.5)))["id"] == "o-1"
    assert made.load(made.dump(Order("o-1", 2.5))) == Order("o-1", 2.5)


def test_two_functions_make_a_serializer_of_any_other_format() -> None:
    made = Serializer[int](lambda value: b"%x" % value, lambda body: int(body, 16), name="number")
    assert (made.dump(255), made.load(b"ff")) == (b"ff", 255)
    with pytest.raises(SerializationError, match="the body holds no number: invalid literal"):
        made.load(b"zz")
    assert repr(made) == "<Serializer of number>"


# -- what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "body", "fault"),
    [
        (Order, b'{"id":"o-1"}', "the body holds no Order: Object missing required field `amount`"),
        (Order, b'{"id":5,"amount":1}', "Expected `str`, got `int` - at `$.id`"),
        (Order, b"hello", "the body holds no Order: JSON is malformed"),
        (str, b"\xff", "the body holds no str: 'utf-8' codec can't decode byte 0xff"),
        (Model, b'{"orderId":"o","amount":0}', "amount: Input should be greater than 0"),
        (Model, b"{", "the body holds no Model: Invalid JSON"),
        (list[Model], b"[{}]", "0.orderId: Field required; 0.amount: Field required"),
    ],
    ids=str,
)
def test_a_body_without_a_value_is_refused_with_the_place(
    kind: Any, body: bytes, fault: str
) -> None:
    with pytest.raises(SerializationError) as refused:
        serializer_of(kind).load(body)
    assert fault in str(refused.value)
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("kind", [object, Order, Model, list[Model]], ids=str)
def test_a_body_that_is_nested_deeply_is_refused_and_breaks_nothing(kind: Any) -> None:
    with pytest.raises(SerializationError):
        serializer_of(kind).load(b"[" * 1_000_000)


def test_what_is_said_of_a_body_is_bounded_and_has_nothing_of_its_values() -> None:
    body = b'{"orderId":"' + b"secret" * 10_000 + b'","amount":0}'
    with pytest.raises(SerializationError) as refused:
        serializer_of(Model).load(body)
    assert "secret" not in str(refused.value)
    with pytest.raises(SerializationError) as refused:
        Serializer(bytes, lambda body: int(body)).load(b"\n" + b"x" * 100_000)
    assert len(str(refused.value)) < 1_000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (Order, 5, "no Order that can be written: is of type int, not an Order"),
        (Row, [1], "is of type list"),
        (dict, {"a": object()}, "no dict that can be written"),
        (str, "\ud800", "surrogates not allowed"),
        (bytes, "text", "bytes: its body is of type str, not bytes"),
        (Model, 5, "no Model that can be written: Input should be a valid dictionary or instance"),
    ],
)
def test_a_value_of_another_type_is_not_written(kind: Any, value: object, fault: str) -> None:
    with pytest.raises(SerializationError) as refused:
        serializer_of(kind).dump(value)
    assert fault in str(refused.value)


def test_a_type_that_no_library_can_read_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="there is no serializer for"):
        serializer_of(Order | dict[str, int])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="format is 'xml'; it must be one of json, msgpack"):
        serializer_of(Order, format="xml")
    with pytest.raises(ConfigError, match="Model is a type of pydantic, which writes JSON"):
        serializer_of(Model, format="msgpack")
    with pytest.raises(ConfigError, match="dump is of type int"):
        Serializer(5, int)  # type: ignore[arg-type]


# -- messages -------------------------------------------------------------------------------------
def test_a_message_without_a_value_is_named_in_the_error() -> None:
    orders = serializer_of(Order)
    assert orders.value(message(b'{"id":"o","amount":1}')) == Order("o", 1)
    with pytest.raises(SerializationError, match="message A1 of topic Orders: the body holds no"):
        orders.value(message(b"hello"))
    with pytest.raises(SerializationError, match="message A1 of topic Orders: it is cut off"):
        orders.value(message(b"{}", error="it is cut off"))


async def test_a_listener_gets_values_and_what_holds_none_is_a_dead_letter(
    broker: QueueBroker,
) -> None:
    numbers, got = serializer_of(int), list[int]()

    async def listen(number: int, read: MessageExt) -> Outcome | None:
        assert read.topic == "T"
        got.append(number)
        return None

    bodies = [b"1", b"hello", b"3"]

    async def pull(command: Any) -> Any:
        offset = int(command.ext_fields["queueOffset"])
        if command.ext_fields["topic"] != "T" or offset == len(bodies):
            return await QueueBroker.pull(broker, command)
        found = b"".join(record(each, bodies[each]) for each in range(offset, len(bodies)))
        return broker.answer(command, 0, len(bodies), len(bodies), found)

    broker.count = len(bodies)
    broker.answers[RequestCode.PULL_MESSAGE] = pull
    consumer = Consumer(broker)
    consumer.subscribe_each("T", "*", numbers.listener(listen))
    async with consumer:
        await until(lambda: sorted(got) == [1, 3])
        await until(lambda: broker.seen[RequestCode.SEND_MESSAGE_V2])
    [buried] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    reason = decode_properties(buried.ext_fields["i"])[DEAD_LETTER_REASON]
    assert reason.startswith("the body holds no int: JSON is malformed")


def test_a_listener_of_one_argument_is_refused_where_it_is_given() -> None:
    async def listen(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="listener is called with 2 arguments"):
        serializer_of(Order).listener(listen)  # type: ignore[arg-type]


async def test_bytes_stay_the_body_of_a_message(broker: QueueBroker) -> None:
    async with Producer("p", broker.address) as producer:
        await producer.send(Message("T", serializer_of(Order).dump(Order("o-1", 1))))
    [sent] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert sent.body == b'{"id":"o-1","amount":1,"colour":"red"}'
