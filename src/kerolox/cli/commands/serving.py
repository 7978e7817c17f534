"""Nouns that serve by themselves: ``kerolox broker`` runs one, ``kerolox broker list`` asks."""

from __future__ import annotations

import inspect

import click
from click.core import ParameterSource

from kerolox.cli.grouping import CommandGroup


def serving_group(serve: click.Command, name: str, text: str) -> CommandGroup:
    """A noun that does what ``serve`` does where no verb is given, with its options. ``text``: the
    first sentence of its help."""

    def serve_alone(**given: object) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            context.invoke(serve, **given)
            return
        for option in given:
            if context.get_parameter_source(option) == ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"Options of a {name} that is started don't go with"
                    f" {context.invoked_subcommand!r}."
                )

    return CommandGroup(
        name,
        callback=serve_alone,
        params=list(serve.params),
        invoke_without_command=True,
        subcommand_metavar="[COMMAND]",
        help=f"{text}\n\nWithout a command: {inspect.cleandoc(serve.help or '')}",
    )
