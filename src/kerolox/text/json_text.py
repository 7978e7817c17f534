r"""JSON of strangers shown as it was written: checked and spaced token by token, never made values
of, since ``1.10``, a decimal of 40 digits, a name that stands twice and ``\u0041`` have no value
that is written so again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

__all__ = ["DEPTH_MAX", "JsonText", "compact_json", "indented_json"]

DEPTH_MAX = 512
"""Of arrays and objects within each other: lines are indented by it."""

_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = (
    r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
    r"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
    r"|true|false|null|[\[\]{},:]"
)
_CLOSINGS = {"[": "]", "{": "}"}
_PUNCTUATION = frozenset("[]{},:")


class JsonText(str):
    """A JSON text (RFC 8259) on one line. What shows values shows it as it is, without quotes."""

    __slots__ = ()

    def member(self, name: str) -> str | None:
        """A member of an object: a string's characters, else its JSON; of several with that name
        the last. None: it has none, or is no object."""
        found: list[str] | None = None
        parts: list[str] = []
        depth, key = 0, None
        for token in _tokens(self) if self.startswith("{") else ():
            depth -= token in _CLOSINGS.values()
            if depth == 1 and token == ":" and key is None:
                key, parts = json.loads(parts[0]), []
            elif (depth == 1 and token == ",") or (depth == 0 and token == "}"):
                if key == name:
                    found = parts
                key, parts = None, []
            elif depth > 0:
                parts.append(token)
            depth += token in _CLOSINGS
        if found is None:
            return None
        text = "".join(_spaced(found))
        return str(json.loads(text)) if text.startswith('"') else JsonText(text)


def compact_json(body: bytes) -> JsonText:
    """A body that holds JSON, on one line; only the blanks between its tokens are others.
    ValueError says where it holds none.
    """
    return JsonText("".join(_spaced(_tokens(body.decode()))))


def indented_json(body: bytes) -> str:
    """A body that holds JSON, a value a line. Errors: see :func:`compact_json`."""
    parts: list[str] = []
    depth, last = 0, ""
    for token in _tokens(body.decode()):
        is_closing = token in _CLOSINGS.values()
        depth -= is_closing
        if (last not in _CLOSINGS) if is_closing else (last in _CLOSINGS or last == ","):
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        depth += token in _CLOSINGS
        last = token
    return "".join(parts)


def _spaced(tokens: Iterable[str]) -> Iterator[str]:
    """As ``json.dumps`` sets blanks."""
    for token in tokens:
        yield token + " " if token in (",", ":") else token


def _tokens(text: str) -> Iterator[str]:
    """The tokens of one value, checked; ValueError: it is no JSON, or has more than ``DEPTH_MAX``
    levels.
    """
    open_ones: list[str] = []
    # What may come: a value ("v"), a first value or the end ("V"), a name ("n"), a first name or
    # the end ("N"), a colon (":"), a comma or the end (","), nothing ("").
    due = "v"
    at = _end_of_space(text, 0)
    token_at = re.compile(_TOKEN).match  # not at the import: few commands show JSON
    while at < len(text):
        found = token_at(text, at)
        if found is None:
            raise ValueError(f"no JSON at character {at}")
        token = found[0]
        due = _next_due(token, due, open_ones, at)
        yield token
        at = _end_of_space(text, found.end())
    if due:
        raise ValueError(f"the JSON is cut at character {at}")


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _next_due(token: str, due: str, open_ones: list[str], at: int) -> str:
    """What may come after a token; ``open_ones``: the ends of what is open, changed here."""
    if token in _CLOSINGS and due in ("v", "V"):
        if len(open_ones) == DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} levels at character {at}")
        open_ones.append(_CLOSINGS[token])
        return "N" if token == "{" else "V"
    if open_ones and token == open_ones[-1] and due in ("V", "N", ","):
        open_ones.pop()
    elif token == "," and due == "," and open_ones:
        return "n" if open_ones[-1] == "}" else "v"
    elif token == ":" and due == ":":
        return "v"
    elif due in ("n", "N") and token.startswith('"'):
        return ":"
    elif due not in ("v", "V") or token in _PUNCTUATION:
        raise ValueError(f"{token[:16]!r} is out of place at character {at}")
    return "," if open_ones else ""
