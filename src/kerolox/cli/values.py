"""Values: those that are shown, as text and as JSON; texts of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import click
from click.types import StringParamType

from kerolox.text import printable
from kerolox.text.json_text import JsonText


def json_text(value: object) -> str:
    r"""JSON in which everything that a terminal might obey is escaped; ``json.dumps`` leaves U+009B
    and U+202E, for instance, as they are. A :class:`JsonText` in it stays as it was written."""
    return escaped_json(_written(value))


def escaped_json(text: str) -> str:
    """A text of JSON, perhaps of several lines, with the same escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text
    )


def _written(value: object) -> str:
    if isinstance(value, JsonText):
        return str(value)
    if isinstance(value, Mapping) and any(isinstance(each, JsonText) for each in value.values()):
        members = (f"{json.dumps(k, ensure_ascii=False)}: {_written(v)}" for k, v in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False)


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


def settings_given(texts: Iterable[str]) -> dict[str, str]:
    """Settings of the command line, each ``KEY=VALUE``; BadParameter: one is something else."""
    given: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{printable(text)!r} is no setting; write KEY=VALUE")
        given[key] = value
    return given


class TextType(StringParamType):
    """A text that travels to a server, or is held against one. Bytes that are no UTF-8 come from
    Python as halves of surrogate pairs, which no frame can hold."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse what is no UTF-8."""
        text = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            self.fail(
                f"{printable(text)!r} has a byte at position {error.start} that is no UTF-8;"
                " write the text in UTF-8 (the terminal's setting says in what it is)",
                param,
                ctx,
            )
        return text


_TEXT = TextType()


def with_texts(command: click.Command) -> click.Command:
    """The command, whose texts and those of its subcommands must be UTF-8, and whose helps call a
    number N. Paths are bytes to the system, and so are bodies (``click.UNPROCESSED``)."""
    for param in command.params:
        if type(param.type) is StringParamType:
            param.type = _TEXT
        elif isinstance(param.type, click.IntRange | click.FloatRange):
            param.metavar = param.metavar or "N"
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_texts(each)
    return command


def rate_text(value: object) -> str:
    """So many a second, in a table; empty: nobody knows."""
    return f"{value:,.1f}" if isinstance(value, float) else ""


def percent_text(value: object) -> str:
    """A part of 1, in a table; empty: nobody knows."""
    return f"{value:.0%}" if isinstance(value, float) else ""


class DurationType(click.ParamType[float]):
    """``90s``, ``2h``; seconds."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See :func:`duration_ms`."""
        from kerolox.admin.positions import duration_ms

        if isinstance(value, float):
            return value
        try:
            return duration_ms(value) / 1000
        except ValueError as error:
            self.fail(str(error), param, ctx)
