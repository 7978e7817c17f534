"""Families as text: what Prometheus's library writes, and what its parsers read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.utils import floatToGoString

from kerolox.metrics import text as text_module
from kerolox.metrics.families import Families
from kerolox.metrics.text import TextEncoder, content_type_of

OPEN = "application/openmetrics-text; version=1.0.0"
PARSERS = pytest.mark.parametrize(("accept", "parse"), [("", plain), (OPEN, openmetrics)])

names = st.text(max_size=5)
numbers = st.integers(-(10**20), 10**20) | st.floats()


def some(topics: list[str], value: float = 0.25) -> Families:
    families = Families({"cluster": 'c"\\\n', "node_id": "b"}, 1000)
    for number, topic in enumerate(topics):
        families.counter("a_total", 'of "topics"\\', number, {"topic": topic})
    families.gauge("b_seconds", "plain", value)
    families.histogram("c_seconds", "times", (0.001, 5.0), (1, 2, 3), 7.5)
    return families


def encode(families: Families, accept: str, encoder: TextEncoder | None = None) -> bytes:
    is_open = content_type_of(accept)[1]
    return b"".join((encoder or TextEncoder()).parts(families, is_open=is_open))


def written_slowly(families: Families, *, is_open: bool) -> bytes:
    """The same text from an object for each series, each line made anew."""
    lines = []

    def escaped(text: str, *, quotes: bool = True) -> str:
        text = text.replace("\\", r"\\").replace("\n", r"\n")
        return text.replace('"', r"\"") if quotes else text

    for family in families.collect():
        assert isinstance(family, Metric)
        is_total = family.type == "counter" and not is_open
        name = f"{family.name}_total" if is_total else family.name
        lines.append(f"# HELP {name} {escaped(family.documentation, quotes=is_open)}")
        lines.append(f"# TYPE {name} {family.type}")
        for sample in family.samples:
            labels = ",".join(f'{key}="{escaped(value)}"' for key, value in sample.labels.items())
            value = sample.value
            number = str(value) if isinstance(value, int) else floatToGoString(value)  # type: ignore[no-untyped-call]
            lines.append(f"{sample.name}{{{labels}}} {number}")
    return "\n".join([*lines, *["# EOF"] * is_open, ""]).encode()


@PARSERS
@given(topics=st.lists(names, min_size=1, max_size=4, unique=True))
def test_each_label_and_value_comes_back(accept: str, parse: Any, topics: list[str]) -> None:
    families = some(topics)
    read = [
        (each.name, each.labels, each.value)
        for family in parse(encode(families, accept).decode())
        for each in family.samples
    ]
    assert read == [
        (each.name, each.labels, each.value)
        for family in families.collect()
        for each in family.samples
    ]


@PARSERS
def test_it_is_what_the_library_writes_but_for_whole_numbers(accept: str, parse: Any) -> None:
    families = some(["T"], 1e-7)
    encoder, content_type = choose_encoder(accept)
    assert content_type_of(accept)[0] == content_type
    text, theirs = encode(families, accept), encoder(families)
    assert [each.__dict__ for each in parse(text.decode())] == [
        each.__dict__ for each in parse(theirs.decode())
    ]
    headers = [line for line in theirs.splitlines() if line.startswith(b"#")]
    assert [line for line in text.splitlines() if line.startswith(b"#")] == headers


looks = st.lists(
    st.tuples(
        st.lists(st.tuples(names, names, numbers), max_size=6),
        st.lists(st.tuples(names, names, numbers), max_size=6),
    ),
    min_size=1,
    max_size=4,
)


@given(looks=looks, is_open=st.booleans(), labels_kept_max=st.sampled_from([0, 3, 1000]))
def test_texts_in_a_row_are_those_that_are_written_slowly(
    looks: Any, is_open: bool, labels_kept_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "LABELS_KEPT_MAX", labels_kept_max)
        patch.setattr(text_module, "LINES_PER_PART", 2)
        patch.setattr(text_module, "TEXTS_PER_AGE", 3)
        encoder = TextEncoder()
        for first, second in looks:
            families = Families({"cluster": "c"}, 4)
            for name, rows in (("a_total", first), ("b_total", second)):
                family = families.counters(name, "same labels", ("topic", "group"))
                family.extend([row[:2] for row in rows], [row[2] for row in rows])
            gauge = families.gauges("c_seconds", "others", ("group", "topic"))
            for *row, value in first:
                gauge.add((row[0], row[1]), value)
            families.histogram("d_seconds", "times", (0.001, 5.0), (1, 2, 3), 7.5)
            expected = written_slowly(families, is_open=is_open)
            assert b"".join(encoder.parts(families, is_open=is_open)) == expected


def test_kept_labels_are_bounded_and_those_of_gone_series_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_module, "LABELS_KEPT_MAX", 5)
    encoder = TextEncoder()

    def kept() -> int:
        return sum(map(len, encoder._kept.values()))

    for number in range(20):
        encode(some([f"{number}-{each}" for each in range(3)]), "", encoder)
        assert kept() <= 5
    assert kept() == 5
    for _ in range(text_module.TEXTS_PER_AGE):
        encode(some([]), "", encoder)
    assert kept() == 1


def test_a_text_comes_in_parts_of_few_lines() -> None:
    families = some([str(number) for number in range(1000)])
    parts = list(TextEncoder().parts(families, is_open=False))
    assert max(part.count(b"\n") for part in parts) == text_module.LINES_PER_PART + 2
    assert b"".join(parts) == written_slowly(families, is_open=False)
