"""Rows and records as ``-o`` wants them: an aligned table, JSON, a line each, or a template.

A row is what its JSON has: names as RocketMQ writes them, numbers as numbers, times in
milliseconds. A table shows some of the columns, and times as people read them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from kerolox.cli.output import (
    JSON,
    NDJSON,
    RAW,
    TABLE,
    Shade,
    print_cells,
    print_json,
    print_line,
)
from kerolox.cli.templates import fill_template, parse_template
from kerolox.cli.values import plain_text
from kerolox.text import printable, time_text
from kerolox.text.durations import duration_text

CELL_CHARACTERS_MAX = 120
"""A longer cell of a table is cut."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: str
    """The field of the row."""
    title: str
    is_number: bool = False
    """Right-aligned."""
    text: Callable[[object], str] = plain_text


def time_column(key: str, title: str) -> Column:
    """Of milliseconds since the epoch, shown in the local zone."""
    return Column(key, title, text=lambda value: time_text(value if isinstance(value, int) else 0))


def duration_column(key: str, title: str) -> Column:
    """Of milliseconds; nothing where there are none."""
    return Column(
        key,
        title,
        is_number=True,
        text=lambda value: duration_text(value) if isinstance(value, int | float) and value else "",
    )


def number_column(key: str, title: str) -> Column:
    """Of numbers."""
    return Column(key, title, is_number=True)


def columns_of(row: Row) -> list[Column]:
    """A column for each field, for rows that are never shown as a table."""
    return [Column(key, key) for key in row]


def show_rows(rows: Iterable[Row], columns: Sequence[Column], output: str) -> None:
    """Print rows. A table needs all of them first; ``ndjson``, ``raw`` and templates print each as
    it comes.

    Raises:
        click.UsageError: the template has a field that the rows lack.
    """
    if output == TABLE:
        _show_table(list(rows), columns)
    elif output == JSON:
        print_json([dict(row) for row in rows])
    else:
        for row in rows:
            show_row(row, columns, output)


def show_row(row: Row, columns: Sequence[Column], output: str) -> None:
    """Print one of rows that come one by one: not as a table. Errors: see :func:`show_rows`."""
    if output in (JSON, NDJSON):
        print_json(dict(row))
    elif output == RAW:
        print_line("\t".join(plain_text(row[column.key]) for column in columns), RAW)
    else:
        print_line(_filled(output, row), RAW)


def show_record(record: Row, columns: Sequence[Column], output: str) -> None:
    """Print one thing: as a table a line for each column, else as :func:`show_rows` does a row."""
    if output != TABLE:
        show_row(record, columns, output)
        return
    width = max(len(column.title) for column in columns)
    for column in columns:
        shown = printable(column.text(record[column.key]), characters_max=None).rstrip()
        title = f"{column.title:{width}}  " if shown else column.title
        print_cells([(title, Shade.HEADING), (shown, None)])


def is_text(output: str) -> bool:
    """Whether people read it: only then there is room for remarks between what is shown."""
    return output == TABLE


def _filled(output: str, row: Row) -> str:
    parts = parse_template(output)
    try:
        return fill_template(parts, row)
    except KeyError as error:
        asked = error.args[0]
        known = ", ".join(row)
        raise click.UsageError(
            f"the template asks for {asked!r}, which is no field here; there are: {known}"
        ) from None


def _show_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    if not rows:
        return
    lines = [[column.title for column in columns]]
    for row in rows:
        cells = (column.text(row[column.key]) for column in columns)
        lines.append([printable(cell, characters_max=CELL_CHARACTERS_MAX) for cell in cells])
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        shown = [
            _padded(cell, width, column)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        print_line("  ".join(shown).rstrip(), shade=None if number else Shade.HEADING)


def _padded(cell: str, width: int, column: Column) -> str:
    gap = " " * (width - _width(cell))
    return gap + cell if column.is_number else cell + gap


def _width(text: str) -> int:
    """Columns that it takes on a terminal: two for each wide character, none for a mark."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)
