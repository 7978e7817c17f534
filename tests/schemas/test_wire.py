"""Confluent's wire format, by what its documentation says and its library writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.schemas.wire import ID_MAX, header, split, split_indexes


@pytest.mark.parametrize(
    ("schema_id", "indexes", "wanted"),
    [
        (1, None, "0000000001"),
        (ID_MAX, None, "007fffffff"),
        (5, (0,), "000000000500"),
        (5, (1,), "00000000050202"),
        (5, (1, 0), "0000000005040200"),
        (5, (2, 300), "00000000050404d804"),
    ],
)
def test_a_header_has_the_bytes_of_the_documentation(
    schema_id: int, indexes: tuple[int, ...] | None, wanted: str
) -> None:
    begin = header(schema_id, indexes)
    assert begin.hex() == wanted
    found, rest = split(begin + b"value")
    assert found == schema_id
    if indexes is not None:
        assert split_indexes(rest) == (indexes, b"value")


def test_the_first_message_is_read_in_its_long_form_too() -> None:
    assert split_indexes(b"\x02\x00value") == ((0,), b"value")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "0 bytes"),
        (b"\x00\x00\x00\x00", "4 bytes"),
        (b'{"a":1}', "begins with byte 123"),
        (b"\x00\xff\xff\xff\xff", "is none"),
    ],
)
def test_a_body_without_a_header_says_why(body: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split(body)


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (b"", "too early"),
        (b"\x02", "too early"),
        (b"\x80\x80\x80\x80\x80\x80", "too long"),
        (b"\x01", "negative"),
        (b"\xfe\x03", "indexes; 32 are read"),
        (b"\x02\xfe\xff\x7f", "larger than"),
    ],
)
def test_indexes_that_are_none_say_why(rest: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split_indexes(rest)


@pytest.mark.parametrize(
    ("schema_id", "indexes"), [(-1, None), (ID_MAX + 1, None), (1, ()), (1, (-1,)), (1, (0,) * 40)]
)
def test_a_number_out_of_range_is_refused(schema_id: int, indexes: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match=r"is none|is no place"):
        header(schema_id, indexes)


@given(st.binary())
def test_bytes_of_strangers_are_read_or_refused(rest: bytes) -> None:
    try:
        indexes, value = split_indexes(rest)
    except ValueError:
        return
    assert split_indexes(header(1, indexes)[5:] + value) == (indexes, value)
