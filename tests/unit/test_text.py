"""Text of strangers, made safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.text import SHOWN_CHARACTERS_MAX, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Orders", "Orders"),
        ("größe 大小 ✓", "größe 大小 ✓"),
        ("a\nERROR all is lost", "a\\nERROR all is lost"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("a\u2028b\ud800", "a\\u2028b\\ud800"),
        ("C:\\store", "C:\\store"),
    ],
)
def test_invisible_characters_are_escaped_and_others_kept(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None), max_size=40))
def test_a_shown_text_is_printable_and_encodes(text: str) -> None:
    assert printable(text).isprintable()
    printable(text).encode()


def test_a_long_text_is_cut_and_says_how_long_it_is() -> None:
    shown = printable("x" * 1_000_000)
    assert shown == "x" * SHOWN_CHARACTERS_MAX + "… (1000000 characters)"
    assert printable("x" * 1000, characters_max=None) == "x" * 1000
