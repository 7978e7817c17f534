"""The command line's entry: finds the subcommand, turns errors into one line and an exit code.

Exit codes: 0 done, 1 an error of ours, the peer's or the settings', 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

import click

from kerolox.cli.output import complain_of, show_usage_error
from kerolox.cli.values import with_texts
from kerolox.errors import KeroloxError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that the others cost nothing."""

    def __init__(self, *args: object, commands_at: dict[str, str], **settings: object) -> None:
        """``commands_at``: name → ``module:attribute``."""
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order given."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        where = self._commands_at.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        return with_texts(cast("click.Command", command))

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; output that nobody reads any more (``| head``) ends it quietly."""
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whatever is still buffered must not fail again when the interpreter exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name when there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from kerolox.config import nearest

            best = nearest(args[0], self._commands_at)
            if best is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {best!r}?", ctx) from None


@click.group(
    cls=LazyGroup,
    commands_at={
        "up": "kerolox.cli.commands.serve:up",
        "namesrv": "kerolox.cli.commands.serve:namesrv",
        "broker": "kerolox.cli.commands.brokers.broker:broker",
        "cluster": "kerolox.cli.commands.cluster:cluster",
        "topic": "kerolox.cli.commands.topic:topic",
        "group": "kerolox.cli.commands.group:group",
        "message": "kerolox.cli.commands.messages.message:message",
        "dlq": "kerolox.cli.commands.messages.dlq:dlq",
        "send": "kerolox.cli.commands.messages.send:send",
        "request": "kerolox.cli.commands.messages.asking:request",
        "reply": "kerolox.cli.commands.messages.asking:reply",
        "tail": "kerolox.cli.commands.messages.tail:tail",
        "trace": "kerolox.cli.commands.messages.trace:trace",
        "bench": "kerolox.cli.commands.bench:bench",
        "doctor": "kerolox.cli.commands.doctor:doctor",
        "tune": "kerolox.cli.commands.tune:tune",
        "acl": "kerolox.cli.commands.acl:acl",
        "console": "kerolox.cli.commands.console:console",
        "config": "kerolox.cli.commands.config:config",
        "context": "kerolox.cli.commands.context:context",
        "completion": "kerolox.cli.commands.completion:completion",
        "store": "kerolox.cli.commands.store:store",
        "spark": "kerolox.cli.commands.spark:spark",
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="kerolox", prog_name="kerolox")
def cli() -> None:
    """A message broker compatible with RocketMQ 4.x, and the tools to use it."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_standard_files()
    try:
        status = cli.main(args=arguments, prog_name="kerolox", standalone_mode=False)
    except click.ClickException as error:
        show_usage_error(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except KeroloxError as error:
        _fail(error, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(error, f"{where}{error.strerror or error}")
    sys.exit(status if isinstance(status, int) else 0)


def _open_standard_files() -> None:
    """Open 0, 1 and 2 where they are closed: else a file of the store would get such a number, and
    whatever is printed would go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows escapes for what it has no letters for.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(error: Exception, text: str) -> NoReturn:
    with contextlib.suppress(OSError):
        complain_of(error, text)
    sys.exit(EXIT_ERROR)
