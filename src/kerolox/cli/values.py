"""Values of what is shown, as text and as JSON."""

from __future__ import annotations

import json


def json_text(value: object) -> str:
    r"""JSON in which everything that a terminal might obey is escaped; ``json.dumps`` leaves U+009B
    and U+202E, for instance, as they are."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def plain_text(value: object) -> str:
    """A value of a field as text: nothing for None, ``true`` and ``false``, JSON for the rest."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case int():
            return str(value)
        case _:
            return json_text(value)
