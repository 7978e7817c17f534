"""The tasks of an operator's day, each done by both tools: on ours, and on Java's with
``KEROLOX_SOFTWARE=all``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tasks.case import Case, Place
from tests.tasks.table import TASKS
from tests.tasks.task import Task

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "tasks.md"
ROW = re.compile(
    r"^\| (?P<name>[A-Z][^|]+) \| `kerolox (?P<command>[^`]+)`[^|]* \| (?P<console>[^|]+) \|$"
)
TOOLS = ("command_line", "console")


class Row(NamedTuple):
    """A line of the guide's table."""

    name: str
    command: str
    """The words that begin the command."""
    section: str
    """The part of the console."""


@cache
def guide() -> dict[str, Row]:
    rows = {}
    for line in GUIDE.read_text().splitlines():
        if found := ROW.match(line):
            words = re.match(r"[a-z]+( [a-z-]+\b(?!\S))*", found["command"])
            assert words is not None, line
            section = found["console"].partition(":")[0]
            rows[found["name"]] = Row(found["name"], words[0], section)
    return rows


def test_the_guide_has_the_tasks_that_are_tested() -> None:
    assert [task.name for task in TASKS] == list(guide())
    assert len(TASKS) == len(guide()) == 53


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
async def test_a_task_is_done(place: Place, task: type[Task], tool: str) -> None:
    done, row = task(), guide()[task.name]
    async with Case(place) as case:
        await done.prepare(case)
        try:
            await getattr(done, tool)(case)
            await done.check(case)
        finally:
            await done.undo(case)
    if tool == "console":
        assert row.section in case.sections
        assert not case.commands
    else:
        assert any(f"{command} ".startswith(f"{row.command} ") for command in case.commands)
        assert not case.sections
