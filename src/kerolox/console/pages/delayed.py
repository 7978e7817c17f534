"""What waits for its moment: messages with a delay level, and those of the timer, which can be
taken back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from kerolox.admin.asking import answers_of
from kerolox.admin.messages.timed import STEP_MS, TIMED_READ_MAX
from kerolox.clock import now_ms
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.visit import Visit
from kerolox.errors import ClientError
from kerolox.protocol.recall_handles import RecallError, decode_handle

if TYPE_CHECKING:
    from kerolox.admin import DelayLevel, TimedMessage, TimedMessages
    from kerolox.errors import KeroloxError

__all__ = ["Slot", "delayed", "recall", "slots_of"]

SHOWN_MAX = 50
"""Messages of a level, and of the timers of all brokers."""
SLOTS_MAX = 20
TOPICS_MAX = 3
"""That are named of a slot."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The messages that come within one second."""

    until_ms: int
    """The end of it."""
    count: int
    topics: tuple[tuple[str, int], ...]
    """Those with the most messages, and how many each has."""
    more_topics: int
    """How many others there are."""


def slots_of(messages: Iterable[TimedMessage]) -> list[Slot]:
    """The next slots of messages, by time."""
    topics: dict[int, Counter[str]] = {}
    for each in messages:
        until_ms = -(-each.due_ms // STEP_MS) * STEP_MS
        topics.setdefault(until_ms, Counter())[each.topic] += 1
    return [
        Slot(
            until_ms,
            counts.total(),
            tuple(counts.most_common(TOPICS_MAX)),
            max(len(counts) - TOPICS_MAX, 0),
        )
        for until_ms, counts in sorted(topics.items())[:SLOTS_MAX]
    ]


async def delayed(visit: Visit) -> Response:
    """Levels with how many wait, and of one level the next messages; what waits in timers, by its
    moment."""
    found, failed, firsts = await visit.shared("delay levels", lambda: _levels(visit))
    timers, untold = await visit.shared("timed messages", lambda: _timers(visit))
    levels = [level for each in found.values() for level in each]
    broker, number = visit.asked("broker"), visit.number("level", 0)
    chosen = next((e for e in levels if (e.broker, e.number) == (broker, number)), None)
    messages = (
        [] if chosen is None else await visit.admin.delayed_messages(chosen, max_messages=SHOWN_MAX)
    )
    timed = sorted(
        (each for timer in timers.values() for each in timer.messages), key=lambda e: e.due_ms
    )
    waiting: Counter[str] = Counter()
    for timer in timers.values():
        waiting.update(timer.waiting)
    return visit.page(
        "delayed.html",
        levels=[level for level in levels if level.waiting],
        firsts=firsts,
        failed={**failed, **untold},
        chosen=chosen,
        messages=messages,
        have_timers=any(timer.has_timer for timer in timers.values()),
        timed=timed[:SHOWN_MAX],
        slots=slots_of(timed),
        waiting=waiting,
        unread=[name for name, timer in timers.items() if not timer.is_all],
        most=TIMED_READ_MAX,
        now_ms=now_ms(),
    )


async def recall(visit: Actor) -> ActionResult:
    """Take a message back: it does not come."""
    handle = visit.required("handle")
    try:
        wanted = decode_handle(handle)
    except RecallError as error:
        raise ClientError(str(error)) from None
    visit.target.pop("handle")
    visit.target.update(msgId=wanted.unique_key, topic=wanted.topic, brokerName=wanted.broker_name)
    key = await visit.admin.recall_message(handle)
    return ActionResult(
        f"Taken back: {key} will not come to {wanted.topic}.",
        visit.path("/delayed"),
        {"msgId": key, "topic": wanted.topic, "brokerName": wanted.broker_name},
        old="waiting",
        new="taken back",
    )


async def _levels(
    visit: Actor,
) -> tuple[
    Mapping[str, list[DelayLevel]],
    Mapping[str, KeroloxError],
    Mapping[tuple[str, int], int],
]:
    """The levels of each broker, why some are not known, and when the next message of each is
    due."""
    found, failed = await visit.console.cluster.ask_masters(visit.admin.delay_levels)
    waiting = [level for each in found.values() for level in each if level.waiting]
    firsts, _ = await answers_of(
        waiting, lambda level: visit.admin.delayed_messages(level, max_messages=1)
    )
    due = {
        (level.broker, level.number): messages[0].store_timestamp + level.delay_ms
        for level, messages in firsts.items()
        if messages and level.delay_ms
    }
    return found, failed, due


async def _timers(
    visit: Actor,
) -> tuple[Mapping[str, TimedMessages], Mapping[str, KeroloxError]]:
    return await visit.console.cluster.ask_masters(
        lambda address: visit.admin.timed_messages(address, max_messages=TIMED_READ_MAX)
    )
