"""``--template``: what is filled into messages that are sent, between double braces.

``{{n}}`` is the number of the message, from 1, ``{{n:06}}`` with leading zeros; ``{{time}}`` and
``{{ms}}`` are now, as ISO 8601 in UTC and in milliseconds since 1970; ``{{uuid}}``, ``{{random}}``
(eight hex digits), ``{{random:N}}`` (so many) and ``{{number:LEAST:MOST}}`` are another each time.
Bodies are often JSON, which has no double brace before a name.
"""

from __future__ import annotations

import functools
import random
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from kerolox.clock import now_ms
from kerolox.text import printable

DIGITS_MAX = 1024
"""Of ``{{random:N}}``, and of a number."""

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")
_KNOWN = "n, n:06, time, ms, uuid, random, random:N, number:LEAST:MOST"

Fill = Callable[[int], str]
"""The text of the message with a number."""


@functools.lru_cache(maxsize=64)
def filling(text: str) -> Fill:
    """What fills a template.

    Raises:
        ValueError: it asks for something that there is not; the text says for what there is.
    """
    parts: list[str | Fill] = []
    at = 0
    for found in _PLACE.finditer(text):
        parts += (text[at : found.start()], _part(found[1]))
        at = found.end()
    parts.append(text[at:])
    return lambda number: "".join(part if isinstance(part, str) else part(number) for part in parts)


def _part(inner: str) -> Fill:
    name, *given = inner.strip().split(":")
    match name, given:
        case "n", []:
            return str
        case "n", [width] if _is_count(width):
            return lambda number: str(number).zfill(int(width))
        case "time", []:
            return lambda _: datetime.fromtimestamp(now_ms() / 1000, UTC).isoformat(
                timespec="milliseconds"
            )
        case "ms", []:
            return lambda _: str(now_ms())
        case "uuid", []:
            return lambda _: str(uuid.uuid4())
        case "random", []:
            return lambda _: _digits(8)
        case "random", [count] if _is_count(count):
            return lambda _: _digits(int(count))
        case "number", [least, most] if _is_number(least) and _is_number(most):
            bounds = sorted((int(least), int(most)))
            return lambda _: str(random.randint(bounds[0], bounds[1]))
        case _:
            raise ValueError(f"there is no {{{{{printable(inner)}}}}}; there are: {_KNOWN}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5 and 0 < int(text) <= DIGITS_MAX


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def _digits(count: int) -> str:
    return f"{random.getrandbits(4 * count):0{count}x}"
