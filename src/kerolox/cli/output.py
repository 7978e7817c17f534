"""What commands print: all of it goes through here, so that nothing of it is obeyed by a terminal.

Topics, tags, bodies and the texts of errors come from strangers. A line that is shown is escaped
(:func:`kerolox.text.printable`); JSON escapes in its own way; ``-o raw`` leaves all as it is.
"""

from __future__ import annotations

import contextvars
import io
import os
import sys
from enum import Enum
from typing import TextIO

import click
from click.shell_completion import CompletionItem

from kerolox.cli.values import json_text
from kerolox.text import printable

ERROR_CHARACTERS_MAX = 2048
"""A longer error is cut."""

WIDTH_DEFAULT = 80
"""Columns of a terminal that does not tell how many it has."""

STATUS_AFTER_SECONDS = 1.0
"""What takes no longer shows no status."""

STATUS_SECONDS = 0.5
"""Between two of them."""

_CLEARED = "\r\x1b[K"
"""To the first column of the line, with nothing in it."""

TABLE, JSON, NDJSON, RAW = OUTPUTS = ("table", "json", "ndjson", "raw")

_chosen: contextvars.ContextVar[str] = contextvars.ContextVar("kerolox.output", default=TABLE)
"""The output of the command that runs, for its errors."""


class Shade(Enum):
    """How a line or a cell stands out on a terminal. Nothing is said by it alone."""

    HEADING = "bold", ""
    GOOD = "", "green"
    NOTE = "", "cyan"
    WARNING = "", "yellow"
    ERROR = "bold", "red"


class _OutputType(click.ParamType[str]):
    """One of :data:`OUTPUTS`, or a template: a text with a field in braces."""

    name = "output"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text, if it is a format."""
        if value in OUTPUTS:
            return value
        if "{" not in value:
            self.fail(
                f"{printable(value)!r} is none of {', '.join(OUTPUTS)}, and no template: "
                "that has a field in braces, such as '{topic}'",
                param,
                ctx,
            )
        from kerolox.cli.templates import parse_template

        try:
            parse_template(value)
        except ValueError as error:
            self.fail(f"the template {printable(value)!r}: {error}", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Those that have a name."""
        return [CompletionItem(each) for each in OUTPUTS if each.startswith(incomplete)]


def _note(context: click.Context, option: click.Parameter, value: str) -> str:
    _chosen.set(value)
    return value


output_option = click.option(
    "-o",
    "--output",
    "output",
    type=_OutputType(),
    default=TABLE,
    show_default=True,
    metavar="FORMAT",
    is_eager=True,
    callback=_note,
    help="Print as table, json (one text), ndjson (a line each), raw (nothing escaped or cut),"
    " or a template such as '{topic} {lag}'.",
)
"""``-o``; its value is one of :data:`OUTPUTS` or a template, as :func:`print_line` and
:mod:`kerolox.cli.rows` take it."""


def print_line(text: str, output: str = TABLE, *, shade: Shade | None = None) -> None:
    """Print one line to stdout, escaped unless ``output`` is raw; ``shade``: on a terminal."""
    shown = text if output == RAW else printable(text, characters_max=None)
    _write_line(shaded(shown, shade, sys.stdout))


def print_cells(cells: list[tuple[str, Shade | None]]) -> None:
    """Print texts beside each other to stdout, escaped, each in its shade on a terminal."""
    shown = [
        shaded(printable(text, characters_max=None), shade, sys.stdout) for text, shade in cells
    ]
    _write_line("".join(shown))


def shaded(text: str, shade: Shade | None, stream: TextIO) -> str:
    """A text that is escaped already as a stream is to get it: in a shade if that is a terminal
    with colours, for which ``NO_COLOR`` is not set and ``TERM`` is not ``dumb``."""
    if shade is None or not text or not _has_colours(stream):
        return text
    weight, colour = shade.value
    return click.style(text, fg=colour or None, bold=bool(weight) or None)


def _has_colours(stream: TextIO) -> bool:
    is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not is_refused and stream.isatty()


class _Status:
    """The line of :func:`show_status`."""

    is_shown = False


def has_status() -> bool:
    """Whether :func:`show_status` shows anything: stderr is a terminal that can clear a line."""
    return (
        sys.stderr is not None and os.environ.get("TERM", "dumb") != "dumb" and sys.stderr.isatty()
    )


def show_status(text: str) -> None:
    """Show on a terminal what a command does just now, on a line of stderr that the next one
    replaces and whatever is printed removes."""
    if not has_status():
        return
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH_DEFAULT
    except (OSError, ValueError):
        width = WIDTH_DEFAULT
    shown = printable(text, characters_max=None)[: width - 1]
    click.echo(f"{_CLEARED}{shown}", err=True, nl=False)
    _Status.is_shown = True


def clear_status() -> None:
    """Remove the line of :func:`show_status`, if there is one."""
    if _Status.is_shown:
        _Status.is_shown = False
        click.echo(_CLEARED, err=True, nl=False)


def print_part(text: str) -> None:
    """Print a part of a line to stdout as it is: of JSON, which is escaped in its own way."""
    clear_status()
    # A name of another tool's broker may hold half a surrogate pair, which no encoding has.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())


def _write_line(shown: str) -> None:
    print_part(shown + "\n")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print_line(json_text(value), RAW)


def complain(text: str) -> None:
    """Print one line to stderr, escaped and cut."""
    clear_status()
    click.echo(one_line(text), err=True)


def complain_of(error: Exception, text: str) -> None:
    """Print an error that ends a command to stderr: with ``-o json`` and ``ndjson`` as an object
    with its kind, its text and, where a broker said one, its code."""
    if _chosen.get() not in (JSON, NDJSON):
        said = shaded("kerolox: error:", Shade.ERROR, sys.stderr)
        click.echo(f"{said} {one_line(text)}", err=True)
        return
    members: dict[str, object] = {"type": type(error).__name__, "message": one_line(text)}
    code = getattr(error, "code", None)
    if isinstance(code, int):
        members["code"] = code
    click.echo(json_text({"error": members}), err=True)


def one_line(text: str) -> str:
    """A text of several lines, such as an error that names many things, on one."""
    return printable(" ".join(text.split()), characters_max=ERROR_CHARACTERS_MAX)


def show_usage_error(error: click.ClickException) -> None:
    """Print an error of ``click`` as it does, with what was typed, or came from elsewhere, escaped.

    Its own lines (usage, hint, message) stay lines; the message's text makes no further ones. With
    ``-o json`` and ``ndjson`` it is an object, as other errors are.
    """
    if _chosen.get() in (JSON, NDJSON):
        members = {"type": type(error).__name__, "message": one_line(error.format_message())}
        click.echo(json_text({"error": members}), err=True)
        return
    written = io.StringIO()
    error.show(written)
    said = written.getvalue().replace(error.message, one_line(error.message))
    for line in said.splitlines():
        click.echo(printable(line, characters_max=ERROR_CHARACTERS_MAX), err=True)
