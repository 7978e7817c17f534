"""Queues and positions in them as options: ``--queue``, ``--from``, ``--until``, ``--to``."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from kerolox.admin.positions import FIRST, LAST, Position, position_of
from kerolox.cli import completing
from kerolox.message import MessageQueue
from kerolox.text import printable


class PositionType(click.ParamType[Position]):
    """A :class:`Position` of the command line."""

    name = "position"

    def convert(
        self, value: str | Position, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """See :func:`position_of`."""
        if isinstance(value, Position):
            return value
        try:
            return position_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """One of each kind."""
        return completing.positions(ctx, param, incomplete)


POSITION_HELP = "beginning, end, -100 (messages before the end), 2h (ago), a time, or an offset"


def from_option(
    default: Position,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """``--from``, the argument ``start``."""
    return click.option(
        "--from",
        "start",
        type=PositionType(),
        default=default,
        metavar="POSITION",
        help=f"Where to begin: {POSITION_HELP}; default: {default.kind.value}.",
    )


def range_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--from`` and ``--until``, the arguments ``start`` and ``stop``: all that is there."""
    command = click.option(
        "--until",
        "stop",
        type=PositionType(),
        default=LAST,
        metavar="POSITION",
        help="As --from; default: end.",
    )(command)
    return from_option(FIRST)(command)


def queue_of(topic: str, text: str) -> MessageQueue:
    """A queue of a topic, written ``broker-a/0``; BadParameter: it is written otherwise."""
    broker, slash, number = text.rpartition("/")
    if not slash or not broker or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise click.BadParameter(
            f"{printable(text)!r} is no queue; write it as broker-a/0", param_hint="BROKER/ID"
        )
    return MessageQueue(topic, broker, int(number))
