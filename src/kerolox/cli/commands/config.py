"""``kerolox config check``: files of settings, accounts and keys, before a server reads them."""

from __future__ import annotations

from pathlib import Path

import click

from kerolox.cli.commands.doctor import EXIT_FINDINGS, show_findings
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import output_option, print_line
from kerolox.cli.rows import is_text


@click.group(cls=CommandGroup)
def config() -> None:
    """Check files of settings. Those of brokers that run: kerolox broker config."""


@config.command("check")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE...",
)
@click.option(
    "--kind",
    type=click.Choice(["broker", "namesrv", "tls", "accounts", "tools"]),
    help="What it is for; default: by its name and what it says.",
)
@output_option
def check_command(files: tuple[Path, ...], kind: str | None, output: str) -> int:
    """Find mistakes in broker.conf, namesrv.conf, tls.properties, plain_acl.yml or tools.yml.

    Keys that nobody knows or that do nothing, values that don't fit, settings that contradict each
    other, secrets that others can read: each with its line and what to do. Exit code: 0 nothing is
    wrong, 1 something is.
    """
    from kerolox.doctor import Severity, check_file, worst_first

    findings = worst_first([each for file in files for each in check_file(file, kind or "")])
    show_findings(findings, output)
    is_wrong = any(each.severity > Severity.NOTE for each in findings)
    if not is_wrong and is_text(output):
        print_line("nothing else is wrong" if findings else "nothing is wrong")
    return EXIT_FINDINGS if is_wrong else 0
