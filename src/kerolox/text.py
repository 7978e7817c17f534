"""Text of strangers as people may see it: on a terminal, in a log, in an error.

A name that a client sends may hold a newline, which forges a log line, or an escape sequence,
which a terminal obeys. :func:`printable` is the one rule for both; what goes to a program (a body
with ``-o raw``, JSON) does not need it.
"""

from __future__ import annotations

__all__ = ["SHOWN_CHARACTERS_MAX", "printable"]

SHOWN_CHARACTERS_MAX = 256
"""A longer text is cut when it is shown; the line says how long it is."""


def printable(text: str, *, characters_max: int | None = SHOWN_CHARACTERS_MAX) -> str:
    r"""The text on one line, without characters that a terminal or a log reader acts on.

    Control characters, line and paragraph separators, direction marks, other invisible characters
    and lone surrogates become ``\n``, ``\x1b``, ``\u202e`` as in a Python literal; a backslash
    stays as it is.

    Args:
        text: anything, of any length.
        characters_max: characters that are kept; the rest becomes ``… (N characters)``.
            None: all.
    """
    cut = text if characters_max is None else text[:characters_max]
    if not cut.isprintable():
        cut = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
            for each in cut
        )
    return cut if len(text) <= (characters_max or len(text)) else f"{cut}… ({len(text)} characters)"
