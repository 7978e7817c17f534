"""All commands of the command line, for tests of what each of them has."""

from __future__ import annotations

from collections.abc import Container, Iterator

import click

from kerolox.cli.app import cli


def command_contexts(
    above: click.Context | None = None, *, without: Container[str] = ()
) -> Iterator[click.Context]:
    """Of a command, ``kerolox`` itself where none is given, and of all below it.

    Args:
        above: the context of the command.
        without: names of commands that are left out with all below them.
    """
    above = above or click.Context(cli, info_name="kerolox")
    yield above
    if isinstance(above.command, click.Group):
        for name in above.command.list_commands(above):
            command = above.command.get_command(above, name)
            assert command is not None
            if name not in without:
                below = click.Context(command, parent=above, info_name=name)
                yield from command_contexts(below, without=without)
