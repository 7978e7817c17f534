from __future__ import annotations

import struct
import zlib

import pytest

from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageExt
from kerolox.protocol.records import (
    body_crc,
    decode_batch,
    decode_record,
    decode_records,
    encode_batch,
    encode_record,
)


def message(**changes: object) -> MessageExt:
    given: dict[str, object] = {
        "topic": "T",
        "body": b"hello",
        "queue_id": 3,
        "queue_offset": 7,
        "commit_log_offset": 4096,
        "properties": {"TAGS": "a", "k": "ä"},
        "flag": 9,
        "born_timestamp": 1_700_000_000_000,
        "store_timestamp": 1_700_000_000_001,
        "born_host": ("10.0.0.1", 40000),
        "store_host": ("10.0.0.2", 10911),
        "reconsume_times": 2,
        "prepared_transaction_offset": 5,
    }
    return MessageExt(**(given | changes))  # type: ignore[arg-type]


TEXT = "TAGS\x01a\x02k\x01ä"


@pytest.mark.parametrize(
    "hosts",
    [
        {},
        {"born_host": ("fe80::1", 1)},
        {"store_host": ("fe80::2", 2)},
        {"born_host": ("fe80::1", 1), "store_host": ("fe80::2", 2)},
    ],
    ids=["v4 v4", "v6 v4", "v4 v6", "v6 v6"],
)
def test_a_record_is_read_as_it_was_written(hosts: dict[str, object]) -> None:
    given = message(**hosts)
    data = encode_record(given, TEXT)
    got, position = decode_record(b"xx" + data, 2, broker_name="b")
    assert position == 2 + len(data)
    bits = {"born_host": 16, "store_host": 32}
    assert got.sys_flag == sum(bits[name] for name in hosts)
    given.broker_name, given.store_size, given.sys_flag = "b", len(data), got.sys_flag
    given.body_crc = zlib.crc32(b"hello") & 0x7FFFFFFF
    assert got == given


def test_the_layout_is_that_of_the_commit_log() -> None:
    data = encode_record(message(), TEXT)
    assert struct.unpack_from(">IIIiiqqiq", data) == (
        len(data),
        0xDAA320A7,
        body_crc(b"hello"),
        3,
        9,
        7,
        4096,
        0,
        1_700_000_000_000,
    )
    assert len(data) == 91 + len(b"hello") + len("T") + len(TEXT.encode())
    assert data.endswith(struct.pack(">H", len(TEXT.encode())) + TEXT.encode())


def test_the_checksum_has_no_sign_bit() -> None:
    assert all(0 <= body_crc(bytes([i])) < 1 << 31 for i in range(256))


def test_records_follow_each_other() -> None:
    data = encode_record(message(), TEXT) + encode_record(message(queue_offset=8), "")
    assert [m.queue_offset for m in decode_records(data)] == [7, 8]
    assert decode_records(b"") == []


@pytest.mark.parametrize("bits", [0x001, 0x301])
def test_a_compressed_body_is_inflated_unless_it_is_asked_for_as_it_is(bits: int) -> None:
    packed = zlib.compress(b"hello" * 100)
    data = encode_record(message(body=packed, sys_flag=bits), "")
    assert decode_record(data)[0].body == b"hello" * 100
    assert decode_record(data, inflate=False)[0].body == packed


@pytest.mark.parametrize("sys_flag", [0x301, 0x701, 0x101 | 2])
def test_the_compression_type_is_kept(sys_flag: int) -> None:
    data = encode_record(message(sys_flag=sys_flag), "")
    assert decode_record(data, inflate=False)[0].sys_flag == sys_flag


def test_a_body_that_can_not_be_inflated_holds_up_nobody() -> None:
    data = encode_record(message(body=b"not zlib", sys_flag=0x301), TEXT)
    data += encode_record(message(queue_offset=8), "")
    bad, good = decode_records(data)
    assert "corrupt" in bad.body_error
    assert (bad.body, bad.queue_offset, bad.topic) == (b"not zlib", 7, message().topic)
    assert (good.body_error, good.body) == ("", message().body)


def test_a_record_cut_anywhere_is_an_error() -> None:
    data = encode_record(message(), TEXT)
    for size in range(1, len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_records(data[:size])


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, 10),
        (0, 0x7FFFFFFF),
        (4, 0xCBD43194),
        (4, 0),
        (84, 4),
        (84, 0x7FFFFFFF),
        (84, 0xFFFFFFFF),
    ],
)
def test_a_record_with_a_lying_length_or_magic_is_an_error(position: int, value: int) -> None:
    data = bytearray(encode_record(message(), TEXT))
    struct.pack_into(">I", data, position, value)
    with pytest.raises(RemoteProtocolError):
        decode_records(bytes(data))


def test_a_batch_is_read_as_it_was_written() -> None:
    items = [(0, b"one", b"k\x01v"), (7, b"", b""), (-1, b"three", b"")]
    assert decode_batch(encode_batch(items))[0] == items
    assert decode_batch(b"")[0] == []


def test_a_batch_cut_anywhere_is_an_error() -> None:
    data = encode_batch([(0, b"one", b"k\x01v")])
    for size in range(1, len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_batch(data[:size])


@pytest.mark.parametrize("size", [0, -1, 25, 27, 1 << 30])
def test_a_batch_with_a_lying_size_is_an_error(size: int) -> None:
    data = bytearray(encode_batch([(0, b"one", b"k\x01v")]))
    struct.pack_into(">i", data, 0, size)
    with pytest.raises(RemoteProtocolError):
        decode_batch(bytes(data))


def test_properties_that_are_no_text_are_repaired_and_do_not_hold_up_the_next_record() -> None:
    odd = encode_record(message(), "k\x01??").replace(b"k\x01??", b"k\x01\xff\xfe")
    first, second = decode_records(odd + encode_record(message(), TEXT))
    assert first.properties == {"k": "\ufffd\ufffd"}
    assert second.properties == {"TAGS": "a", "k": "ä"}
