"""JSON that is shown as it was written."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.text.json_text import DEPTH_MAX, JsonText, compact_json, indented_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_spaced_as_the_standard_library_spaces_it(
    value: object, is_ascii: bool, indent: object
) -> None:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return
    try:
        text = json.dumps(value, ensure_ascii=is_ascii, indent=indent, allow_nan=False)
    except ValueError:
        return
    body = text.encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    assert compact_json(body) == json.dumps(value, ensure_ascii=is_ascii)
    assert indented_json(body) == json.dumps(value, ensure_ascii=is_ascii, indent=2)


@pytest.mark.parametrize(
    "token",
    [
        *("1.10", "1.00000000000000000000001", "0.1234567890123456789012", "1E5", "-0", "1e400"),
        *("12345678901234567890123", r'"a\/b\u0041\ud800"', '"\u202e\U0001f600"', "[]", "{}"),
    ],
)
def test_no_token_is_written_otherwise(token: str) -> None:
    for text in (token, f"[{token}]", f'{{"a": {token}, "a": {token}}}'):
        assert compact_json(text.encode()) == text
        assert "".join(indented_json(text.encode()).split()) == text.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "NaN",
            "[Infinity]",
            "[-Infinity]",
            "[1,]",
            "[,1]",
            '{"a":1,}',
            "{1:2}",
            "{a:1}",
        ),
        *('{"a"}', '{"a":}', '{"a" 1}', '{"a"::1}', "[1 2]", "1 2", "01", "1.", ".5", "+1", "- 1"),
        *('"a', r'"\x"', r'"\u12g4"', '"\n"', "[", "[}", "]", "{]", "nul", "'a'", "1e", "\ufeff1"),
        *("[1]]", ":", ",", '{"a":1:2}', '["a":1]', "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)),
        *("\u00a01", "[1\f]", "\u0661"),
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    for view in (compact_json, indented_json):
        with pytest.raises(ValueError, match=r"character|no JSON|cut"):
            view(text.encode())


def test_bodies_that_are_hostile_cost_no_more_than_their_length() -> None:
    for body in (b"[" * 2_000_000, b'{"a":' * 400_000, b'"' + b"\\" * 2_000_001, b"1" * 2_000_000):
        shown = b""
        with contextlib.suppress(ValueError):
            shown = compact_json(body).encode()
        assert shown in (b"", body)
    assert len(indented_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)) < 4 * DEPTH_MAX * DEPTH_MAX


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (r'{"a": "\u0041", "b": 1.10}', "a", "A"),
        ('{"a": 1, "b": 1.10}', "b", "1.10"),
        ('{"a": {"b": 2}, "b": [1,{"b":3}]}', "b", '[1, {"b": 3}]'),
        ('{"a": 1, "a": 2}', "a", "2"),
        (r'{"\u0061": 1}', "a", "1"),
        ('{"a": {}}', "b", None),
        ("{}", "a", None),
        ('["a", 1]', "a", None),
        ("5", "a", None),
    ],
)
def test_a_member_is_found_as_it_is_written(text: str, name: str, value: str | None) -> None:
    assert JsonText(text).member(name) == value
