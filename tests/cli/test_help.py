"""Helps: by subject, none of them cut, connection options described once; what comes first."""

from __future__ import annotations

import re

import click
import pytest

from kerolox.cli.app import FIRST_STEPS, SUBJECTS, cli
from kerolox.cli.cluster_options import CONNECTION_OPTIONS
from kerolox.cli.grouping import WHOLE_CHARACTERS, ConnectionOption
from tests.cli.every_command import command_contexts
from tests.support.servers.command import kerolox
from tests.support.servers.terminal import on_terminal

ALL = list(command_contexts(without={"spark"}))
"""All but the jobs of Spark."""
GROUPS = [each for each in ALL if isinstance(each.command, click.Group) and each.command is not cli]


def plain(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("heading", SUBJECTS)
def test_the_first_help_has_each_command_with_its_own_sentence(heading: str) -> None:
    root = click.Context(cli)
    shown = plain(cli.get_help(root).partition(f"\n{heading}:\n")[2])
    for name, entry in SUBJECTS[heading].items():
        command = cli.get_command(root, name)
        assert command is not None
        assert command.get_short_help_str(WHOLE_CHARACTERS) == entry.text
        assert f"{name} {plain(entry.text)}" in shown


@pytest.mark.parametrize("context", GROUPS, ids=lambda each: each.command_path)
def test_a_noun_shows_the_whole_sentence_of_each_verb(context: click.Context) -> None:
    shown = plain(context.get_help().partition("\nCommands:\n")[2])
    assert isinstance(context.command, click.Group)
    for name, command in context.command.commands.items():
        sentence = command.get_short_help_str(WHOLE_CHARACTERS)
        assert sentence.endswith(".")
        assert f"{name} {plain(sentence)}" in shown


@pytest.mark.parametrize("context", ALL, ids=lambda each: each.command_path)
def test_connection_options_are_named_and_described_by_kerolox_alone(
    context: click.Context,
) -> None:
    shown = plain(context.get_help())
    given = [each for each in context.command.params if isinstance(each, ConnectionOption)]
    texts = [plain(each.help or "") for each in CONNECTION_OPTIONS]
    if context.command is cli:
        assert all(text in shown for text in texts)
        return
    assert not any(text in shown for text in texts)
    assert bool(given) == ("described by kerolox --help" in shown)
    named = shown.partition("described by kerolox --help")[2]
    assert all(each.opts[0] in named for each in given)


@pytest.mark.parametrize("context", ALL, ids=lambda each: each.command_path)
def test_each_option_says_what_it_does_and_what_it_takes(context: click.Context) -> None:
    for option in context.command.params:
        if isinstance(option, click.Option) and not option.hidden:
            where = f"{context.command_path} {option.opts[0]}"
            said = option.help or ""
            assert len(said.split()) > 1, where
            assert said[0].isupper() or said[0] in "'$", where
            assert said.rstrip()[-1] in ".)]", where
            takes = "" if option.is_flag else option.make_metavar(context)
            assert takes not in ("TEXT", "INTEGER", "FLOAT", "INTEGER RANGE", "FLOAT RANGE"), where


def test_kerolox_alone_on_a_terminal_says_what_comes_first() -> None:
    shown = on_terminal()
    assert [each for each, _ in FIRST_STEPS if each not in shown] == []
    assert re.match(r"Kerolox \d", shown)
    assert "kerolox --help lists all commands." in shown
    assert len(shown.splitlines()) < 10


def test_kerolox_alone_elsewhere_shows_its_help_and_is_wrong_usage() -> None:
    done = kerolox()
    assert done.returncode == 2
    assert "Servers:" in done.stderr + done.stdout


@pytest.mark.parametrize("line", [line for line, _ in FIRST_STEPS])
def test_the_first_commands_exist_with_their_options(line: str) -> None:
    _, name, *rest = line.split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, rest)
