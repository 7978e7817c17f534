r"""Java's ``.properties`` text: read, written, and changed in place.

The rules are those of ``java.util.Properties.load``: comments begin with ``#`` or ``!``, a line
that ends in an odd number of backslashes goes on in the next, ``\uXXXX`` and ``\n`` are escapes.
What is written has everything escaped that a reader would take for something else, and everything
beyond ASCII, since Java reads such files as ISO 8859-1:
``parse_properties(format_properties(x)) == x``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kerolox.errors import ConfigError
from kerolox.text import printable

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {character: f"\\{letter}" for letter, character in _ESCAPES.items()}

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_KEY = re.compile(r"(?:[^\\=: \t\f]+|\\.?)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.?))", re.DOTALL)
_UNSAFE_IN_VALUE = r"^ |[^ -\[\]-~]"
_UNSAFE_IN_KEY = r"[ =:#!]|[^ -\[\]-~]"
"""Compiled when something is written, which few do."""


@dataclass(slots=True)
class _Entry:
    """One key with its value, as it stands in a text."""

    text: str
    """Its lines joined, without what makes them several."""
    number: int
    """The number of its first line, from 1."""
    begin: int
    """Where its first line begins."""
    end: int
    """Where its last line ends, before the line's end."""
    is_one_line: bool = True


def parse_properties(text: str, *, where: str = "properties") -> dict[str, str]:
    """Read all keys; one that is given twice has its last value, as in Java.

    Lone surrogates among the escapes become U+FFFD. ConfigError: a ``\\u`` escape without four hex
    digits; the text names ``where`` and line.
    """
    return {
        key: _unescape(entry.text[begin:], _at(where, entry))
        for entry, key, begin, _ in _keyed(text, where)
    }


def key_lines(text: str, *, where: str = "properties") -> dict[str, tuple[int, ...]]:
    """In which lines each key stands, from 1; the last one counts. Errors as of
    :func:`parse_properties`.
    """
    found: dict[str, tuple[int, ...]] = {}
    for entry, key, _, _ in _keyed(text, where):
        found[key] = (*found.get(key, ()), entry.number)
    return found


def format_properties(values: Mapping[str, str]) -> str:
    """One ``key=value`` line for each key, escaped."""
    return "".join(f"{_escape_key(key)}={_escape(value)}\n" for key, value in values.items())


def edit_properties(text: str, changes: Mapping[str, str], *, where: str = "properties") -> str:
    """The text with some keys set, and everything else in it as it was. Errors as of
    :func:`parse_properties`.

    A key that is there has its value replaced where it stands (the last time, which is the one that
    counts); further ones follow at the end. Comments, blank lines, order and other keys stay.
    """
    found = {
        key: (entry, entry.text[:begin] if entry.is_one_line and separated else None)
        for entry, key, begin, separated in _keyed(text, where)
        if key in changes
    }
    pieces: list[str] = []
    position = 0
    for key, (entry, head) in sorted(found.items(), key=lambda item: item[1][0].begin):
        pieces += (text[position : entry.begin], head or f"{_escape_key(key)}=")
        pieces.append(_escape(changes[key]))
        position = entry.end
    pieces.append(text[position:])
    edited = "".join(pieces)
    added = {key: value for key, value in changes.items() if key not in found}
    if not added:
        return edited
    newline = match[2] if (match := _LINE.match(text)) and match[2] else "\n"
    if _is_unfinished(edited):
        edited = edited[:-1]
    if edited and not edited.endswith(("\r", "\n")):
        edited += newline
    return edited + format_properties(added).replace("\n", newline)


def _entries(text: str) -> Iterator[_Entry]:
    entry: _Entry | None = None
    parts: list[str] = []
    # The last match is what follows the last line: nothing, which ends a continued line.
    for number, match in enumerate(_LINE.finditer(text), 1):
        line = match[1].lstrip(_BLANKS)
        if entry is None:
            if not line or line[0] in "#!":
                continue
            entry = _Entry("", number, match.end(1) - len(line), match.end(1))
            parts = []
        else:
            entry.is_one_line = False
        entry.end = match.end(1)
        if _is_continued(line):
            parts.append(line[:-1])
            continue
        parts.append(line)
        entry.text = "".join(parts)
        if entry.text:
            yield entry
        entry = None


def _keyed(text: str, where: str) -> Iterator[tuple[_Entry, str, int, bool]]:
    """Each entry, its key, where in its text the value begins, and whether = or : is before it."""
    for entry in _entries(text):
        end = _match_end(_KEY, entry.text, 0)
        begin = _match_end(_SEPARATOR, entry.text, end)
        key = _unescape(entry.text[:end], _at(where, entry))
        yield entry, key, begin, bool(entry.text[end:begin].strip(_BLANKS))


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _is_unfinished(text: str) -> bool:
    """Whether a line would be joined to what is appended."""
    line = re.split(r"[\r\n]", text)[-1].lstrip(_BLANKS)
    if not _is_continued(line):
        return False
    return line[0] not in "#!" or _ends_in_entry(text)


def _ends_in_entry(text: str) -> bool:
    return any(entry.end == len(text) for entry in _entries(text))


def _at(where: str, entry: _Entry) -> str:
    return f"{where}, line {entry.number}"


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            digits = printable(text[match.end() : match.end() + 4])
            raise ConfigError(f"{where}: \\u{digits} is no escape; it needs four hex digits")
        return _ESCAPES.get(match[2], match[2])

    joined = _ESCAPE.sub(replaced, text)
    # Escaped characters beyond 0xFFFF come as two surrogates.
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(value: str) -> str:
    return re.sub(_UNSAFE_IN_VALUE, _escape_of, value)


def _escape_key(key: str) -> str:
    return re.sub(_UNSAFE_IN_KEY, _escape_of, key)


def _escape_of(match: re.Match[str]) -> str:
    character = match[0]
    if character in _ESCAPED:
        return _ESCAPED[character]
    if " " <= character <= "~":
        return f"\\{character}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
