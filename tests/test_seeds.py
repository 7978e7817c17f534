"""The checklist ``docs/seeds.md``: complete, and each tick points at a test that is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECKLIST = ROOT / "docs" / "seeds.md"
COUNTS = {"S0": 165, "S1": 78, "S2": 51, "S3": 26, "S4": 42}
IDS = [f"{part}-{number}" for part, count in COUNTS.items() for number in range(1, count + 1)]

ITEM = re.compile(r"- \[(?P<tick>[ x])\] (?P<id>S\d-\d+) (?P<text>.+?) — (?P<end>.+)")
TESTS = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")


def items() -> list[re.Match[str]]:
    lines = [line for line in CHECKLIST.read_text().splitlines() if line.startswith("- ")]
    found = [ITEM.fullmatch(line) for line in lines]
    unread = [line for line, match in zip(lines, found, strict=True) if match is None]
    assert not unread
    return [match for match in found if match is not None]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The names of all functions of a file; none when it is not there."""
    if not path.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_every_id_stands_exactly_once_and_in_order() -> None:
    assert [match["id"] for match in items()] == IDS


@pytest.mark.parametrize("part", COUNTS)
def test_every_tick_names_tests_that_are_there(part: str) -> None:
    missing = []
    for match in items():
        if match["tick"] == " " or not match["id"].startswith(part):
            continue
        named = match["end"].split(", ")
        for test in named:
            found = TESTS.fullmatch(test)
            if found is None or found[2] not in functions_of(ROOT / found[1]):
                missing.append((match["id"], test))
    assert not missing


def test_what_is_not_ticked_names_no_test_as_its_proof() -> None:
    assert not [match["id"] for match in items() if match["tick"] == " " and "::" in match["end"]]


def test_the_counts_that_the_checklist_tells_are_its_own() -> None:
    text = CHECKLIST.read_text()
    ticked = [match["id"] for match in items() if match["tick"] == "x"]
    assert f"Ticked: {len(ticked)} of {len(IDS)}." in text
    for part, count in COUNTS.items():
        own = len([each for each in ticked if each.startswith(f"{part}-")])
        assert re.search(rf"^## {part}: .* \({own} of {count}\)$", text, re.MULTILINE)
