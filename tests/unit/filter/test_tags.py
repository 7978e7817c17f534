from __future__ import annotations

import pytest

from kerolox.filter.tags import looks_like_sql92, parse_tags, subscription_of
from kerolox.message import java_hash


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_matches(expression: str | None) -> None:
    subscription = subscription_of("T", expression)
    assert subscription.tag_codes is None
    assert subscription.matches("anything")
    assert subscription.matches(None)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("a", ("a",)), ("a||b", ("a", "b")), (" a ||  b || a ", ("a", "b")), ("||a||", ("a",))],
)
def test_tags_are_split_trimmed_and_taken_once(expression: str, tags: tuple[str, ...]) -> None:
    subscription = subscription_of("T", expression)
    assert subscription.tags == tags
    assert subscription.tag_codes == tuple(java_hash(tag) for tag in tags)


def test_tags_with_the_same_hash_are_told_apart_by_text() -> None:
    subscription = subscription_of("T", "Aa")
    assert subscription.tag_codes == (java_hash("BB"),)
    assert subscription.matches("Aa")
    assert not subscription.matches("BB")
    assert not subscription.matches(None)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a\u00a0", ("a\u00a0",)),
        ("\u2003a || b\u3000", ("\u2003a", "b\u3000")),
        ("\0a\x1f||\x85b\t", ("a", "\x85b")),
    ],
)
def test_tags_are_trimmed_as_java_trims(expression: str, tags: tuple[str, ...]) -> None:
    subscription = subscription_of("T", expression)
    assert subscription.tags == tags
    assert subscription.tag_codes == tuple(java_hash(tag) for tag in tags)


def test_a_blank_beyond_ascii_is_part_of_a_tag() -> None:
    assert subscription_of("T", "a\u00a0").codes == (3167,)
    assert subscription_of("T", "a ").codes == (97,)
    assert parse_tags("\u00a0") == ("\u00a0",)


@pytest.mark.parametrize("expression", ["||", " ", " || || "])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="names no tag"):
        parse_tags(expression)


def test_the_version_is_the_time_unless_it_is_given() -> None:
    assert subscription_of("T", "a", version=5).version == 5
    assert subscription_of("T", "a").version > 1_700_000_000_000


CONDITIONS = """a > 5; a<=b; (a); k=v; city = 'x'; a IS NULL; a is not null; a AND b; NOT a; a OR b;
a between 1 and 5; a BETWEEN 1 AND 5; a in ('x')"""
TAGS = """*; a; a || b; a||b; New York || Rio; ANDROID; this and that; Žilina; made in China;
order-paid; a.b_c%d|e; NOTE; is null; TRUE"""


@pytest.mark.parametrize("expression", CONDITIONS.replace("\n", " ").split("; "))
def test_a_condition_is_known_from_tags(expression: str) -> None:
    assert looks_like_sql92(expression)


@pytest.mark.parametrize("expression", TAGS.replace("\n", " ").split("; "))
def test_tags_are_not_taken_for_a_condition(expression: str) -> None:
    assert not looks_like_sql92(expression)
