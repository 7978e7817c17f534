"""scan_columns: pieces of a log, as far as records follow each other; the kernels agree."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerolox._pykernel as reference
from kerolox._pykernel.columns import COLUMNS
from tests.support.stores.log_bytes import record

BASE = 7_000
EVERY = {"start": 0, "log_offset": BASE, "rows_max": 100}


def log(*parts: dict[str, Any]) -> bytes:
    data = b""
    for part in parts:
        data += record(BASE + len(data), **part)
    return data


def scan(kernel: Any, data: bytes, columns: Any = ("commitLogOffset",), **changes: Any) -> Any:
    """What both kernels say; the columns are those of ``decode_columns`` for the rows."""
    found = kernel.scan_columns(data, columns, **({"stop": len(data)} | EVERY | changes))
    assert found == reference.scan_columns(data, columns, **({"stop": len(data)} | EVERY | changes))
    return found


def places(found: Any) -> list[int]:
    data = found[1]["commitLogOffset"]
    return [int.from_bytes(data[at : at + 8], "little") - BASE for at in range(0, len(data), 8)]


def test_whole_records_are_rows_like_those_of_decode_columns(kernel) -> None:
    data = log({}, {"body": b"x" * 50, "born_host": ("2001:db8::1", 1)}, {"topic": "U"})
    found = scan(kernel, data, COLUMNS)
    assert found[:1] + found[2:] == (3, len(data), 3, False)
    assert found[:3] == kernel.decode_columns(data, COLUMNS)
    assert set(found[1]) == set(COLUMNS)
    assert found[1]["crcOk"] == bytes([0b111])


def test_the_first_bytes_that_are_no_record_end_the_call(kernel) -> None:
    data = log({}, {}, {})
    size = len(data) // 3
    for cut in range(size, 2 * size):
        assert scan(kernel, data[:cut])[2:] == (size, 1, cut > size)
    for at, value in [(4, 0), (0, 9), (28, 1), (84, 1), (92, 9), (93, 0xFF)]:
        broken = bytearray(data)
        broken[size + at] = value
        assert scan(kernel, bytes(broken))[2:] == (size, 1, True), at
    assert scan(kernel, bytes(200))[2:] == (0, 0, True)
    assert scan(kernel, b"")[2:] == (0, 0, False)


def test_a_record_that_stands_elsewhere_or_has_no_topic_is_none(kernel) -> None:
    data = log({}, {})
    assert scan(kernel, data, log_offset=BASE + 1)[2:] == (0, 0, True)
    assert places(scan(kernel, data, log_offset=None)) == [0, len(data) // 2]
    nameless = log({"topic": ""})
    assert scan(kernel, nameless)[2:] == (0, 0, True)
    assert scan(kernel, nameless, log_offset=None)[2:] == (len(nameless), 1, False)


def test_a_call_stops_at_its_bounds(kernel) -> None:
    data = log({}, {}, {})
    size = len(data) // 3
    assert scan(kernel, data, stop=size)[2:] == (size, 1, False)
    assert scan(kernel, data, stop=size + 1)[2:] == (2 * size, 2, False)
    assert scan(kernel, data, rows_max=2)[2:] == (2 * size, 2, False)
    assert scan(kernel, data, start=size)[2:] == (3 * size, 2, False)
    found = scan(kernel, data, ["body"], body_bytes_max=9)
    assert (found[0], found[2], found[4]) == (2, 2 * size, False)


def test_times_and_topics_choose_rows_and_a_topic_is_asked_about_once(kernel) -> None:
    parts = [{"topic": "TU"[n % 2], "store_timestamp": 10 + n} for n in range(6)]
    data = log(*parts)
    size = len(data) // 6
    found = scan(kernel, data, stored_from=11, stored_before=14)
    assert (places(found), found[3]) == ([size, 2 * size, 3 * size], 6)
    asked: list[bytes] = []

    def choose(topic: bytes) -> bool:
        asked.append(topic)
        return topic == b"U"

    found = kernel.scan_columns(data, ["commitLogOffset"], stop=len(data), topics=choose, **EVERY)
    assert places(found) == [size, 3 * size, 5 * size]
    assert asked == [b"T", b"U"]
    # Rows are counted, not records.
    assert scan(kernel, data, topics=lambda t: t == b"U", rows_max=1)[2] == 2 * size


def test_a_wrong_crc_ends_the_call_or_is_a_column(kernel) -> None:
    data = bytearray(log({}, {"topic": "U"}, {}))
    size = len(data) // 3
    data[size + 88] ^= 1
    assert scan(kernel, bytes(data))[2:] == (size, 1, True)
    found = scan(kernel, bytes(data), ["crcOk"], checks_crc=False)
    assert (found[0], found[1]["crcOk"]) == (3, bytes([0b101]))
    assert scan(kernel, bytes(data), topics=lambda t: t == b"T")[2:] == (3 * size, 3, False)


def test_odd_bodies_are_asked_about_by_their_physical_offset(kernel) -> None:
    packed = zlib.compress(b"y" * 500)
    data = log({"body": packed, "sys_flag": 1}, {"body": b"lz4", "sys_flag": 0x101})
    asked: list[int] = []

    def odd(stored: bytes, flags: int, place: int) -> bytes | None:
        asked.append(place - BASE)
        return None

    found = scan(kernel, data, ["body"], odd_body=odd)
    assert found[1]["body"][2] == b"y" * 500
    assert found[1]["body"][0] == bytes([0b01])
    assert asked == [len(record(0, body=packed))] * 2

    def refuse(*_: object) -> bytes | None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        kernel.scan_columns(data, ["body"], stop=len(data), odd_body=refuse, **EVERY)
    with pytest.raises(ValueError, match=f"commit log offset {BASE + asked[0]}"):
        kernel.scan_columns(data, ["body"], stop=len(data), **EVERY)


def test_what_a_choice_raises_is_raised(kernel) -> None:
    def refuse(_: bytes) -> bool:
        raise KeyError("no")

    with pytest.raises(KeyError):
        kernel.scan_columns(log({}), [], stop=9, topics=refuse, **EVERY)
    with pytest.raises(ValueError, match=r"no column .nope"):
        kernel.scan_columns(b"", ["nope"], stop=0, **EVERY)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.builds(
            dict,
            body=st.binary(max_size=40),
            topic=st.sampled_from(["T", "U", "\u00fc"]),
            store_timestamp=st.integers(0, 9),
            store_host=st.sampled_from([("10.0.0.1", 1), ("::1", 2)]),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=4),
    st.booleans(),
    st.integers(0, 700),
)
def test_the_kernels_agree_on_any_bytes(kernel, parts, changes, checks_crc, stop) -> None:
    data = bytearray(log(*parts))
    for at, value in changes:
        if at < len(data):
            data[at] = value
    given_ = {"stop": min(stop, len(data)), "checks_crc": checks_crc, "stored_from": 2}
    scan(kernel, bytes(data), COLUMNS, odd_body=lambda *_: None, **given_)
    scan(kernel, bytes(data), COLUMNS, odd_body=lambda *_: b"", log_offset=None, **given_)
    scan(kernel, bytes(data), [], topics=lambda topic: topic != b"T", **given_)


def test_other_buffers_than_bytes_are_read(kernel) -> None:
    data = log({}, {})
    for made in (bytearray(data), memoryview(data)):
        assert kernel.scan_columns(made, ["size"], stop=len(data), **EVERY)[0] == 2
