"""Messages that a group has out, popped and not acknowledged: who has them, and their release."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin import PoppedMessages
from kerolox.clock import now_ms
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.visit import Visit
from kerolox.errors import KeroloxError
from kerolox.text import counted

__all__ = ["held", "plan", "release"]

SHOWN_MAX = 50
MINUTES_MAX = 3 * 24 * 60
"""An invisible time is not longer."""


async def held(visit: Actor, name: str) -> PoppedMessages | None:
    """What a group has out, and of whom; None: its brokers do not tell."""
    try:
        return await visit.admin.popped_messages(name, max_messages=SHOWN_MAX)
    except KeroloxError:
        return None  # RocketMQ's; the group's progress says how many


async def plan(visit: Visit) -> Response:
    """What a release would do; nothing is changed."""
    name = visit.needed("name")
    await visit.console.cluster.check_group(name)
    topic, owner = visit.asked("topic"), visit.asked("owner")
    minutes = visit.number("minutes", 0, 0, MINUTES_MAX)
    # Before it is asked: what is popped while it is answered stays out.
    at = now_ms()
    found = await _popped(visit, name, topic, owner, minutes * 60_000)
    return visit.page(
        "release.html",
        name=name,
        topic=topic,
        owner=owner,
        minutes=minutes,
        found=found,
        at=at,
    )


async def release(visit: Actor) -> ActionResult:
    """Let the messages of a plan come again, and none that were popped after it."""
    name = visit.required("name")
    await visit.console.cluster.check_group(name)
    topic, owner = visit.given("topic"), visit.given("owner")
    minutes = visit.given_number("minutes", 0, MINUTES_MAX)
    since_plan_ms = max(0, now_ms() - visit.given_number("at", 0, now_ms()))
    found = await _popped(visit, name, topic, owner, minutes * 60_000 + since_plan_ms)
    done = await visit.admin.release_popped(found)
    return ActionResult(
        f"{counted(done.messages, 'message')} of group {name} come again.",
        visit.path("/group", name=name),
        {"group": name, "topic": topic, "owner": owner, "minutes": minutes},
        old=f"{counted(found.messages, 'message')} out",
        new=f"{done.messages} released",
    )


async def _popped(visit: Actor, name: str, topic: str, owner: str, held_ms: int) -> PoppedMessages:
    return await visit.admin.popped_messages(
        name, topic=topic, owner=owner, held_ms=held_ms, max_messages=SHOWN_MAX
    )
