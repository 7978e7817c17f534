"""The command line's entry: finds the subcommand, turns errors into one line and an exit code.

Exit codes: 0 done, 1 an error of ours, the peer's or the settings', 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from kerolox.cli.grouping import COMPLETION_VARIABLE, Entry, LazyGroup
from kerolox.cli.output import complain_of, print_line, show_usage_error
from kerolox.errors import KeroloxError
from kerolox.release import __version__

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

_COMMANDS = "kerolox.cli.commands"

SUBJECTS = {
    "Servers": {
        "up": Entry(
            f"{_COMMANDS}.serve:up",
            "Run a name server and a broker in one process.",
        ),
        "namesrv": Entry(
            f"{_COMMANDS}.serve:namesrv",
            "Run a name server, on all addresses of this machine unless --host says otherwise.",
        ),
        "broker": Entry(
            f"{_COMMANDS}.brokers.broker:broker",
            "Run a broker, or examine and change those of a cluster.",
        ),
        "controller": Entry(
            f"{_COMMANDS}.controllers:controller",
            "Run a controller, or examine and change those of a group.",
        ),
        "console": Entry(
            f"{_COMMANDS}.console:console",
            "Serve pages about a cluster, Kerolox's or Java's, to people in browsers.",
        ),
        "mcp": Entry(
            f"{_COMMANDS}.mcp:mcp",
            "Serve tools about a cluster to an agent, by the Model Context Protocol over stdio.",
        ),
    },
    "Messages": {
        "send": Entry(
            f"{_COMMANDS}.messages.send:send",
            "Send BODY, or stdin when there is none, to TOPIC.",
        ),
        "tail": Entry(
            f"{_COMMANDS}.messages.tail:tail",
            "Follow TOPIC and print its messages until interrupted.",
        ),
        "request": Entry(
            f"{_COMMANDS}.messages.asking:request",
            "Send BODY, or stdin when there is none, to TOPIC, and print the reply.",
        ),
        "reply": Entry(
            f"{_COMMANDS}.messages.asking:reply",
            "Answer requests that come to TOPIC: with BODY, or with what COMMAND prints.",
        ),
        "message": Entry(
            f"{_COMMANDS}.messages.message:message",
            "Find, show and resend single messages.",
        ),
        "dlq": Entry(
            f"{_COMMANDS}.messages.dlq:dlq",
            "Examine dead letters, the messages that a group gave up, and resend them.",
        ),
        "trace": Entry(
            f"{_COMMANDS}.messages.trace:trace",
            "Print when the message with the producer's id MESSAGE_ID was sent, stored and"
            " consumed.",
        ),
    },
    "Clusters": {
        "cluster": Entry(f"{_COMMANDS}.cluster:cluster", "Examine clusters."),
        "topic": Entry(
            f"{_COMMANDS}.topic:topic", "List, describe, create, change and delete topics."
        ),
        "group": Entry(
            f"{_COMMANDS}.group:group", "List, describe, change and reset consumer groups."
        ),
        "stats": Entry(
            f"{_COMMANDS}.traffic:stats",
            "Print how much goes into topics, and out to each of their groups.",
        ),
        "producers": Entry(
            f"{_COMMANDS}.traffic:producers",
            "Print the producers that brokers know: group, client, address, last heartbeat.",
        ),
        "acl": Entry(
            f"{_COMMANDS}.acl:acl",
            "Examine and change accounts and white lists of brokers (plain_acl.yml).",
        ),
        "name-server": Entry(
            f"{_COMMANDS}.name_server:name_server",
            "Read, set and delete the key-values of name servers.",
        ),
        "export": Entry(
            f"{_COMMANDS}.export:export",
            "Write topics and groups, settings or metrics of a cluster as JSON.",
        ),
        "doctor": Entry(
            f"{_COMMANDS}.doctor:doctor",
            "Diagnose a cluster along the path that a client takes: what is wrong, and what to do.",
        ),
        "bench": Entry(f"{_COMMANDS}.bench:bench", "Measure a cluster with a load of your own."),
    },
    "This machine": {
        "context": Entry(
            f"{_COMMANDS}.context:context", "Name clusters, so that commands need no addresses."
        ),
        "config": Entry(f"{_COMMANDS}.config:config", "Check files of settings."),
        "store": Entry(
            f"{_COMMANDS}.store:store",
            "Check, print, describe, copy and repair the files of a store.",
        ),
        "tune": Entry(
            f"{_COMMANDS}.tune:tune",
            "Compare the limits of this machine with those that a broker wants.",
        ),
        "spark": Entry(
            f"{_COMMANDS}.spark:spark", "Run a job on Spark: archive topics, replay messages."
        ),
        "completion": Entry(
            f"{_COMMANDS}.completion:completion",
            "Print a script that completes commands, options and values in SHELL.",
        ),
    },
}
"""Heading → name → command, as ``kerolox --help`` shows them."""

FIRST_STEPS = (
    ("kerolox up", "runs a name server and a broker here"),
    ("kerolox send Orders hello", "sends a message, from another terminal"),
    ("kerolox tail Orders --from beginning", "prints what is there and what comes"),
)


class _Kerolox(LazyGroup):
    """``kerolox`` itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Alone on a terminal it says what one does first."""
        if not args and not ctx.resilient_parsing and sys.stdout.isatty():
            _print_first_steps()
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The connection options, which all commands have that ask a cluster."""
        from kerolox.cli.cluster_options import CONNECTION_OPTIONS

        described = [each.described(ctx) for each in CONNECTION_OPTIONS]
        with formatter.section("Connection, of every command that asks a cluster"):
            formatter.write_dl([each for each in described if each is not None])

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


def _print_first_steps() -> None:
    width = max(len(command) for command, _ in FIRST_STEPS)
    print_line(f"Kerolox {__version__}, a message broker compatible with RocketMQ 4.x")
    print_line("")
    for command, text in FIRST_STEPS:
        print_line(f"  {command:{width}}  {text}")
    print_line("")
    print_line("kerolox --help lists all commands.")


@click.group(
    cls=_Kerolox,
    subjects=SUBJECTS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kerolox")
def cli() -> None:
    """A message broker compatible with RocketMQ 4.x, and the tools to use it."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_standard_files()
    # Imports make nothing that a collection could free; the command that is found ends this.
    gc.disable()
    try:
        _run(arguments)
    finally:
        # The collections at the end of an interpreter would go through all that was imported.
        gc.freeze()
        gc.enable()


def _run(arguments: Sequence[str] | None) -> NoReturn:
    if COMPLETION_VARIABLE in os.environ:
        from kerolox.cli.shells import add_shells

        add_shells()
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
