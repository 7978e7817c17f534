"""SQL92 expressions; what Java makes of many more stands in ``tests/interop/test_selectors.py``."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.lines import lines_executed

from kerolox.filter.sql92 import EXPRESSION_CHARACTERS_MAX, compile_sql92
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.sql92_nodes import DEPTH_MAX, EvaluationError

LINES_MAX = 20_000_000
"""Of Python for the longest expression: some hundred for each of its characters."""

MESSAGE = {"price": "10", "rate": "0x1p5000", "region": "eu", "long": "1" * 5_000, "yes": "TRUE"}

WORDS = st.sampled_from(
    "price rate region long yes nothing = <> > >= < <= AND or Not between IN is null TRUE false "
    "( ) , + - 1 0 2.5 .5e1 10l 99999999999 'eu' '' ' -- /* */ # é ſ $a _b 1a .".split(" ")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price = 10", True),
        ("price > 9 and price < 11", True),
        ("price between 1 and 9", False),
        ("price not in ('10', '11')", False),
        ("region = 'eu' or nothing = 1", True),
        ("nothing = 1", None),
        ("nothing is null", True),
        ("not nothing = 1", None),
        ("yes = true", True),
        ("rate > 1e308", True),
    ],
)
def test_expressions_have_three_values(text: str, expected: bool | None) -> None:
    assert compile_sql92(text).evaluate(MESSAGE) is expected


@pytest.mark.parametrize("text", ["region > 1", "long = 1", "region between price and price"])
def test_what_is_no_number_does_not_match(text: str) -> None:
    expression = compile_sql92(text)
    with pytest.raises(EvaluationError):
        expression.evaluate(MESSAGE)
    assert not expression.matches(MESSAGE)


@pytest.mark.parametrize("text", ["", "price >", "= 1", "a = " + "9" * 5_000, "ſ = 1", "a = 1 #"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(Sql92Error):
        compile_sql92(text)


@pytest.mark.parametrize(
    "part", ["(", "not ", "- ", "a = 1 and ", "a = 1 or ", "a,", "'", "/*", "1", "a = (", "a in ("]
)
def test_an_expression_of_any_size_takes_no_long_time(part: str) -> None:
    text = (part * EXPRESSION_CHARACTERS_MAX)[:EXPRESSION_CHARACTERS_MAX]

    def compile_it() -> None:
        with contextlib.suppress(Sql92Error):
            compile_sql92(text)

    assert lines_executed(compile_it, at_most=LINES_MAX) <= LINES_MAX


def test_an_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(Sql92Error, match="at most"):
        compile_sql92("a = 1" + " " * EXPRESSION_CHARACTERS_MAX)


def test_deep_nesting_is_refused_and_long_chains_are_not() -> None:
    compile_sql92("not " * (DEPTH_MAX - 2) + "a")
    with pytest.raises(Sql92Error, match="nested deeper"):
        compile_sql92("not " * DEPTH_MAX + "a")
    assert compile_sql92("a = 0" + " or a = 1" * 5_000).matches({"a": "1"})


@given(st.lists(WORDS, max_size=12).map(" ".join), st.dictionaries(WORDS, st.text(max_size=9)))
def test_words_in_any_order_are_evaluated_or_refused(text: str, more: dict[str, str]) -> None:
    try:
        expression = compile_sql92(text)
    except Sql92Error:
        return
    assert expression.matches({**MESSAGE, **more}) in (True, False)


@given(st.text(max_size=40))
def test_any_property_beside_any_kind_is_compared_or_not_matched(value: str) -> None:
    for text in ("a = 1", "a = 9999999999", "a > 0.5", "a = TRUE", "a = 'x'", "a > b", "1 < a"):
        assert compile_sql92(text).matches({"a": value, "b": "1"}) in (True, False)


BOMBS = [
    "-(" * 40 + "a" + " BETWEEN 1 AND 2)" * 40 + " BETWEEN 1 AND 2",
    "-" * 60_000 + "a = 1",
    "(" * 30_000 + "a = 1" + ")" * 30_000,
    "+" * 60_000 + "a = 1",
    "a = " * 15_000 + "1",
    " OR ".join(f"a = --{number}" for number in range(2_000)),
    "a IN (" + ",".join(["''"] * 20_000) + ")",
    "/*" * 30_000,
    "a = 1 " + "/**/" * 15_000,
    "a > " + "9" * 60_000,
]


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:12])
def test_no_expression_takes_long_to_compile_or_evaluate(text: str) -> None:
    said: list[str] = []

    def compile_and_use_it() -> None:
        try:
            expression = compile_sql92(text)
        except Sql92Error as error:
            said.append(str(error))
            return
        for value in ("1", "1.5", "x", "1" * 32_000, "1" * 32_000 + "x", "0x1p99999"):
            expression.matches({"a": value})

    assert lines_executed(compile_and_use_it, at_most=LINES_MAX) <= LINES_MAX
    assert all(len(text) < 1_000 for text in said)


def test_the_parser_is_loaded_by_the_first_expression_not_by_an_import():
    program = (
        "import sys, kerolox.broker.broker\n"
        "from kerolox.filter.sql92 import compile_sql92, is_parser_loaded\n"
        "print('lark' in sys.modules, is_parser_loaded())\n"
        "compile_sql92('a = 1')\n"
        "print('lark' in sys.modules, is_parser_loaded())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["False", "False", "True", "True"]
