"""One page of several brokers: families are there once, with the series of all."""

from __future__ import annotations

from kerolox.metrics.families import Families
from kerolox.metrics.merging import merged

from .test_text import PARSERS, encode


def of(broker: str, *topics: str) -> Families:
    families = Families({"node_id": broker}, 1000)
    for topic in topics:
        families.counter("a_total", "of topics", 1, {"topic": topic})
    families.histogram("c_seconds", "times", (0.001, 5.0), (1, 2, 3), 7.5)
    return families


@PARSERS
def test_the_series_of_all_stand_in_one_family(accept: str, parse: object) -> None:
    texts = [
        encode(of("x", "t", "u"), accept),
        encode(of("y"), accept),
        encode(of("z", "t"), accept),
    ]
    text = b"".join(merged(texts)).decode()
    found = {family.name: family for family in parse(text)}  # type: ignore[operator]
    assert text.count("# TYPE ") == len(found) == 2
    topics = [
        (sample.labels["node_id"], sample.labels["topic"])
        for sample in found["a"].samples
        if sample.name == "a_total"
    ]
    assert topics == [("x", "t"), ("x", "u"), ("z", "t")]
    sums = [each.labels for each in found["c_seconds"].samples if each.name == "c_seconds_sum"]
    assert sums == [{"node_id": "x"}, {"node_id": "y"}, {"node_id": "z"}]


def test_nothing_gives_nothing() -> None:
    assert list(merged([])) == list(merged([b""])) == []
