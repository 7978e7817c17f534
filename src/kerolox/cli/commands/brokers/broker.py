"""``kerolox broker``: runs one, or has commands about brokers that run."""

from __future__ import annotations

import inspect

import click
from click.core import ParameterSource

from kerolox.cli.commands.brokers.retiring import retire_command, return_command
from kerolox.cli.commands.brokers.roles import demote_command, promote_command, role_command
from kerolox.cli.commands.brokers.settings import config
from kerolox.cli.commands.brokers.showing import describe_command, list_command
from kerolox.cli.commands.serve import broker as serve_broker
from kerolox.cli.grouping import CommandGroup


def _serve_alone(**given: object) -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        context.invoke(serve_broker, **given)
        return
    for name in given:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"Options of a broker that is started don't go with {context.invoked_subcommand!r}."
            )


broker = CommandGroup(
    "broker",
    callback=_serve_alone,
    params=list(serve_broker.params),
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    help="Run a broker, or examine and change those of a cluster.\n\nWithout a command: "
    + inspect.cleandoc(serve_broker.help or ""),
)

for _command in (
    list_command,
    describe_command,
    config,
    role_command,
    promote_command,
    demote_command,
    retire_command,
    return_command,
):
    broker.add_command(_command)
