"""``kerolox context``: clusters by name."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kerolox.cli import completing
from kerolox.cli.connecting import CONTEXT_VARIABLE
from kerolox.cli.contexts import (
    Context,
    check_context_name,
    contexts_file,
    read_contexts,
    write_contexts,
)
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import Column, is_text, show_record, show_rows
from kerolox.errors import ConfigError

_COLUMNS = (
    Column("selected", "", text=lambda value: "*" if value else ""),
    Column("name", "NAME"),
    Column("nameServer", "NAME SERVER"),
    Column("credentialsFile", "ACCOUNT"),
    Column("tls", "TLS", text=lambda value: "yes" if value else ""),
    Column("description", "DESCRIPTION"),
)


@click.group(cls=CommandGroup)
def context() -> None:
    """Name clusters, so that commands need no addresses."""


@context.command("add")
@click.argument("name")
@click.option(
    "-n",
    "name_server",
    required=True,
    metavar="ADDR",
    help="Name servers, host:port joined by ';'.",
)
@click.option(
    "--credentials",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Keys of an account, as in RocketMQ's conf/tools.yml.",
)
@click.option("--tls", is_flag=True, help="Encrypt connections.")
@click.option(
    "--tls-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Encrypt connections as tls.client.* in this file says.",
)
@click.option("--description", default="", metavar="WORDS", help="What kerolox context list says.")
@click.option("--select", is_flag=True, help="Select it: commands use it from now on.")
@click.option("--replace", is_flag=True, help="Replace the context of that name.")
def add_command(
    name: str,
    name_server: str,
    credentials: Path | None,
    tls: bool,
    tls_config: Path | None,
    description: str,
    select: bool,
    replace: bool,
) -> None:
    """Add a context; the first one is selected."""
    from kerolox.client.aio.network.identity import name_servers_of

    check_context_name(name)
    name_servers_of(name_server)
    path = contexts_file(os.environ)
    kept = read_contexts(path)
    if name in kept.contexts and not replace:
        raise ConfigError(f"there is a context {name!r} already; --replace puts this in its place")
    is_first = not kept.contexts
    kept.contexts[name] = Context(
        name_server,
        str(credentials.absolute()) if credentials else "",
        tls,
        str(tls_config.absolute()) if tls_config else "",
        description,
    )
    if select or is_first:
        kept.selected = name
    write_contexts(path, kept)
    print_line(f"context {name} added{' and selected' if kept.selected == name else ''}")
    if kept.selected == name:
        _complain_of_stronger(name)


@context.command("list")
@output_option
def list_command(output: str) -> None:
    """Print all contexts; ``*`` marks the selected one."""
    kept = read_contexts(contexts_file(os.environ))
    rows = [
        _row(name, each, is_selected=name == kept.selected)
        for name, each in sorted(kept.contexts.items())
    ]
    show_rows(rows, _COLUMNS, output)
    if not rows and is_text(output):
        print_line("no contexts; kerolox context add NAME -n HOST:PORT makes one")


@context.command("show")
@click.argument("name", required=False, shell_complete=completing.contexts)
@output_option
def show_command(name: str | None, output: str) -> None:
    """Print one context; the selected one if none is named."""
    kept = read_contexts(contexts_file(os.environ))
    chosen = name or kept.selected
    if not chosen:
        raise ConfigError("no context is selected; kerolox context select NAME")
    row = _row(chosen, kept.find(chosen), is_selected=chosen == kept.selected)
    show_record(row, _COLUMNS[1:], output)


@context.command("select")
@click.argument("name", shell_complete=completing.contexts)
def select_command(name: str) -> None:
    """Select the context that commands use; - selects none."""
    path = contexts_file(os.environ)
    kept = read_contexts(path)
    if name != "-":
        kept.find(name)
    kept.selected = "" if name == "-" else name
    write_contexts(path, kept)
    print_line("no context is selected" if name == "-" else f"context {name} is selected")
    if name != "-":
        _complain_of_stronger(name)


def _complain_of_stronger(name: str) -> None:
    """Say which variables have commands go elsewhere all the same."""
    if (named := os.environ.get(CONTEXT_VARIABLE)) and named != name:
        complain(f"kerolox: ${CONTEXT_VARIABLE} is {named}, which is stronger: unset it")
    elif not named and (there := os.environ.get("NAMESRV_ADDR")):
        complain(
            f"kerolox: $NAMESRV_ADDR is {there}, which is stronger: commands go there; unset it, "
            f"or give --context {name}"
        )


@context.command("delete")
@click.argument("name", shell_complete=completing.contexts)
def delete_command(name: str) -> None:
    """Forget a context."""
    path = contexts_file(os.environ)
    kept = read_contexts(path)
    kept.find(name)
    del kept.contexts[name]
    if kept.selected == name:
        kept.selected = ""
    write_contexts(path, kept)
    print_line(f"context {name} deleted")


def _row(name: str, found: Context, *, is_selected: bool) -> dict[str, object]:
    return {
        "name": name,
        "selected": is_selected,
        "nameServer": found.name_server,
        "credentialsFile": found.credentials_file,
        "tls": found.tls or bool(found.tls_config),
        "tlsConfig": found.tls_config,
        "description": found.description,
    }
