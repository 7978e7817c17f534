"""Draw docs/figures.svg from benchmarks/results.json: both kernels beside the Java broker.

    python benchmarks/draw.py

``against_java.py --save`` writes the results. A figure is a multiple of Java's, a median of runs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
PICTURE = ROOT / "docs" / "figures.svg"

CASES = {
    "p128-64x4": "send 128 B, 256 in flight",
    "p1024-64x4": "send 1 KiB, 256 in flight",
    "p128-1x1": "send 128 B, one at a time",
    "c128": "consume 128 B",
    "c1024": "consume 1 KiB",
    "m5k": "p99 end to end, 5,000/s",
    "m20k": "p99 end to end, 20,000/s",
    "longpoll": "wake-up of a held pull",
}
ENGINES = {"native": ("native engine", "#2563a8"), "python": ("pure Python", "#d98b2b")}
WIDTH, LABEL, PANEL, GAP, ROW, TOP = 920, 210, 300, 50, 38, 70
TICKS = (1, 2, 5, 10, 20, 40)
"""Multiples of Java's speed; the scale is logarithmic, so that 33 and 1.3 can both be read."""


def speed_width(value: float) -> float:
    """The length of a bar of speed; Java's has none."""
    return max(1.0, PANEL * math.log(value) / math.log(TICKS[-1]))


def cpu_width(value: float) -> float:
    """The length of a bar of CPU; Java's reaches the end of the panel."""
    return PANEL * 0.9 * value


def bars(
    left: float, top: float, figures: dict[str, float], width_of: Callable[[float], float]
) -> list[str]:
    """A bar per engine with its figure."""
    drawn = []
    for number, (engine, (_, colour)) in enumerate(ENGINES.items()):
        y, width = top + 13 * number, width_of(figures[engine])
        drawn.append(
            f'<rect x="{left:g}" y="{y:g}" width="{width:.1f}" height="11" fill="{colour}"/>'
        )
        drawn.append(f'<text x="{left + width + 4:.1f}" y="{y + 9:g}">{figures[engine]:g}</text>')
    return drawn


def tick(x: float, text: str, height: float) -> list[str]:
    """A line through a panel, and what it stands for."""
    return [
        f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 18:g}" stroke="#ccc"/>',
        f'<text x="{x:.1f}" y="{height - 5:g}" text-anchor="middle" fill="#555">{text}</text>',
    ]


def head(results: dict[str, Any], height: float) -> list[str]:
    """Titles, legend and scales."""
    speed_left, cpu_left = LABEL, LABEL + PANEL + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>Kerolox beside the Java broker, {results['date']}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{speed_left}" y="{TOP - 20}" font-weight="bold">'
        "times as fast as Java (more is better)</text>",
        f'<text x="{cpu_left}" y="{TOP - 20}" font-weight="bold">'
        "CPU per message (less is better)</text>",
    ]
    for value in TICKS:
        x = speed_left + (speed_width(value) if value > 1 else 0)
        parts += tick(x, "Java" if value == 1 else f"{value}", height)
    parts += tick(cpu_left + cpu_width(1), "Java", height)
    for number, (text, colour) in enumerate(ENGINES.values()):
        x = LABEL + 130 * number
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="20">{text}</text>')
    return parts


def picture(results: dict[str, Any]) -> str:
    """The SVG."""
    cases = {case: text for case, text in CASES.items() if case in results["cases"]}
    parts = head(results, TOP + ROW * len(cases) + 24)
    for number, (case, text) in enumerate(cases.items()):
        top, row = TOP + ROW * number, results["cases"][case]
        parts.append(f'<text x="{LABEL - 10}" y="{top + 16}" text-anchor="end">{text}</text>')
        speed = row.get("rate") or {each: 1 / row["time"][each] for each in ENGINES}
        speed = {each: round(value, 1) for each, value in speed.items()}
        parts += bars(LABEL, top, speed, speed_width)
        parts += bars(LABEL + PANEL + GAP, top, row["cpu"], cpu_width)
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(RESULTS.read_text())))
