"""Groups of commands: helps by subject, none of them cut; connection options described once.

A connection option stands in the help of ``kerolox`` alone. The help of a command that has them
ends with a line that names them.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from kerolox.cli.values import with_texts

COMPLETION_VARIABLE = "_KEROLOX_COMPLETE"
"""Set by the script of a shell that completes a line."""

WHOLE_CHARACTERS = 10_000
"""Longer than each sentence of a help: none is cut."""


class ConnectionOption(click.Option):
    """Which cluster a command asks, as whom, and how its connections are encrypted."""

    def __init__(self, *args: object, subject: str, **settings: object) -> None:
        """``subject``: which of the three."""
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.subject = subject

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Nothing: the help of ``kerolox`` describes it for all commands."""
        return None

    def described(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its name and what it is."""
        return super().get_help_record(ctx)


class Help:
    """How a command shows its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Below the options: the names of the connection options, where there are some."""
        by_subject: dict[str, list[str]] = {}
        for each in cast("click.Command", self).params:
            if isinstance(each, ConnectionOption):
                by_subject.setdefault(each.subject, []).append(each.opts[0])
        if by_subject:
            with formatter.section("Connection, described by kerolox --help"):
                rows = [(text, ", ".join(names)) for text, names in by_subject.items()]
                formatter.write_dl(rows)


class Command(Help, click.Command):
    """A command whose help has its own options alone."""


class CommandGroup(Help, click.Group):
    """A noun: its verbs with the whole first sentence of each."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(WHOLE_CHARACTERS))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


CommandGroup.group_class = CommandGroup


class Entry(NamedTuple):
    """A command that is imported when it is used."""

    place: str
    """``module:attribute``."""
    text: str
    """The first sentence of its help."""


def import_msgspec() -> None:
    """Import msgspec without ``typing_extensions``, where another package has brought that.

    msgspec asks it for names that ``typing`` has from Python 3.11 on, and does without it. That
    import is as long as msgspec's own: 20 ms of each command. Who needs it later imports it.
    """
    name = "typing_extensions"
    if name in sys.modules:
        return
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules[name] = None  # There is none: an ImportError.
    try:
        importlib.import_module("msgspec")
    finally:
        del modules[name]


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that the others cost nothing."""

    def __init__(
        self, *args: object, subjects: Mapping[str, Mapping[str, Entry]], **settings: object
    ) -> None:
        """``subjects``: heading → name → command."""
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._subjects = subjects
        self._entries = {name: each for names in subjects.values() for name, each in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order given."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        import_msgspec()
        command = getattr(importlib.import_module(module), attribute)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        return with_texts(cast("click.Command", command))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Names that begin so, and options; no command is imported."""
        names = [
            CompletionItem(name, help=entry.text)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by subject."""
        width = max(map(len, self._entries))
        for heading, names in self._subjects.items():
            with formatter.section(heading):
                rows = [(f"{name:{width}}", entry.text) for name, entry in names.items()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name when there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from kerolox.config import nearest

            best = nearest(args[0], self._entries)
            if best is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {best!r}?", ctx) from None
