"""Resetting the offsets of a group: in one topic, or in all that it consumes; planned first."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from kerolox.admin import OffsetMove, Position, PositionKind
from kerolox.admin.asking import answers_of
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.scan import position_in, queue_of
from kerolox.console.visit import Visit
from kerolox.errors import ClientError, KeroloxError
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.text import counted

__all__ = ["ALL_TOPICS", "plan", "reset"]

ALL_TOPICS = "*"
"""Instead of a topic's name, which has no such character: all that the group has consumed."""
TOPICS_AT_ONCE_MAX = 4
"""Topics that are planned, or moved, at the same time; each asks about all of its queues."""


@dataclass(frozen=True, slots=True)
class _Moves:
    """What is done, or would be, in each topic."""

    by_topic: dict[str, list[OffsetMove]]
    failed: dict[str, KeroloxError]

    @property
    def all(self) -> list[OffsetMove]:
        return [each for moves in self.by_topic.values() for each in moves]

    @property
    def again(self) -> int:
        return sum(each.again for each in self.all)

    @property
    def skipped(self) -> int:
        return sum(each.skipped for each in self.all)


async def plan(visit: Visit) -> Response:
    """What moving a group would do; nothing is changed."""
    name, topic, to = visit.needed("name"), visit.needed("topic"), visit.needed("to")
    position = position_in(to, visit.zone)
    queues = visit.request.query_params.getlist("queue")
    moves = await _moves(visit, name, topic, position, queues, dry_run=True)
    # What is done is what is shown: "2h" is a time by then.
    fixed = str(position.number) if position.kind is PositionKind.TIME else to
    return visit.page(
        "reset.html",
        name=name,
        topic=topic,
        is_all=topic == ALL_TOPICS,
        to=to,
        fixed=fixed,
        moves=moves,
    )


async def reset(visit: Actor) -> ActionResult:
    """Move a group to the offsets of a plan."""
    name, topic, to = visit.required("name"), visit.required("topic"), visit.required("to")
    position = position_in(to, visit.zone)
    queues = visit.form.get("queue", [])
    done = await _moves(visit, name, topic, position, queues, dry_run=False)
    of = topic if topic != ALL_TOPICS else counted(len(done.by_topic), "topic")
    text = (
        f"Group {name} goes on at {to} in {counted(len(done.all), 'queue')} of {of}: "
        f"{counted(done.again, 'message')} {'comes' if done.again == 1 else 'come'} again, "
        f"{done.skipped} {'is' if done.skipped == 1 else 'are'} skipped."
    )
    for failed, error in done.failed.items():
        text += f" Not in {failed}: {error}."
    return ActionResult(
        text,
        visit.path("/group", name=name),
        {
            "group": name,
            "topic": topic,
            "to": to,
            **({"failed": {t: str(e) for t, e in done.failed.items()}} if done.failed else {}),
        },
        old={_place(each, topic): each.old for each in done.all},
        new={_place(each, topic): each.new for each in done.all},
    )


async def _moves(
    visit: Actor, name: str, topic: str, position: Position, queues: list[str], *, dry_run: bool
) -> _Moves:
    """Raises KeroloxError where nothing can be done in the topic, or in any of them."""
    await visit.console.cluster.check_group(name)
    if topic != ALL_TOPICS:
        moves = await visit.admin.move_offsets(
            name,
            topic,
            position,
            queues=[queue_of(topic, text) for text in queues],
            dry_run=dry_run,
        )
        return _Moves({topic: moves}, {})
    if position.kind is PositionKind.OFFSET:
        raise ClientError("an offset is one of a topic: choose the topic, or another place")
    progress = await visit.admin.group_progress(name)
    topics = sorted({each.queue.topic for each in progress.queues} - {f"{RETRY_PREFIX}{name}"})
    found, failed = await answers_of(
        topics,
        lambda each: visit.admin.move_offsets(name, each, position, dry_run=dry_run),
        at_once_max=TOPICS_AT_ONCE_MAX,
    )
    if not found:
        reasons = "; ".join(f"{each}: {error}" for each, error in failed.items())
        raise ClientError(
            f"group {name!r} can be moved in none of its topics. {reasons}".rstrip(". ")
        )
    return _Moves(found, failed)


def _place(move: OffsetMove, topic: str) -> str:
    place = f"{move.queue.broker_name}/{move.queue.queue_id}"
    return f"{move.queue.topic} {place}" if topic == ALL_TOPICS else place
