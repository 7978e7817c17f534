"""Families as text: what Prometheus's parsers read is what went in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from kerolox.metrics.families import Families
from kerolox.metrics.text import encode

OPEN = "application/openmetrics-text; version=1.0.0"
PARSERS = pytest.mark.parametrize(("accept", "parse"), [("", plain), (OPEN, openmetrics)])


def some(topics: list[str], value: float = 0.25) -> Families:
    families = Families({"cluster": 'c"\\\n', "node_id": "b"}, 1000)
    for number, topic in enumerate(topics):
        families.counter("a_total", 'of "topics"\\', number, {"topic": topic})
    families.gauge("b_seconds", "plain", value)
    families.histogram("c_seconds", "times", (0.001, 5.0), (1, 2, 3), 7.5)
    return families


@PARSERS
@given(topics=st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
def test_each_label_and_value_comes_back(accept: str, parse: Any, topics: list[str]) -> None:
    families = some(topics)
    text, _ = encode(families.collect(), accept)
    read = [
        (each.name, each.labels, each.value)
        for family in parse(text.decode())
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
    text, own_type = encode(families.collect(), accept)
    assert own_type == content_type
    theirs = encoder(families)
    assert [each.__dict__ for each in parse(text.decode())] == [
        each.__dict__ for each in parse(theirs.decode())
    ]
    headers = [line for line in theirs.splitlines() if line.startswith(b"#")]
    assert [line for line in text.splitlines() if line.startswith(b"#")] == headers
