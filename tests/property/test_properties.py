"""What is written to a .properties file is what a reader gets, whatever was there before."""

from __future__ import annotations

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kerolox.errors import ConfigError
from kerolox.properties import edit_properties, format_properties, parse_properties

ODD = "\\=:#! \t\f\r\n\0\x1b\x7f\x85\u2028ä😀au0"
texts = st.one_of(st.text(max_size=20), st.text(st.sampled_from(ODD), max_size=12))
tables = st.dictionaries(texts, texts, max_size=5)
files = st.lists(
    st.sampled_from(
        ["a", "b", "=", ":", " ", "\t", "\\", "\n", "\r\n", "\r", "#", "!", "x y", "\\\n", "a=1\n"]
    ),
    max_size=30,
).map("".join)


@given(tables)
@settings(derandomize=True)
def test_what_is_written_is_read_back_exactly(values: dict[str, str]) -> None:
    written = format_properties(values)
    assert written.isascii()
    assert parse_properties(written) == values
    assert written.count("\n") == len(values)


@given(files, st.dictionaries(st.one_of(st.sampled_from(["a", "b", "x"]), texts), texts))
@example("a=1\\", {"b": "2"})
@example("# c\\", {"b": "2"})
@example("a=1\\\n# c\\", {"b": "2"})
@example("a\\=", {"a=": "2"})
@example("\\", {"b": "2"})
@settings(derandomize=True)
def test_an_edit_sets_its_keys_and_no_other(before: str, changes: dict[str, str]) -> None:
    assert parse_properties(edit_properties(before, changes)) == (
        parse_properties(before) | changes
    )


@given(files)
@settings(derandomize=True)
def test_an_edit_of_nothing_changes_no_character(before: str) -> None:
    assert edit_properties(before, {}) == before


@given(st.text(max_size=60))
@settings(derandomize=True)
def test_any_text_is_properties_or_an_error_of_its_own(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(isinstance(value, str) for value in parse_properties(text).values())
