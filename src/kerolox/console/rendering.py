"""Templates, and what they share: how metrics, times and bytes are shown."""

from __future__ import annotations

import codecs
import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlencode

import jinja2
import msgspec

from kerolox.console.health import disk_tone, disk_used
from kerolox.console.schemas import Schemas
from kerolox.console.static_files import version_of
from kerolox.errors import ClientError
from kerolox.message import MessageExt
from kerolox.protocol.codes import GRPC, REMOTING
from kerolox.text import duration_text, noun_for, printable, time_text
from kerolox.text.json_text import indented_json
from kerolox.text.msgpack_text import msgpack_value

__all__ = [
    *("PAGE_SIZE", "VIEWS", "Slice", "body_text", "environment", "fits_a_form", "hex_dump"),
    *("preview_text", "shown_body", "slice_of", "typed_body"),
]

PAGE_SIZE = 50
BODY_CHARACTERS_MAX = 64 * 1024
"""Of a body that a page shows; the rest is counted."""
HEX_BYTES_MAX = 4 * 1024
PREVIEW_BYTES = 160
PREVIEW_CHARACTERS = 240
"""Of a body that a schema reads."""
DECODED_PREVIEW_BYTES_MAX = 4 * 1024
"""Of a list's bodies, longer ones are not read by their schema."""
PROTOCOLS = {REMOTING: "remoting", GRPC: "gRPC"}
"""What clients speak, as pages say it."""
VIEWS = ("auto", "text", "json", "msgpack", "hex")
"""Of any body."""

_Item = TypeVar("_Item")
_FOLDER = Path(__file__).parent / "templates"
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Slice(Generic[_Item]):
    """One page of a list."""

    items: Sequence[_Item]
    number: int
    """Of this page, from 1."""
    pages: int
    total: int


def slice_of(items: Sequence[_Item], number: int, size: int = PAGE_SIZE) -> Slice[_Item]:
    """The page of that number; the nearest where there is none."""
    pages = max(math.ceil(len(items) / size), 1)
    number = min(max(number, 1), pages)
    return Slice(items[(number - 1) * size : number * size], number, pages, len(items))


def environment() -> jinja2.Environment:
    """Templates: everything is escaped, and what is not there is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"version_of": version_of, "disk_used": disk_used, "disk_tone": disk_tone}
    made.filters |= {
        "count": count_text,
        "counted": counted_text,
        "one_or": lambda value, one, several: one if value == 1 else several,
        "rate": rate_text,
        "size": size_text,
        "time": _time_of_visit,
        "preview": _preview_of_visit,
        "duration": duration_text,
        "protocol": lambda protocol: PROTOCOLS.get(protocol, printable(protocol)),
        "safe_text": lambda text: printable(str(text), characters_max=None),
        "query": lambda values: urlencode(
            {name: value for name, value in values.items() if value not in ("", None)}
        ),
    }
    return made


@jinja2.pass_context
def _time_of_visit(context: jinja2.runtime.Context, timestamp_ms: int) -> str:
    """A time in the zone that the browser has chosen."""
    return time_text(timestamp_ms, context["visit"].zone)


@jinja2.pass_context
def _preview_of_visit(context: jinja2.runtime.Context, message: MessageExt) -> str:
    """The beginning of a body, by the schemas of the console."""
    return preview_text(message, context["visit"].console.schemas)


def count_text(value: float) -> str:
    """A number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\u202f")


def counted_text(value: float, noun: str, plural: str = "") -> str:
    """``1 message``, ``2 messages``; ``plural``: where it is not the noun with an s."""
    return f"{count_text(value)} {noun_for(value, noun, plural)}"


def rate_text(value: float) -> str:
    """Something a second."""
    return count_text(value) if value >= 100 else f"{value:.1f}"


def size_text(value: float) -> str:
    """Bytes as people say them."""
    unit = 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_SIZES[unit]}" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"


def shown_body(message: MessageExt, view: str, schemas: Schemas) -> tuple[str, str, str]:
    """A message's body as ``view`` says, or as its schema does where that is asked for, or nothing
    else is: the view that was taken, the text, and why the schema was not."""
    schema, fault = schemas.of(message), ""
    if schema is not None and view in ("auto", schema.format):
        try:
            return schema.format, _cut(indented_json(schema.json_of(message.body))), ""
        except ValueError as error:
            fault = f"It is no value of the topic's {schema.format} schema: {printable(str(error))}"
    taken, text = body_text(message.body, view if view in VIEWS else "auto")
    return taken, text, fault


def body_text(body: bytes, view: str) -> tuple[str, str]:
    """A body as ``text``, ``json``, ``msgpack``, ``hex``, or as what it looks like (``auto``): the
    view that was taken, and the text, which is cut where it is long."""
    if view == "msgpack" and len(body) <= BODY_CHARACTERS_MAX:
        try:
            return "msgpack", _cut(indented_json(msgspec.json.encode(msgpack_value(body))))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return "hex", hex_dump(body)
    if view in ("auto", "json") and len(body) <= BODY_CHARACTERS_MAX:
        try:
            shown = indented_json(body)
            if view == "json" or body.lstrip()[:1] in (b"{", b"["):
                return "json", _cut(shown)
        except ValueError:
            pass
    if view != "hex":
        try:
            text = body[: 4 * BODY_CHARACTERS_MAX].decode()
        except UnicodeDecodeError:
            if view != "auto":
                return "text", _cut(body[: 4 * BODY_CHARACTERS_MAX].decode(errors="replace"))
        else:
            return "text", _cut(text)
    return "hex", hex_dump(body)


def fits_a_form(body: bytes) -> bool:
    """Whether a body can be edited in a browser: UTF-8, all of its lines ending alike. A form knows
    one end of a line alone, and no NUL."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    ends = body.count(b"\r\n")
    return b"\0" not in body and body.count(b"\r") == ends and ends in (0, body.count(b"\n"))


def typed_body(typed: bytes, stored: bytes) -> bytes:
    """A body that was edited in a form, its lines ending as those of the stored one. ClientError:
    that one fits no form, so what was typed is not all of it.
    """
    if not fits_a_form(stored):
        raise ClientError("the body can't be edited here: a form would change more than you did")
    return typed.replace(b"\n", b"\r\n") if b"\r\n" in stored else typed


def preview_text(message: MessageExt, schemas: Schemas) -> str:
    """The beginning of a body, on one line."""
    schema = schemas.of(message)
    if schema is not None and len(message.body) <= DECODED_PREVIEW_BYTES_MAX:
        with contextlib.suppress(ValueError):
            text = schema.json_of(message.body).decode()
            return printable(" ".join(text.split()), characters_max=PREVIEW_CHARACTERS)
    beginning = message.body[:PREVIEW_BYTES]
    if len(beginning) < len(message.body):
        # The cut may go through a character, which makes no hex of a text.
        with contextlib.suppress(UnicodeDecodeError):
            beginning = codecs.getincrementaldecoder("utf-8")().decode(beginning).encode()
    _, text = body_text(beginning, "auto")
    return " ".join(text.split())


def hex_dump(body: bytes) -> str:
    """Sixteen bytes a line: place, bytes, letters."""
    lines = []
    for place in range(0, min(len(body), HEX_BYTES_MAX), 16):
        part = body[place : place + 16]
        letters = "".join(chr(each) if " " <= chr(each) <= "~" else "." for each in part)
        lines.append(f"{place:08x}  {part.hex(' '):<47}  {letters}")
    if len(body) > HEX_BYTES_MAX:
        lines.append(f"… {len(body) - HEX_BYTES_MAX} more bytes")
    return "\n".join(lines)


def _cut(text: str) -> str:
    # Lines stay lines; what else is invisible, or turns the text around, is shown as an escape.
    shown = "\n".join(
        printable(line, characters_max=None)
        for line in text[:BODY_CHARACTERS_MAX].replace("\t", "    ").split("\n")
    )
    left = len(text) - BODY_CHARACTERS_MAX
    return shown if left <= 0 else f"{shown}\n… {left} more characters"
