"""An answer has a bound, whatever the cluster holds, and says what it lacks."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kerolox.mcp.envelope import (
    ANSWER_BYTES_MAX,
    ROWS_MAX,
    TEXT_CHARACTERS_MAX,
    envelope,
)


def test_a_long_list_keeps_its_first_rows() -> None:
    answer = envelope({"topics": [f"t{number}" for number in range(500)]})
    assert answer["data"] == {"topics": [f"t{number}" for number in range(ROWS_MAX)]}
    assert answer["left_out"] == [f"topics: {ROWS_MAX} of 500 are here"]


def test_rows_that_are_large_are_fewer() -> None:
    answer = envelope([{"body": "x" * 3_000} for _ in range(100)])
    rows = answer["data"]
    assert isinstance(rows, list)
    assert 10 <= len(rows) < 22
    assert answer["left_out"] == [f"data: {len(rows)} of 100 are here"]


def test_a_long_text_says_how_long_it_was() -> None:
    data = envelope({"body": "x" * 10_000})["data"]
    assert data == {"body": "x" * TEXT_CHARACTERS_MAX + "… (10000 characters)"}


def test_members_that_are_too_many_and_too_long_are_cut() -> None:
    answer = envelope({f"property-{n}": "\u20ac" * 5_000 for n in range(300)})
    assert len(msgspec.json.encode(answer)) <= ANSWER_BYTES_MAX
    assert answer["left_out"] == [f"data: {ROWS_MAX} of 300 are here"]
    assert isinstance(answer["data"], dict)
    assert len(answer["data"]) == ROWS_MAX


def test_what_is_invisible_is_escaped_also_in_names() -> None:
    answer = envelope({"a\x1bb": "line one\nline \u202etwo\U000e0041"})
    assert answer["data"] == {"a\\x1bb": "line one\nline \\u202etwo\\U000e0041"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    ),
    st.integers(1, 400),
)
def test_every_answer_is_json_within_its_bound(value: object, times: int) -> None:
    answer = envelope({"rows": [value] * times, "more": value})
    assert len(msgspec.json.encode(answer)) <= ANSWER_BYTES_MAX
    assert msgspec.json.decode(msgspec.json.encode(answer)) == answer
