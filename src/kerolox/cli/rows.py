"""Rows and records as ``-o`` wants them: an aligned table, JSON, a line each, or a template.

A row is what its JSON has: names as RocketMQ writes them, numbers as numbers, times in
milliseconds. A table shows some of the columns, and times as people read them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

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
    print_part,
)
from kerolox.cli.templates import fill_template, parse_template
from kerolox.cli.values import json_text, plain_text
from kerolox.text import duration_text, printable, time_text

CELL_CHARACTERS_MAX = 120
"""A longer cell of a table is cut."""

PAGE_ROWS = 100
"""Of a table whose rows come one by one."""

Row = Mapping[str, object]


class Column(NamedTuple):
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
    it comes. UsageError: the template has a field that the rows lack.
    """
    if output == TABLE:
        _show_table(list(rows), columns)
    elif output == JSON:
        print_json([dict(row) for row in rows])
    else:
        for row in rows:
            show_row(row, columns, output)


class RowPages:
    """Rows that come one by one and may be many: printed as :func:`show_rows` prints them, with no
    more of them in memory than a page of a table. A page's columns are as wide as it needs."""

    def __init__(self, columns: Sequence[Column], output: str) -> None:
        self._columns, self._output = columns, output
        self._page: list[Row] = []
        self._count = 0

    def add(self, row: Row) -> None:
        """Print a row, or keep it until its page is full. Errors: see :func:`show_rows`."""
        self._count += 1
        if self._output == TABLE:
            self._page.append(row)
            if len(self._page) == PAGE_ROWS:
                self._end_page()
        elif self._output == JSON:
            print_part(("[" if self._count == 1 else ", ") + json_text(dict(row)))
        else:
            show_row(row, self._columns, self._output)

    def end(self) -> None:
        """Print what is left."""
        if self._output == TABLE:
            self._end_page()
        elif self._output == JSON:
            print_line("]" if self._count else "[]", RAW)

    def _end_page(self) -> None:
        has_heading = self._count == len(self._page)
        _show_table(self._page, self._columns, has_heading=has_heading)
        self._page = []


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


def _show_table(
    rows: Sequence[Row], columns: Sequence[Column], *, has_heading: bool = True
) -> None:
    if not rows:
        return
    lines = [[column.title for column in columns]]
    for row in rows:
        cells = (column.text(row[column.key]) for column in columns)
        lines.append([printable(cell, characters_max=CELL_CHARACTERS_MAX) for cell in cells])
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        if not (number or has_heading):
            continue
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
