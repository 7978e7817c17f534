"""The guide has a command of ours, or a method, for each command of mqadmin; all of them exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from kerolox.admin import Admin
from kerolox.cli.app import cli
from tests.support.mqadmin_commands import COMMANDS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
SECTION = GUIDE.read_text().partition("## Coming from mqadmin")[2]
OF_CLI, _, OF_ADMIN = SECTION.partition("These have no command")


def rows(text: str) -> list[tuple[list[str], list[str]]]:
    """Commands of mqadmin, and what does the same."""
    found = re.findall(r"^\| (`.*?) \| (`.*?) \|$", text, re.MULTILINE)
    return [tuple(re.findall(r"`(.+?)`", cell) for cell in row) for row in found[1:]]


NAMED = [name for _, names in rows(OF_CLI) for name in names]


def test_each_command_of_mqadmin_is_in_one_of_the_tables() -> None:
    named = [name for text in (OF_CLI, OF_ADMIN) for names, _ in rows(text) for name in names]
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.parametrize("line", NAMED)
def test_a_named_command_exists_with_its_options(line: str) -> None:
    context, command = click.Context(cli), cli
    for word in line.split():
        if word.startswith("--"):
            assert word in {name for each in command.params for name in each.opts}, line
        elif isinstance(command, click.Group):
            inner = command.get_command(context, word)
            assert inner is not None, f"{word} of {line} is no command"
            command, context = inner, click.Context(inner, parent=context)
    assert not isinstance(command, click.Group), f"{line} is a group of commands"


def test_the_other_commands_are_methods() -> None:
    methods = [name for _, names in rows(OF_ADMIN) for name in names]
    assert [name for name in methods if not hasattr(Admin, name)] == []
