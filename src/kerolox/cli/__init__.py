"""The command ``kerolox``. Each subcommand is a module that is imported when it is used."""

from kerolox.cli.app import main

__all__ = ["main"]
