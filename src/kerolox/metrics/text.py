"""Families as the text that Prometheus reads, in its own format and in that of OpenMetrics.

``prometheus_client`` has encoders for both, which check and escape the name of each label of each
series: two thirds of the CPU of a scrape of 10,000 series. Names here are constants; the tests have
Prometheus's parsers read what is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from prometheus_client import Metric


def encode(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics where ``accept``, a header, asks for it."""
    content_type = choose_encoder(accept)[1]
    is_open = content_type.startswith("application/openmetrics-text")
    pairs: dict[tuple[str, str], str] = {}
    lines: list[str] = []
    for family in families:
        is_total = family.type == "counter" and not is_open
        name = f"{family.name}_total" if is_total else family.name
        lines.append(f"# HELP {name} {_help(family.documentation, is_open)}")
        lines.append(f"# TYPE {name} {family.type}")
        for sample in family.samples:
            labels = []
            for pair in sample.labels.items():
                text = pairs.get(pair)
                if text is None:
                    text = pairs[pair] = f'{pair[0]}="{_escaped(pair[1])}"'
                labels.append(text)
            value = sample.value
            number = str(value) if isinstance(value, int) else _go_text(value)
            lines.append(f"{sample.name}{{{','.join(labels)}}} {number}")
    if is_open:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines).encode(), content_type


def _go_text(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _help(text: str, is_open: bool) -> str:
    # Only OpenMetrics has quotes escaped here.
    return _escaped(text) if is_open else text.replace("\\", r"\\").replace("\n", r"\n")
