"""The page ``docs/compatibility.md``: each test that it names is there, and nothing is twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
ROW = re.compile(
    r"\| (?P<feature>[^|]+) \| (?P<here>yes|yes; \[[^|]+|no: [^|]+)"
    r" \| (?:`(?P<path>tests/[\w/]+\.py)::(?P<test>test_\w+)`|–) \|"
)
ROWS = [
    (line, ROW.fullmatch(line))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| RocketMQ 4.x |", "| --- |"))
]
FEATURES = [match for _, match in ROWS if match is not None]


def functions_of(path: Path) -> set[str]:
    """The names of the functions of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


def test_each_feature_says_whether_it_works_and_by_which_test() -> None:
    assert not [line for line, match in ROWS if match is None]
    assert [each["feature"] for each in FEATURES if each["here"].startswith("no")] == [
        each["feature"] for each in FEATURES if each["test"] is None
    ]


def test_each_test_that_the_page_names_is_there() -> None:
    named = [each for each in FEATURES if each["test"]]
    assert named
    tests = {path: functions_of(ROOT / path) for path in {each["path"] for each in named}}
    assert not [each.group() for each in named if each["test"] not in tests[each["path"]]]


def test_the_page_names_nothing_twice() -> None:
    features = Counter(each["feature"] for each in FEATURES)
    tests = Counter((each["path"], each["test"]) for each in FEATURES if each["test"])
    assert [name for name, count in (features + tests).items() if count > 1] == []
