"""Events of CloudEvents as messages, and back: both modes, and what is none."""

from __future__ import annotations

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ConfigError, SerializationError
from kerolox.integrations.cloudevents import (
    NO_DATA,
    CloudEvent,
    event_of,
    is_event,
    message_of,
)
from kerolox.message import Message, MessageExt

EVENT = CloudEvent(
    "shop.created",
    "/shop",
    b'{"amount": 1.10}',
    id="1",
    time=datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
    subject="o-1",
    dataschema="https://schemas.example/order",
    extensions={"traceparent": "00-1", "partitionkey": "a"},
)


def received(message: Message) -> MessageExt:
    return stored(message.body, message.properties)


def stored(body: bytes, properties: dict[str, str]) -> MessageExt:
    return MessageExt(
        topic="Orders",
        body=body,
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        store_host=("127.0.0.1", 10911),
        properties=properties,
    )


def test_binary_mode_has_attributes_in_properties_and_the_data_as_body() -> None:
    message = message_of(EVENT, "Orders", tags="new", keys="k", properties={"own": "x"})
    assert message.body == EVENT.data
    assert (message.tags, message.keys) == ("new", "k")
    assert message.properties == {
        "own": "x",
        "CE_specversion": "1.0",
        "CE_id": "1",
        "CE_source": "/shop",
        "CE_type": "shop.created",
        "CE_contenttype": "application/json",
        "CE_dataschema": "https://schemas.example/order",
        "CE_subject": "o-1",
        "CE_time": "2026-01-31T12:00:00Z",
        "CE_traceparent": "00-1",
        "CE_partitionkey": "a",
    }
    assert is_event(received(message))
    assert event_of(received(message)) == EVENT


def test_structured_mode_has_the_event_as_json_with_its_data_as_it_was() -> None:
    message = message_of(EVENT, "Orders", structured=True)
    assert message.properties == {"CE_contenttype": "application/cloudevents+json; charset=UTF-8"}
    assert b'"data":{"amount": 1.10}' in message.body
    assert json.loads(message.body)["time"] == "2026-01-31T12:00:00Z"
    assert is_event(received(message))
    assert event_of(received(message)) == EVENT


@pytest.mark.parametrize(
    ("data", "content_type", "member"),
    [
        (b"\xff\x00", "application/octet-stream", "data_base64"),
        (b"<a/>", "text/xml", "data_base64"),
        (b"no json", "application/json", "data_base64"),
        (b'"text"', "application/vnd.a+json; v=1", "data"),
        (b"12", "text/JSON", "data"),
    ],
)
def test_data_that_is_no_json_is_base64_in_structured_mode(
    data: bytes, content_type: str, member: str
) -> None:
    event = CloudEvent("a", "b", data, datacontenttype=content_type)
    message = message_of(event, "T", structured=True)
    assert member in json.loads(message.body)
    assert event_of(received(message)) == event


def test_text_of_another_content_type_is_read_as_its_characters() -> None:
    members = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    members |= {"datacontenttype": "text/xml", "data": "<a>é</a>"}
    kind = {"CE_contenttype": "application/cloudevents+json"}
    assert event_of(stored(json.dumps(members).encode(), kind)).data == "<a>é</a>".encode()


def test_values_of_extensions_are_texts_of_their_kind() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    event = CloudEvent("a", "b", extensions={"n": 5, "f": True, "b": b"\x00", "t": moment})
    read = {"n": "5", "f": "true", "b": "AA==", "t": "2026-01-01T00:00:00Z"}
    assert event_of(received(message_of(event, "T"))).extensions == read
    structured = message_of(event, "T", structured=True)
    assert json.loads(structured.body)["n"] == 5
    assert json.loads(structured.body)["f"] is True
    assert event_of(received(structured)).extensions == read


@pytest.mark.parametrize("structured", [True, False])
def test_an_event_without_data_has_none_when_it_is_read(structured: bool) -> None:
    event = CloudEvent("a", "b")
    message = message_of(event, "T", structured=structured)
    assert message.body
    assert event_of(received(message)).data is None
    assert event_of(stored(NO_DATA, message_of(event, "T").properties)).data is None


@pytest.mark.parametrize("prefix", ["ce_", "Ce_", "CE_"])
def test_names_of_other_bindings_are_read(prefix: str) -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    properties = {f"{prefix}{name}": value for name, value in attributes.items()}
    event = event_of(stored(b"x", {**properties, "content-type": "text/plain"}))
    assert (event.id, event.data, event.datacontenttype) == ("1", b"x", "text/plain")


@pytest.mark.parametrize(
    ("body", "properties", "says"),
    [
        (b"x", {}, "no specversion"),
        (b"x", {"CE_specversion": "0.3"}, "its version is '0.3'"),
        (b"x", {"CE_specversion": "1.0", "CE_id": "1", "CE_type": "t"}, "no source"),
        (b"x", {"CE_contenttype": "application/cloudevents+avro"}, "its format is"),
        (b"x", {"CE_contenttype": "application/cloudevents-batch+json"}, "its format is"),
        (b"[]", {"CE_contenttype": "application/cloudevents+json"}, "no JSON object"),
        (b"[" * 100_000, {"CE_contenttype": "application/cloudevents"}, ""),
        (b'{"specversion":"1.0","id":{}}', {"CE_contenttype": "application/cloudevents"}, "'id'"),
        (b'{"data":1,"data_base64":""}', {"CE_contenttype": "application/cloudevents"}, "data and"),
        (b'{"data_base64":"*"}', {"CE_contenttype": "application/cloudevents"}, "data_base64"),
        (
            b"x",
            {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "s", "CE_type": "t"}
            | {"CE_time": "yesterday"},
            "RFC 3339",
        ),
        (
            b"x",
            {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "s", "CE_type": "t"}
            | {"CE_not a name": "x"},
            "no name",
        ),
        (
            b"x",
            {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "s", "CE_type": "t"}
            | {f"CE_x{number}": "x" for number in range(200)},
            "attributes",
        ),
    ],
)
def test_what_is_no_event_says_why(body: bytes, properties: dict[str, str], says: str) -> None:
    with pytest.raises(SerializationError, match=r"no cloud event") as told:
        event_of(stored(body, properties))
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"type": ""}, "needs type"),
        ({"source": "a\nb"}, "control character"),
        ({"time": datetime.datetime(2026, 1, 1)}, "no zone"),
        ({"extensions": {"Bad": "x"}}, "no name"),
        ({"extensions": {"data": "x"}}, "no extension"),
        ({"extensions": {"id": "x"}}, "no extension"),
    ],
)
def test_an_event_that_none_may_be_is_refused(given_: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CloudEvent(**{"type": "t", "source": "s", **given_})


def test_a_property_of_the_event_is_not_given_twice() -> None:
    with pytest.raises(ConfigError, match="CE_id"):
        message_of(EVENT, "T", properties={"CE_id": "2"})


TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1).filter(str.strip)


@given(
    st.builds(
        CloudEvent,
        TEXTS,
        TEXTS,
        st.none() | st.binary(min_size=2),
        id=TEXTS,
        datacontenttype=st.sampled_from(["application/json", "text/plain", "a/b+json"]),
        extensions=st.dictionaries(st.from_regex(r"x[a-z0-9]{1,8}", fullmatch=True), TEXTS),
    ),
    st.booleans(),
)
def test_every_event_is_read_as_it_was_sent(event: CloudEvent, structured: bool) -> None:
    read = event_of(received(message_of(event, "T", structured=structured)))
    assert read.attributes() == event.attributes()
    assert read.data == event.data


@given(st.binary(), st.dictionaries(st.sampled_from(["CE_id", "ce_contenttype"]), st.text()))
def test_no_message_of_strangers_fails_in_another_way(
    body: bytes, properties: dict[str, str]
) -> None:
    for kind in ("application/cloudevents+json", "text/plain"):
        try:
            event_of(stored(body, {"CE_contenttype": kind, "CE_specversion": "1.0", **properties}))
        except SerializationError:
            continue
