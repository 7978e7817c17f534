"""SQL92 expressions mean to us what they mean to the Java broker."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.filter.bloom import BloomFilter
from kerolox.filter.sql92 import compile_sql92
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.sql92_nodes import EvaluationError
from tests.support.programs import java_command

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

MESSAGES: list[dict[str, str]] = [
    {},
    {"a": "1", "b": "x", "c": "true", "d": "2.5"},
    {"a": "10", "b": "it's", "c": "FALSE", "d": "-1e3", "e": ""},
    {"a": "-7", "b": "", "c": "yes", "d": "NaN", "e": " 5 "},
    {"a": "2147483648", "b": "10", "c": "1", "d": "Infinity", "e": "0x1p3"},
    {"a": "9223372036854775808", "b": "é😀", "c": "tRUE", "d": "1.5f", "e": "+3"},
    {"a": "1.0", "b": "X", "c": "false", "d": ".5", "e": "1_0"},
    {"a": "007", "b": "abc", "c": "true", "d": "5.", "e": "-0.0"},
    {"a": "٣", "b": "y", "d": "-Infinity", "e": "1e400", "$x_1": "v"},
    {"a": "-2147483648", "b": "'", "f": "2147483647", "g": " 1", "TAGS": "red", "KEYS": "k1 k2"},
    {"a": "-2147483649", "b": "\\", "f": "9223372036854775807", "g": "1 ", "_": "1", "$": "1"},
    {"a": "-9223372036854775808", "b": "a\\b", "f": "9007199254740993", "g": "+", "__": "1"},
    {"a": "+1", "b": "a\nb", "f": "0.1", "g": "-", "TAGS": "green", "a$b": "1", "a$": "1"},
    {"a": "1l", "b": '"', "f": "0.10000000000000001", "g": "\t1\n", "$_$1": "v", "_1": ""},
    {"a": "0x1F", "b": "--", "f": "1.7976931348623159e308", "g": "true ", "a_b_c_1": "v"},
    {"a": "31", "b": "/* no comment */", "f": "4.9e-324", "g": "TrUe", "A": "31", "nul": "1"},
    {"a": "017", "b": "É", "f": "-0", "g": "0", "d": "0", "e": "-0", "IS": "1", "or1": "1"},
    {"a": "1e1", "b": "%", "f": "NaN", "g": "nan", "d": "nan", "not_a": "1", "in_": "1"},
    {"a": "𝟏", "b": "𝟏", "f": "null", "g": "１", "c": "", "d": "１.5", "is_": "1", "andy": "1"},
    {"a": "0" * 300 + "1", "b": "x" * 300, "f": "0x1p5000", "g": "0x1.8P1d", "d": "-0x1p5000"},
    {
        "a": "",
        "b": " ",
        "c": " true",
        "d": "",
        "e": "1e5d",
        "f": "TRUE ",
        "TRUE1": "1",
        "Between": "1",
    },
    {"a": "--1", "b": "x", "c": "True", "d": "1e", "e": "0x10", "f": "infinity", "false$": "1"},
]

UNWRITTEN = [
    "",
    " ",
    "a = 1\nor b = 'x'",
    "a\t=\r\n1",
    "a\f= 1",
    "a\v= 1",
    "a\xa0= 1",
    "a = 1 -- to the end\nor TRUE",
    "a = 1 -- to the end\ror TRUE",
    "a = 1 -- to the end\r\nor TRUE",
    "a = 1 /* over\ntwo lines */ or TRUE",
    "b = 'a\nb'",
    "b = 'a\r\nb'",
    "b = '\t'",
    "a = 1\x00",
    "b = '\x00'",
    "b = 'x' or\n\n\nz",
    " or ".join(f"a = {number}" for number in range(-10, 500)),
    " and ".join(f"a <> {number}" for number in range(500)),
    "b in (" + ", ".join(f"'{number}'" for number in range(500)) + ", 'x')",
    "(" * 150 + "a = 1" + ")" * 150,
    "not " * 150 + "a = 1",
    "- " * 150 + "5 > a",
    "b = '" + "x" * 300 + "'",
    "x" * 300 + " is null",
    "a = " + "0" * 300,
    "a = " + "1" * 300,
    "a = 0." + "0" * 300 + "1",
    "a = 1" + "0" * 300 + ".0",
    "a" + " = a" * 100,
]
"""Texts that have no line of their own: with control characters, or long ones."""


TABLE_TEXTS_MIN = 300


def written() -> list[str]:
    """The table of expressions, one a line."""
    return Path(__file__).with_name("selectors.txt").read_text("utf-8").splitlines()


def random_expression(source: random.Random, depth: int = 0) -> str:
    """One that is mostly well formed."""
    kind = source.randrange(9) if depth < 4 else source.randrange(2, 7)

    def operand() -> str:
        names = ("a", "b", "c", "d", "e", "z")
        literals = ("1", "10", "-7", "2.5", ".5", "1e1", "'x'", "'10'", "TRUE", "FALSE", "NULL")
        return source.choice(names if source.random() < 0.6 else literals)

    if kind == 0:
        joined = source.choice((" AND ", " OR ", " and ", " or "))
        return joined.join(
            random_expression(source, depth + 1) for _ in range(source.randint(2, 4))
        )
    if kind == 1:
        return f"({random_expression(source, depth + 1)})"
    if kind == 2:
        low, high = operand(), operand()
        negated = source.choice(("", "NOT "))
        return f"{operand()} {negated}BETWEEN {low} AND {high}"
    if kind == 3:
        negated = source.choice(("", "not "))
        return f"{operand()} {negated}in ('x', '{source.choice('abc')}', '10')"
    if kind == 4:
        return f"{operand()} is {source.choice(('', 'not '))}null"
    if kind in (5, 6):
        return f"{operand()} {source.choice(('=', '<>', '>', '>=', '<', '<='))} {operand()}"
    if kind == 7:
        return f"not {random_expression(source, depth + 1)}"
    return f"{random_expression(source, depth + 1)} = {operand()}"


def our_answer(text: str, messages: list[dict[str, str]]) -> str:
    try:
        expression = compile_sql92(text)
    except Sql92Error:
        return "refused"

    def word(properties: Mapping[str, str]) -> str:
        try:
            return {True: "true", False: "false", None: "null"}[expression.evaluate(properties)]
        except EvaluationError:
            return "failed"

    return " ".join(word(properties) for properties in messages)


def ask_java(questions: list[dict[str, object]]) -> list[str]:
    done = subprocess.run(
        java_command("interop.Selectors"),
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
        timeout=500,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions), done.stderr
    return answers


def test_every_expression_gives_what_java_gives() -> None:
    source = random.Random(92)
    texts = written() + UNWRITTEN
    assert len(set(texts)) >= TABLE_TEXTS_MIN
    texts += [random_expression(source) for _ in range(2_000)]
    answers = ask_java([{"expression": text, "messages": MESSAGES} for text in texts])
    different = [
        f"{text!r}: Java {theirs}, ours {ours}"
        for text, theirs in zip(texts, answers, strict=True)
        if (ours := our_answer(text, MESSAGES)) != theirs
    ]
    assert not different, f"{len(different)} of {len(texts)}:\n" + "\n".join(different[:20])
    # The table is worth something: both outcomes are common.
    assert 500 < sum(answer == "refused" for answer in answers) < len(texts) - 500


def test_the_bits_of_a_group_are_those_of_java() -> None:
    texts = ["", "a", "group#topic", "é😀#t", *("x" * length for length in range(14, 40))]
    ours = [str(BloomFilter.create(20, 32).positions(text)) for text in texts]
    assert ask_java([{"bloom": text} for text in texts]) == ours
