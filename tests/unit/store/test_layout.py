from __future__ import annotations

import pytest

from kerolox.errors import ConfigError
from kerolox.kernel.delay_levels import delay_levels_ms
from kerolox.message import java_hash, property_value
from kerolox.protocol.records import head_packer, parse_record
from kerolox.store.layout import (
    ENTRY,
    crc_matches,
    entries_packer,
    entries_unpacker,
    is_blank,
    record_tags_code,
)

DELAYS = delay_levels_ms("1s 5s 2m 1h 1d")


def build(body: bytes = b"abc", topic: bytes = b"T", properties: bytes = b"", at: int = 0) -> bytes:
    pack, bits, fixed = head_packer(bytes(8), bytes(20))
    size = fixed + len(body) + len(topic) + len(properties)
    import zlib

    head = pack(
        size, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, 3, 7, 11, at, bits, 1, bytes(8), 99,
        bytes(20), 0, 0, len(body),
    )  # fmt: skip
    return b"".join(
        (head, body, bytes([len(topic)]), topic, len(properties).to_bytes(2, "big"), properties)
    )


def test_a_whole_record_is_parsed_with_ipv6_store_host() -> None:
    data = build(properties=b"TAGS\x01a")
    record = parse_record(data, 0, len(data), 0)
    assert record is not None
    assert (record.size, record.queue_id, record.queue_offset) == (len(data), 3, 11)
    assert (record.store_timestamp, record.topic) == (99, b"T")
    assert record.properties == b"TAGS\x01a"
    assert crc_matches(data, record)


@pytest.mark.parametrize("size", [0, 1, 90, 2**31 - 1, 2**32 - 1])
def test_a_garbage_length_with_the_right_magic_is_no_record(size: int) -> None:
    data = size.to_bytes(4, "big") + build()[4:]
    assert parse_record(data, 0, len(data), 0) is None


def test_a_record_of_another_offset_is_none() -> None:
    data = build(at=4096)
    assert parse_record(data, 0, len(data), 0) is None


@pytest.mark.parametrize("cut", range(0, 110, 7))
def test_a_torn_record_is_none(cut: int) -> None:
    data = build()
    assert parse_record(data, 0, min(cut, len(data) - 1), 0) is None


def test_a_changed_body_does_not_match_its_crc() -> None:
    data = build(body=b"hello")
    broken = data.replace(b"hello", b"hellp")
    record = parse_record(broken, 0, len(broken), 0)
    assert record is not None
    assert not crc_matches(broken, record)


def test_a_blank_is_known_by_its_magic() -> None:
    assert is_blank(bytes.fromhex("00000010cbd43194"), 0, 8)
    assert not is_blank(bytes(8), 0, 8)
    assert not is_blank(bytes.fromhex("00000010cbd43194"), 0, 7)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"TAGS\x01a", b"a"),
        (b"KEYS\x01k\x02TAGS\x01a\x02", b"a"),
        (b"XTAGS\x01no", None),
        (b"TAGS\x01", None),
        (b"TAGS\x01first\x02TAGS\x01", b"first"),
        (b"TAGS\x01first\x02TAGS\x01last", b"last"),
        (b"A\x01TAGS\x01no", None),
        (b"", None),
    ],
)
def test_a_property_is_found_by_name(text: bytes, value: bytes | None) -> None:
    assert property_value(text, "TAGS") == value


def test_the_tags_code_is_the_java_hash() -> None:
    assert record_tags_code(b"T", b"TAGS\x01TagA", 5, DELAYS) == java_hash("TagA")
    assert record_tags_code(b"T", b"", 5, DELAYS) == 0


@pytest.mark.parametrize(("level", "delay"), [(1, 1_000), (3, 120_000), (9, 86_400_000)])
def test_a_delayed_record_has_its_deliver_time_as_code(level: int, delay: int) -> None:
    text = f"DELAY\x01{level}\x02TAGS\x01x".encode()
    assert record_tags_code(b"SCHEDULE_TOPIC_XXXX", text, 7, DELAYS) == 7 + delay


def test_delay_of_an_ordinary_topic_changes_nothing() -> None:
    assert record_tags_code(b"T", b"DELAY\x013", 7, DELAYS) == 0


def test_a_wrong_delay_level_is_named() -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel: '5x'"):
        delay_levels_ms("1s 5x")


def test_hosts_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="hosts of 7 and 8 bytes"):
        head_packer(bytes(7), bytes(8))


def test_entries_are_packed_as_one_by_one() -> None:
    flat = [1, 2, -3, 4, 5, 6]
    data = entries_packer(2)(*flat)
    assert data == ENTRY.pack(1, 2, -3) + ENTRY.pack(4, 5, 6)
    assert list(entries_unpacker(2)(data)) == flat
