"""Templates of ``-o``: a line of text with the fields of what is shown in braces.

``{topic}`` is the field, escaped as in a table; ``{body:raw}`` as it is, ``{properties:json}`` as
JSON, ``{lag:>8}`` in eight columns. ``{{`` and ``}}`` are braces; ``\\n``, ``\\t`` and ``\\0`` are
what they are in C. A field has a plain name: nothing of an object can be reached through it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kerolox.cli.values import json_text, plain_text
from kerolox.text import printable
from kerolox.text.json_text import JsonText

WIDTH_MAX = 512

# Texts, which re compiles when there is a template: few commands have one.
_PART = r"(?s)\{\{|\}\}|\{([^{}]*)\}|[{}]|\\(.)"
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_WIDTH = r"([<>^]?)(\d{1,3})"
_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "r": "\r", "\\": "\\"}


class Field(NamedTuple):
    """A field and how it is shown."""

    name: str
    form: str
    """``""``, ``raw``, ``json``, or a width such as ``>8``."""


def parse_template(text: str) -> tuple[str | Field, ...]:
    """The parts of a template; ValueError says where it is none."""
    parts: list[str | Field] = []
    at = 0
    for found in re.finditer(_PART, text):
        parts.append(text[at : found.start()])
        at = found.end()
        whole, inner, escape = found.group(), found.group(1), found.group(2)
        if whole in ("{{", "}}"):
            parts.append(whole[0])
        elif escape is not None:
            parts.append(_ESCAPES.get(escape, whole))
        elif inner is None:
            raise ValueError(f"a lone {whole!r} at {found.start()}; write {whole * 2!r} for one")
        else:
            parts.append(_field(inner, found.start()))
    parts.append(text[at:])
    return tuple(part for part in parts if part)


def _field(inner: str, at: int) -> Field:
    name, _, form = inner.partition(":")
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"{printable(name)!r} at {at} is no field's name")
    width = re.fullmatch(_WIDTH, form)
    if form not in ("", "raw", "json") and not (width and int(width.group(2)) <= WIDTH_MAX):
        raise ValueError(
            f"{printable(form)!r} at {at}: a field is shown as raw, json, or in a width such as >8"
        )
    return Field(name, form)


def fill_template(parts: tuple[str | Field, ...], values: Mapping[str, object]) -> str:
    """The text with the fields' values; a field ``a.b`` is the member ``b`` of the field ``a``.
    KeyError: there is no such field; its name.
    """
    return "".join(part if isinstance(part, str) else _shown(part, values) for part in parts)


def _shown(field: Field, values: Mapping[str, object]) -> str:
    value = _value(field.name, values)
    if field.form == "json":
        return json_text(value)
    text = plain_text(value)
    if field.form == "raw":
        return text
    shown = printable(text, characters_max=None)
    return f"{shown:{field.form}}" if field.form else shown


def _value(name: str, values: Mapping[str, object]) -> object:
    if name in values:
        return values[name]
    head, dot, rest = name.partition(".")
    inner = values.get(head) if dot else None
    if isinstance(inner, JsonText):
        member = inner.member(rest)
        return "" if member is None else member
    if not isinstance(inner, Mapping):
        raise KeyError(name)
    # A property that a message lacks is empty: not all have the same.
    return inner.get(rest, "")
