"""``--dry-run`` and ``--yes``: what a command would do, and whether it may.

Every command that changes a cluster takes ``--dry-run``. Where messages are lost or come again it
says first what it will do. Then it asks on a terminal; elsewhere it needs ``--yes``. The others act
at once. No command waits for an answer that nobody can give.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

import click

from kerolox.cli.connecting import cluster_text
from kerolox.cli.output import print_line
from kerolox.cli.rows import is_text
from kerolox.text import printable


class Consent(NamedTuple):
    """What a person said about doing it."""

    yes: bool = False
    """Do it without a question."""
    dry_run: bool = False
    """Only say what would be done."""


dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
"""The argument ``dry_run`` of a command that acts at once."""


def consent_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--yes`` and ``--dry-run``, together the argument ``consent`` of :func:`confirm`.

    ``--execute`` is another name of ``--yes``, for scripts; help does not show it.
    """

    @functools.wraps(command)
    def with_consent(*, yes: bool, execute: bool, dry_run: bool, **given: object) -> object:
        if dry_run and (yes or execute):
            raise click.UsageError("--yes and --dry-run don't go together.")
        return command(consent=Consent(yes or execute, dry_run), **given)

    for option in (
        dry_run_option,
        click.option("--execute", is_flag=True, hidden=True),
        click.option("-y", "--yes", is_flag=True, help="Do it without asking."),
    ):
        with_consent = option(with_consent)
    return with_consent


def confirm(question: str, consent: Consent, output: str, name_server: str) -> bool:
    """Whether to go on; False: ``--dry-run`` was given, and it is said that nothing was changed.
    Show before what will be done: a terminal gets the question below it, with the cluster added to
    it.

    UsageError: nobody is there to be asked. Abort: the answer is no.
    """
    if consent.dry_run:
        print_dry_run(output)
        return False
    if consent.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("Nothing was done; --yes does it.")
    asked = f"{question.removesuffix('?')} ({cluster_text(name_server)})?"
    sys.stdout.flush()
    click.confirm(printable(asked, characters_max=None), abort=True, err=True)
    return True


def print_dry_run(output: str) -> None:
    """Say to people that nothing was changed; what is printed for programs has ``done`` false."""
    if is_text(output):
        print_line("nothing was changed (--dry-run)")
