"""Messages, ids, properties and hashes; vectors from RocketMQ's own tests."""

from __future__ import annotations

import pytest

from kerolox.errors import MessageRejectedError
from kerolox.message import (
    Message,
    MessageExt,
    MessageId,
    MessageQueue,
    decode_properties,
    encode_properties,
    java_hash,
    pack_host,
    tags_code,
    unpack_host,
)

VECTORS = [
    ("0AAF0895000078BF000000000009BB4A", MessageId("10.175.8.149", 30911, 637770)),
    ("0A5DE93A00002A9F0000000000430154", MessageId("10.93.233.58", 10911, 4391252)),
    (
        "FDBDDC4100010136C800000000000024000078BF0000000000004F45",
        MessageId("fdbd:dc41:1:136:c800::24", 30911, 20293),
    ),
]


@pytest.mark.parametrize(("text", "message_id"), VECTORS)
def test_message_ids_are_those_of_rocketmq(text: str, message_id: MessageId) -> None:
    assert MessageId.parse(text) == message_id
    assert MessageId.parse(text.lower()) == message_id
    assert message_id.text == text


@pytest.mark.parametrize("text", ["", "0A", "0" * 31, "0" * 33, "0" * 57, "G" * 32, "0" * 31 + " "])
def test_a_text_that_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        MessageId.parse(text)


def test_hosts_are_packed_with_a_four_byte_port() -> None:
    assert pack_host("127.0.0.1", 10911) == b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    assert len(pack_host("::1", 1)) == 20
    for host in ("127.0.0.1", "fdbd:dc41:1:136:c800::24"):
        assert unpack_host(pack_host(host, 65535)) == (host, 65535)
    with pytest.raises(ValueError, match="localhost"):
        pack_host("localhost", 1)


@pytest.mark.parametrize("text", ["k1\x01v1", "k1\x01v1\x02", "\x02k1\x01v1"])
def test_property_text_with_and_without_a_trailing_separator(text: str) -> None:
    assert decode_properties(text) == {"k1": "v1"}


@pytest.mark.parametrize("text", ["", " ", "aaa", "k1\x01", "\x01v1", "\x02\x02"])
def test_items_without_a_name_or_a_value_vanish(text: str) -> None:
    assert decode_properties(text) == {}


def test_property_text_of_4_9_8_has_no_trailing_separator() -> None:
    assert encode_properties({"a": "1", "b": "x\x01y"}) == "a\x011\x02b\x01x\x01y"
    assert decode_properties("a\x011\x02b\x01x\x01y") == {"a": "1", "b": "x\x01y"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("TagA", 2598919),
        ("polygenelubricants", -(1 << 31)),
        ("äöü", 226986),
        ("😀", 1772899),
    ],
)
def test_hashes_are_those_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_no_tags_have_code_0() -> None:
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)


def test_what_travels_are_the_user_s_properties_and_the_reserved_ones() -> None:
    message = Message("T", b"x", tags="a", keys=["k1", "k2"], properties={"p": "1"}, delay_level=3)
    assert message.wire_properties() == {
        "p": "1",
        "KEYS": "k1 k2",
        "TAGS": "a",
        "DELAY": "3",
        "WAIT": "true",
    }
    assert Message("T", b"x", wait_store_ok=False).wire_properties() == {"WAIT": "false"}


@pytest.mark.parametrize("properties", [{"TAGS": "a"}, {"UNIQ_KEY": "a"}, {"": "a"}, {"a": " "}])
def test_reserved_and_blank_properties_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageRejectedError):
        Message("T", b"x", properties=properties)


def test_a_received_message_shows_its_ids_tags_and_queue() -> None:
    message = MessageExt(
        topic="T",
        body=b"x",
        queue_id=3,
        queue_offset=7,
        commit_log_offset=637770,
        properties={"TAGS": "a", "KEYS": "k"},
        broker_name="b",
        store_host=("10.175.8.149", 30911),
    )
    assert (message.tags, message.keys, message.unique_key) == ("a", "k", "")
    assert message.queue == MessageQueue("T", "b", 3)
    assert message.message_id == message.offset_message_id == VECTORS[0][0]
    message.properties["UNIQ_KEY"] = "U"
    assert message.message_id == "U"
