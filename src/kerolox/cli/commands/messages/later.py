"""``--delay`` and ``--at`` of ``kerolox send``: exact with brokers that have a timer (Kerolox's and
those of RocketMQ 5), a delay level with others."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from kerolox.cli.connecting import on_cluster
from kerolox.cli.output import complain
from kerolox.cli.values import DurationType
from kerolox.clock import now_ms
from kerolox.errors import KeroloxError
from kerolox.text import duration_text, time_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.admin import Admin
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.message import Message


class _Moment(click.ParamType[int]):
    """``2026-01-31T12:00``, or milliseconds since the epoch; the latter."""

    name = "time"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See :func:`milliseconds_of`."""
        from kerolox.text import milliseconds_of

        if isinstance(value, int):
            return value
        try:
            moment = milliseconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if moment <= now_ms():
            self.fail(f"{time_text(moment)} is over; without --at it is sent now", param, ctx)
        return moment


def later_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--delay`` and ``--at``."""
    command = click.option(
        "--at",
        type=_Moment(),
        metavar="TIME",
        help="Deliver at this moment, as 2026-01-31T12:00.",
    )(command)
    return click.option(
        "--delay",
        type=DurationType(),
        metavar="DURATION",
        help="Deliver so much later, as 30s or 1h; rounded up to a delay level by RocketMQ 4.",
    )(command)


class Later(NamedTuple):
    """When each message of a send comes: after a time, at a moment, or by a delay level."""

    after_ms: int = 0
    """From its send on; with a level the level's."""
    at_ms: int | None = None
    """Instead of it."""
    level: int = 0
    """0: the brokers have a timer."""

    def ways(self) -> dict[str, timedelta | datetime]:
        """What ``Producer.send`` is told."""
        if self.level:
            return {}
        if self.at_ms is not None:
            return {"deliver_at": datetime.fromtimestamp(self.at_ms / 1_000, UTC)}
        return {"deliver_after": timedelta(milliseconds=self.after_ms)}

    def message(self, message: Message) -> Message:
        """The message as it is sent."""
        return dataclasses.replace(message, delay_level=self.level) if self.level else message

    def due_ms(self, sent_ms: int) -> int:
        """When a message is due that is sent then."""
        return sent_ms + self.after_ms if self.at_ms is None else self.at_ms

    def text(self, sent_ms: int) -> str:
        """The same for people."""
        due_ms = self.due_ms(sent_ms)
        how = f", level {self.level}" if self.level else ""
        return f"due {time_text(due_ms)} (in {duration_text(max(due_ms - sent_ms, 0))}{how})"

    def row(self, sent_ms: int) -> dict[str, object]:
        """The same for programs."""
        due_ms = self.due_ms(sent_ms)
        level = {"delayLevel": self.level} if self.level else {}
        return {**level, "delayMs": due_ms - sent_ms, "dueTimestamp": due_ms}


def later_of(
    delay: float | None, at_ms: int | None, settings: ProducerSettings, name_server: str
) -> tuple[Later | None, ProducerSettings]:
    """When messages come, None: at once, and the settings of a producer that sends them so.
    UsageError: both are given. BadParameter: brokers without a timer have no level as long.
    """
    if delay is not None and at_ms is not None:
        raise click.UsageError("Give one of --delay and --at.")
    after_ms = round((delay or 0.0) * 1_000)
    if not after_ms and at_ms is None:
        return None, settings
    have_timers, levels_ms = on_cluster(name_server, _brokers)
    if have_timers:
        return Later(after_ms, at_ms), settings
    levels_ms = levels_ms or settings.delays_ms
    most = max(settings.delay_level_max, len(levels_ms))
    wanted_ms = after_ms if at_ms is None else max(at_ms - now_ms(), 1)
    later = _level_of(wanted_ms, levels_ms, "--delay" if at_ms is None else "--at")
    return later, dataclasses.replace(settings, delay_level_max=most)


def _level_of(wanted_ms: int, levels_ms: tuple[int, ...], option: str) -> Later:
    """The shortest level that is no shorter. It is said where it is longer."""
    fitting = [ms for ms in levels_ms if ms >= wanted_ms]
    if not fitting:
        raise click.BadParameter(
            f"{duration_text(wanted_ms)} is longer than the longest delay of the brokers, "
            f"{duration_text(max(levels_ms))} (messageDelayLevel)",
            param_hint=option,
        )
    found = Later(min(fitting), level=levels_ms.index(min(fitting)) + 1)
    if found.after_ms != wanted_ms:
        complain(
            f"kerolox: {duration_text(wanted_ms)} becomes {duration_text(found.after_ms)}, the "
            f"next delay of the brokers (level {found.level})"
        )
    return found


async def _brokers(admin: Admin) -> tuple[bool, tuple[int, ...]]:
    """Whether all masters have a timer, and the delays of their levels: nothing where they differ,
    or do not report."""
    from kerolox.admin.asking import all_answers, targets
    from kerolox.kernel.delay_levels import delay_levels_ms

    try:
        found = await all_answers(
            await targets(admin), lambda address: admin.broker_settings(address)
        )
        texts = {settings.get("messageDelayLevel", "") for settings in found.values()}
        timers = [settings.get("timerWheelEnable") == "true" for settings in found.values()]
        have_timers = bool(timers) and all(timers)
        return have_timers, delay_levels_ms(texts.pop()) if len(texts) == 1 else ()
    except KeroloxError:
        return False, ()
