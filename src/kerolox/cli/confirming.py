"""``--yes``: what cannot be undone is done after a question on a terminal, else only with it."""

from __future__ import annotations

import sys

import click

from kerolox.text import printable

yes_option = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
"""The argument of :func:`confirm`."""


def confirm(question: str, *, yes: bool) -> None:
    """Go on if ``yes``, or if the person at the terminal says so.

    Raises:
        click.UsageError: nobody is there to be asked.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("Nothing was done; --yes does it.")
    click.confirm(printable(question, characters_max=None), abort=True, err=True)
