"""A page of a job for people: one HTML file that opens offline, in light and in dark.

Nothing of it comes from elsewhere, and nothing in it runs: a policy in the page forbids both. Texts
come from messages, so they are hostile: each is cut, made printable and escaped. A chart is an SVG
with a title, and its numbers stand in a table below, for those who can't see it.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from kerolox.text import printable

ROWS_MAX = 1000
"""Rows of a table that are shown; a note says how many more there are."""

POINTS_MAX = 2000
"""Points of a line that are drawn; of more every n-th is."""

BARS_MAX = 50

Cell = str | int | float | None

_WIDTH, _BAR, _GAP, _LABEL, _VALUE = 720, 20, 6, 220, 90
_LINE_HEIGHT, _LEFT, _BOTTOM, _TOP = 260, 70, 34, 12
_COLOURS = 5

_STYLE = """\
:root{color-scheme:light dark;--back:#fff;--text:#1c1f23;--soft:#5a626c;--rule:#d5dae0;
--c0:#1f6fb2;--c1:#b3541e;--c2:#2f7d4f;--c3:#7a4fa3;--c4:#8a6d00}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e7eaee;--soft:#a3acb7;
--rule:#39414b;--c0:#6db3ee;--c1:#f09a62;--c2:#74c798;--c3:#c3a0e6;--c4:#d9bb4d}}
body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;margin:0 auto;
max-width:60rem;padding:1.5rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;color:var(--soft);padding:.2rem 0}
th,td{border-bottom:1px solid var(--rule);padding:.25rem .6rem;text-align:left;
vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.6rem}
dl div{border:1px solid var(--rule);border-radius:.4rem;padding:.5rem .8rem}
dt{color:var(--soft)}dd{margin:0;font-size:1.25rem;overflow-wrap:anywhere}
svg{max-width:100%;height:auto}svg text{fill:var(--text);font:13px system-ui,sans-serif}
svg .axis{stroke:var(--rule)}svg .soft{fill:var(--soft)}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}
svg .bar{fill:var(--c)}svg .line{fill:none;stroke:var(--c);stroke-width:2}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em;background:var(--c)}
summary{cursor:pointer;color:var(--soft)}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """The few numbers that matter, each with its name."""

    items: Sequence[tuple[str, Cell]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first cell of a row names it. At most :data:`ROWS_MAX` are shown."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each item, in the order given: names with numbers from 0 up, at most
    :data:`BARS_MAX`.
    """

    caption: str
    items: Sequence[tuple[str, float]]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over one axis.

    Args:
        lines: name → points ``(x, y)`` by rising x.
        x_label, y_label: of the axes, with their units.
        x_texts: what stands at the first and the last x; empty: the numbers.
    """

    caption: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    x_label: str = ""
    y_label: str = ""
    x_texts: tuple[str, str] = ("", "")


Part = Paragraph | KeyNumbers | Table | Bars | Lines


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Report:
    """A page."""

    title: str
    subtitle: str
    sections: Sequence[Section]


def write_report(report: Report, path: Path) -> None:
    """Write the page; a page that is there is replaced whole. After an OSError what was there
    stays.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(render(report), encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def render(report: Report) -> str:
    """The page as text."""
    body = [f"<h1>{_text(report.title)}</h1>", f'<p class="soft">{_text(report.subtitle)}</p>']
    for number, section in enumerate(report.sections):
        body.append(f'<section aria-labelledby="s{number}">')
        body.append(f'<h2 id="s{number}">{_text(section.title)}</h2>')
        body += [_part(part, f"s{number}p{index}") for index, part in enumerate(section.parts)]
        body.append("</section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{_text(report.title)}</title>\n<style>\n{_STYLE}</style></head>\n"
        "<body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def _part(part: Part, name: str) -> str:
    match part:
        case Paragraph():
            return f"<p>{_text(part.text)}</p>"
        case KeyNumbers():
            items = "".join(
                f"<div><dt>{_text(label)}</dt><dd>{_cell(value)}</dd></div>"
                for label, value in part.items
            )
            return f"<dl>{items}</dl>"
        case Table():
            return _table(part)
        case Bars():
            return _bars(part, name)
        case Lines():
            return _lines(part, name)
    assert_never(part)


def _table(table: Table) -> str:
    numeric = [
        bool(table.rows) and all(not isinstance(row[index], str) for row in table.rows[:ROWS_MAX])
        for index in range(len(table.columns))
    ]
    classes = [' class="n"' if each else "" for each in numeric]
    head = "".join(
        f'<th scope="col"{mark}>{_text(name)}</th>'
        for name, mark in zip(table.columns, classes, strict=True)
    )
    lines = []
    for first, *rest in table.rows[:ROWS_MAX]:
        cells = f'<th scope="row"{classes[0]}>{_cell(first)}</th>'
        cells += "".join(
            f"<td{mark}>{_cell(value)}</td>" for value, mark in zip(rest, classes[1:], strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    more = len(table.rows) - ROWS_MAX
    note = f'<p class="soft">{more} more rows are not shown.</p>' if more > 0 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.caption)}">'
        f"<table><caption>{_text(table.caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>{note}"
    )


def _drawn(name: str, caption: str, height: int, drawing: str, numbers: Table) -> str:
    return (
        f'<figure style="margin:0"><svg role="img" aria-labelledby="{name}"'
        f' viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f'<title id="{name}">{_text(caption)}</title>{drawing}</svg>'
        f"<details><summary>Numbers</summary>{_table(numbers)}</details></figure>"
    )


def _bars(bars: Bars, name: str) -> str:
    shown = bars.items[:BARS_MAX]
    largest = max((value for _, value in shown), default=0) or 1
    room = _WIDTH - _LABEL - _VALUE
    drawing = []
    for index, (label, value) in enumerate(shown):
        top = index * (_BAR + _GAP)
        width = max(0.0, room * value / largest)
        middle = top + _BAR - 5
        drawing.append(
            f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{_text(label, 30)}</text>'
            f'<rect class="bar c0" x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}"/>'
            f'<text x="{_LABEL + width + 6:.1f}" y="{middle}">{_cell(value)}</text>'
        )
    heading = f"{bars.caption} ({bars.unit})" if bars.unit else bars.caption
    numbers = Table(heading, ("name", bars.unit or "number"), bars.items)
    height = max(1, len(shown)) * (_BAR + _GAP)
    return f"<p>{_text(heading)}</p>" + _drawn(name, heading, height, "".join(drawing), numbers)


def _lines(lines: Lines, name: str) -> str:
    points = [point for _, each in lines.lines for point in each]
    first = min((x for x, _ in points), default=0.0)
    last = max((x for x, _ in points), default=1.0)
    top = max((y for _, y in points), default=0) or 1
    across = (_WIDTH - _LEFT - 10) / ((last - first) or 1)
    down = (_LINE_HEIGHT - _BOTTOM - _TOP) / top
    ground = _LINE_HEIGHT - _BOTTOM
    drawing = [f'<path class="axis" d="M{_LEFT} {_TOP}V{ground}H{_WIDTH - 10}" fill="none"/>']
    keys = []
    for index, (label, each) in enumerate(lines.lines):
        colour = f"c{index % _COLOURS}"
        step = max(1, -(-len(each) // POINTS_MAX))
        path = " ".join(
            f"{_LEFT + (x - first) * across:.1f},{ground - y * down:.1f}" for x, y in each[::step]
        )
        drawing.append(f'<polyline class="line {colour}" points="{path}"/>')
        keys.append(f'<span><span class="key {colour}"></span>{_text(label)}</span>')
    begin, end = lines.x_texts
    drawing.append(
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{_cell(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{ground}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{ground + 16}">{_text(begin or f"{first:g}")}</text>'
        f'<text x="{_WIDTH - 10}" y="{ground + 16}" text-anchor="end">'
        f"{_text(end or f'{last:g}')}</text>"
        f'<text class="soft" x="{_WIDTH / 2:g}" y="{_LINE_HEIGHT - 4}" text-anchor="middle">'
        f"{_text(lines.x_label)}</text>"
    )
    heading = f"{lines.caption} ({lines.y_label})" if lines.y_label else lines.caption
    rows = [(label, x, y) for label, each in lines.lines for x, y in each]
    numbers = Table(heading, ("line", lines.x_label or "x", lines.y_label or "y"), rows)
    figure = _drawn(name, heading, _LINE_HEIGHT, "".join(drawing), numbers)
    return f"<p>{_text(heading)}</p><p>{' '.join(keys)}</p>{figure}"


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,.0f}"


def _text(text: str, characters_max: int = 256) -> str:
    return html.escape(printable(text, characters_max=characters_max))
