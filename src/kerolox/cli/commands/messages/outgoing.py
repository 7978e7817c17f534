"""Messages to send, as ``send``, ``request`` and ``reply`` are told of them."""

from __future__ import annotations

import functools
import os
import random
import re
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kerolox.clock import now_ms
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.client import ProducerSettings
    from kerolox.message import Message


_DIGITS_MAX = 1024
"""Of ``{{random:N}}``, and of a number."""

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")
_KNOWN = "n, n:06, time, ms, uuid, random, random:N, number:LEAST:MOST"

_Fill = Callable[[int], str]
"""The text of the message with a number."""


@functools.lru_cache(maxsize=64)
def _filling(text: str) -> _Fill:
    """What fills a ``--template``: what stands between double braces. Bodies are often JSON, which
    has no double brace before a name. ValueError: it asks for something that there is not; the text
    says for what there is.

    ``{{n}}`` is the number of the message, from 1, ``{{n:06}}`` with leading zeros; ``{{time}}``
    and ``{{ms}}`` are now, as ISO 8601 in UTC and in milliseconds since 1970; ``{{uuid}}``,
    ``{{random}}`` (eight hex digits), ``{{random:N}}`` (so many) and ``{{number:LEAST:MOST}}`` are
    another each time.
    """
    parts: list[str | _Fill] = []
    at = 0
    for found in _PLACE.finditer(text):
        parts += (text[at : found.start()], _part(found[1]))
        at = found.end()
    parts.append(text[at:])
    return lambda number: "".join(part if isinstance(part, str) else part(number) for part in parts)


def _part(inner: str) -> _Fill:
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
    return text.isascii() and text.isdigit() and len(text) < 5 and 0 < int(text) <= _DIGITS_MAX


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def _digits(count: int) -> str:
    return f"{random.getrandbits(4 * count):0{count}x}"


GROUP = "KEROLOX_CLI"
"""Of the producers."""

LINE_BYTES_MAX = 16 << 20
"""A longer line is no message that a broker takes."""

_CHUNK_BYTES = 1 << 18


class Draft(NamedTuple):
    """What all messages of a command have in common."""

    topic: str
    tags: str
    keys: str
    properties: tuple[tuple[str, str], ...]
    is_template: bool

    def message(self, body: bytes, number: int) -> Message:
        """The message with a number, from 1; BadParameter: a template asks for something that there
        is not.
        """
        from kerolox.message import Message

        def filled(text: str) -> str:
            if not self.is_template:
                return text
            try:
                return _filling(text)(number)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--template") from None

        if self.is_template and b"{{" in body:
            text = body.decode("utf-8", "surrogateescape")
            body = filled(text).encode("utf-8", "surrogateescape")
        return Message(
            self.topic,
            body,
            tags=filled(self.tags),
            keys=filled(self.keys),
            properties={name: filled(value) for name, value in self.properties},
        )


def draft_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options of a :class:`Draft`: ``tags``, ``keys``, ``properties`` and ``template``."""
    for option in (
        click.option(
            "--template",
            is_flag=True,
            help="Fill in {{n}}, {{n:06}}, {{time}}, {{ms}}, {{uuid}}, {{random}}, {{random:N}} and"
            " {{number:LEAST:MOST}}, in body, tag, keys and properties.",
        ),
        click.option(
            "--property",
            "-H",
            "properties",
            multiple=True,
            metavar="NAME=VALUE",
            callback=lambda _context, _option, texts: tuple(map(_property, texts)),
            help="A property of the messages; may be repeated.",
        ),
        click.option(
            "--keys",
            default="",
            metavar="KEY...",
            help="Keys of the messages, separated by blanks.",
        ),
        click.option("--tags", default="", metavar="TAG", help="Tag of the messages."),
    ):
        command = option(command)
    return command


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(
            f"{printable(text)!r} is no property; write NAME=VALUE", param_hint="--property"
        )
    return name, value


def producer_settings() -> ProducerSettings:
    """Of the command that runs."""
    from kerolox.cli.connecting import security
    from kerolox.client import ProducerSettings

    credentials, tls = security()
    return ProducerSettings(credentials=credentials, tls=tls)


def whole_bodies(body: str | None, files: Sequence[Path]) -> list[bytes]:
    """The body given, each file, or all of stdin; UsageError: nothing is given, and stdin is a
    terminal.
    """
    if body is not None:
        return [os.fsencode(body)]
    if files:
        return [file.read_bytes() for file in files]
    if sys.stdin.isatty():
        raise click.UsageError("Give a BODY or --file, or pipe something in.")
    return [sys.stdin.buffer.read()]


async def lines_of(files: Sequence[Path]) -> AsyncIterator[bytes]:
    """The lines of files, or of stdin as they come, without their ends; no empty ones. UsageError:
    a line is too long.
    """
    if not files:
        async for line in _lines(sys.stdin.fileno()):
            yield line
        return
    for file in files:
        number = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            async for line in _lines(number):
                yield line
        finally:
            os.close(number)


async def _lines(number: int) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await _chunk(number):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line := line.removesuffix(b"\r"):
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise click.UsageError(f"A line has more than {LINE_BYTES_MAX} bytes.")
    if rest := rest.removesuffix(b"\r"):
        yield rest


async def _chunk(number: int) -> bytes:
    """What there is to read; empty at the end. A thread that reads a pipe could not be stopped, so
    that is waited for by the loop, which can't wait for files."""
    import asyncio

    mode = os.fstat(number).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number):
        loop = asyncio.get_running_loop()
        is_ready = asyncio.Event()
        loop.add_reader(number, is_ready.set)
        try:
            await is_ready.wait()
        finally:
            loop.remove_reader(number)
        return os.read(number, _CHUNK_BYTES)
    return await asyncio.to_thread(os.read, number, _CHUNK_BYTES)
