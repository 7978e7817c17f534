"""What commands print: all of it goes through here, so that nothing of it is obeyed by a terminal.

Topics, tags, bodies and the texts of errors come from strangers. A line that is shown is escaped
(:func:`kerolox.text.printable`); JSON escapes in its own way; ``-o raw`` leaves all as it is.
"""

from __future__ import annotations

import io
import json
import sys

import click

from kerolox.text import printable

ERROR_CHARACTERS_MAX = 2048
"""A longer error is cut."""

OUTPUTS = ("text", "json", "raw")

output_option = click.option(
    "-o",
    "output",
    type=click.Choice(OUTPUTS),
    default="text",
    show_default=True,
    help="raw: as text, with nothing escaped or cut.",
)
"""``-o text|json|raw``; its value is what :func:`print_line` takes."""


def print_line(text: str, output: str = "text") -> None:
    """Print one line to stdout, escaped unless ``output`` is raw.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    shown = text if output == "raw" else printable(text, characters_max=None)
    # A name of another tool's broker may hold half a surrogate pair, which no encoding has.
    sys.stdout.write(shown.encode("utf-8", "backslashreplace").decode() + "\n")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print_line(json_text(value), "raw")


def json_text(value: object) -> str:
    r"""JSON in which everything that a terminal might obey is escaped; ``json.dumps`` leaves U+009B
    and U+202E, for instance, as they are."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def complain(text: str) -> None:
    """Print one line to stderr, escaped and cut."""
    click.echo(one_line(text), err=True)


def one_line(text: str) -> str:
    """A text of several lines, such as an error that names many things, on one."""
    return printable(" ".join(text.split()), characters_max=ERROR_CHARACTERS_MAX)


def show_usage_error(error: click.ClickException) -> None:
    """Print an error of ``click`` as it does, with what was typed, or came from elsewhere, escaped.

    Its own lines (usage, hint, message) stay lines; the message's text makes no further ones.
    """
    written = io.StringIO()
    error.show(written)
    said = written.getvalue().replace(error.message, one_line(error.message))
    for line in said.splitlines():
        click.echo(printable(line, characters_max=ERROR_CHARACTERS_MAX), err=True)
