"""What brokers learn of the expression that a user gives."""

from __future__ import annotations

import pytest

from kerolox.client.aio.consumer_settings import PushConsumerSettings
from kerolox.client.aio.consumers.push.listening import Listeners
from kerolox.client.aio.consumers.push.ownership.subscriptions import Subscriptions
from kerolox.client.aio.consumers.push.stream import MessageStream
from kerolox.client.core.consuming.subscribing import Versions, wanted
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


def test_versions_go_up_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    versions, now = Versions(), [5_000]
    monkeypatch.setattr("time.time_ns", lambda: now[0] * 1_000_000)
    made = []
    for at in (5_000, 5_000, 1_000, 6_000):
        now[0] = at
        made.append(versions.later(wanted("T", "a")).version)
    assert made == [5_000, 5_001, 5_002, 6_000]


def test_a_topic_that_was_left_is_subscribed_to_with_a_later_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Subscriptions(
        "", "%RETRY%g", Listeners("g", PushConsumerSettings()), MessageStream(1.0)
    )
    table.add("T", "a", None, None, ordered=False)
    before = table.table["T"].version
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000)
    table.remove("T")
    table.add("T", "b", None, None, ordered=False)
    assert table.table["T"].version > before
    assert table.touch("T")
    assert table.table["T"].version > before + 1
