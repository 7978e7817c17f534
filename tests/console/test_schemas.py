"""Bodies by Avro and Protobuf schemas: shown as JSON, and no harm by bytes of strangers."""

from __future__ import annotations

import io
import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kerolox.console.schemas import BODY_BYTES_MAX, Schemas, read_schemas
from kerolox.errors import ConfigError
from kerolox.message import Message, MessageExt
from tests.console.site import Visitor, running_console
from tests.support.eventually import until

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "ratio", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
VALUE = {
    **{"id": 2**60, "note": "<b>\u202e", "ratio": float("nan"), "raw": b"\x00\xff"},
    **{"at": 0, "lines": ["a", "b"]},
}
SHOWN = {
    **{"id": 2**60, "note": "<b>\u202e", "ratio": "nan", "raw": "AP8="},
    **{"at": "1970-01-01T00:00:00Z", "lines": ["a", "b"]},
}


def order(**changed: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), VALUE | changed)
    return stream.getvalue()


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """A message with a number, a text, and itself."""
    file = descriptor_pb2.FileDescriptorProto(name="pay.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Payment")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("cents", kinds.TYPE_INT64), ("payer_name", kinds.TYPE_STRING)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    message.field.add(
        **{"name": "before", "number": 3, "type": kinds.TYPE_MESSAGE},
        **{"type_name": ".shop.Payment", "label": kinds.LABEL_OPTIONAL},
    )
    return descriptor_pb2.FileDescriptorSet(file=[file])


def payment_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_set().file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))


def payment(**values: object) -> bytes:
    body: bytes = payment_class()(**values).SerializeToString()
    return body


def write(folder: Path, **topics: object) -> Path:
    """A file of schemas, and the schemas beside it."""
    (folder / "order.avsc").write_text(json.dumps(ORDER))
    (folder / "pay.desc").write_bytes(descriptor_set().SerializeToString())
    path = folder / "schemas.json"
    path.write_text(json.dumps(topics))
    return path


AVRO = {"format": "avro", "file": "order.avsc"}
PROTOBUF = {"format": "protobuf", "file": "pay.desc", "message": "shop.Payment"}


def message(topic: str, body: bytes, **properties: str) -> MessageExt:
    return MessageExt(
        topic=topic,
        body=body,
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        properties=properties,
    )


@pytest.fixture
def schemas(tmp_path: Path) -> Schemas:
    confluent = AVRO | {"skipBytes": 5}
    return read_schemas(write(tmp_path, Orders=AVRO, Framed=confluent, Payments=PROTOBUF))


def test_values_are_shown_as_json(schemas: Schemas) -> None:
    avro, protobuf = (schemas.of(message(each, b"")) for each in ("Orders", "Payments"))
    framed = schemas.of(message("Framed", b""))
    assert avro
    assert protobuf
    assert framed
    assert json.loads(avro.json_of(order())) == SHOWN
    assert json.loads(framed.json_of(b"\0\0\0\0\7" + order())) == SHOWN
    body = payment(cents=2**60, payer_name="Anna", before={"cents": 1})
    assert json.loads(protobuf.json_of(body)) == {
        **{"cents": str(2**60), "payer_name": "Anna", "before": {"cents": "1"}},
    }


def test_the_schema_is_that_of_the_topic_a_message_was_sent_to(schemas: Schemas) -> None:
    for found in (
        message("%DLQ%g", b"", RETRY_TOPIC="Orders"),
        message("%RETRY%g", b"", RETRY_TOPIC="Orders"),
        message("SCHEDULE_TOPIC_XXXX", b"", REAL_TOPIC="Orders"),
        message("RMQ_SYS_TRANS_HALF_TOPIC", b"", REAL_TOPIC="Orders"),
    ):
        assert schemas.of(found) is schemas.of(message("Orders", b""))
    assert schemas.of(message("Others", b"")) is None
    assert schemas.of(message("Others", b"", REAL_TOPIC="Orders")) is None


def test_bytes_that_are_no_value_are_refused_with_a_reason(schemas: Schemas) -> None:
    avro, protobuf = (schemas.of(message(each, b"")) for each in ("Orders", "Payments"))
    framed = schemas.of(message("Framed", b""))
    assert avro
    assert protobuf
    assert framed
    deep = payment(cents=1)
    for _ in range(2_000):
        size = len(deep)
        deep = b"\x1a" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + deep
    wrong = (
        *((avro, each) for each in (b"", b"\x02", order() + b"x", order()[:-3], b"\xff" * 40)),
        (avro, order(note="x" * BODY_BYTES_MAX)),
        (framed, b"\0\0"),
        (protobuf, b"\xff\xff"),
        (protobuf, b"hello"),
        # Fields of another message.
        (protobuf, b"\xa0\x06\x01"),
        (protobuf, deep),
    )
    for schema, body in wrong:
        with pytest.raises(ValueError, match=r"\S"):
            schema.json_of(body)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"format": "xml", "file": "order.avsc"}, "no file of schemas"),
        (AVRO | {"other": 1}, "no file of schemas"),
        (AVRO | {"file": "missing.avsc"}, "missing.avsc: No such file"),
        (AVRO | {"file": "pay.desc"}, "Orders"),
        (AVRO | {"skipBytes": -1}, "skipBytes"),
        (PROTOBUF | {"file": "order.avsc"}, "is no descriptor set"),
        (PROTOBUF | {"message": "shop.Other"}, "has no message shop.Other"),
        (PROTOBUF | {"message": ""}, "name the message"),
    ],
)
def test_a_setting_that_can_not_be_used_is_refused_at_the_start(
    tmp_path: Path, setting: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        read_schemas(write(tmp_path, Orders=setting))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "map", "values": {"type": "array", "items": "null"}},
        {
            **{"type": "record", "name": "Node"},
            "fields": [{"name": "next", "type": ["null", "Node"]}],
        },
    ],
)
def test_a_schema_by_which_few_bytes_are_much_is_refused(
    tmp_path: Path, schema: dict[str, object]
) -> None:
    path = write(tmp_path, Orders=AVRO | {"file": "bad.avsc"})
    (tmp_path / "bad.avsc").write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match="not read here"):
        read_schemas(path)


async def test_pages_show_bodies_by_the_schema_of_their_topic(
    our_cluster: Cluster, tmp_path: Path
) -> None:
    topic = f"A{uuid.uuid4().hex[:12]}"
    path = write(tmp_path, **{topic: AVRO})
    async with running_console(tmp_path, our_cluster.name_server, schemas=path) as console:
        await console.admin.create_topic(topic, queues=1)

        async def is_known() -> bool:
            return topic in await console.admin.list_topics()

        await until(is_known)
        for body in (order(), b"no order"):
            sent = await console.admin.send_message(Message(topic, body))
        viewer = Visitor(console, "viewer")
        listed = (await viewer.look("/messages", topic=topic)).text
        assert "&#34;id&#34;:1152921504606846976" in listed
        assert "no order" in listed
        asked = {"topic": topic, "queue": f"{sent.queue.broker_name}/0"}
        page = (await viewer.look("/message", **asked, offset=0)).text
        assert re.search(r'aria-current="true">avro<', page)
        assert "&#34;at&#34;: &#34;1970-01-01T00:00:00Z&#34;" in page
        assert "&lt;b&gt;\\u202e" in page
        assert "\u202e" not in page
        plain = (await viewer.look("/message", **asked, offset=0, view="hex")).text
        assert re.search(r'aria-current="true">hex<', plain)
        other = (await viewer.look("/message", **asked, offset=1)).text
        assert "It is no value of the topic&#39;s avro schema" in other
        assert re.search(r'aria-current="true">text<', other)
