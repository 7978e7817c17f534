"""What brokers are told of the expression that a user gives."""

from __future__ import annotations

import pytest

from kerolox.client.core.consuming.subscribing import wanted
from kerolox.errors import ConfigError
from kerolox.message import tags_code


@pytest.mark.parametrize("expression", ["a > 5", "a IS NOT NULL", "(a = 'x') OR b = 2"])
def test_a_condition_is_sql92_and_no_tag(expression: str) -> None:
    subscription = wanted("T", expression)
    assert (subscription.expression_type, subscription.expression) == ("SQL92", expression)
    assert subscription.tags == subscription.codes == ()


def test_tags_are_tags() -> None:
    subscription = wanted("T", " a || b")
    assert (subscription.expression_type, subscription.tags) == ("TAG", ("a", "b"))
    assert subscription.codes == (tags_code("a"), tags_code("b"))
    assert wanted("T", "*").tags == ()


def test_the_type_may_be_said() -> None:
    assert wanted("T", "a > 5", "TAG").tags == ("a > 5",)
    assert wanted("T", "a", "SQL92").expression_type == "SQL92"


@pytest.mark.parametrize(
    ("expression", "kind", "text"),
    [
        ("a > ", None, "ends too early; expression_type='TAG' takes it"),
        ("a || b", "SQL92", "can't be read at character 2"),
        (" || ", None, "names no tag; write"),
        ("a", "sql", "expression_type is 'sql'; it must be TAG or SQL92"),
    ],
)
def test_what_is_neither_is_refused_at_once(expression: str, kind: str | None, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        wanted("T", expression, kind)
