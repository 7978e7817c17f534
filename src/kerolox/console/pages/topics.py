"""Topics: list, describe, send a test message, make, change, delete."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin import TopicConfig, is_internal_topic
from kerolox.admin.asking import answers_of
from kerolox.console.history.sampler import lag_series
from kerolox.console.pages.overview import HOURS, hours_of
from kerolox.console.rendering import slice_of
from kerolox.console.visit import ActionResult, Visit
from kerolox.errors import ClientError
from kerolox.message import Message
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_PUT_NUMS

__all__ = ["create", "delete", "described", "listed", "send", "update"]

QUEUES_MAX = 1_024
PERMISSIONS = {
    int(Perm.READ | Perm.WRITE): "read and write",
    int(Perm.READ): "read",
    int(Perm.WRITE): "write",
}
GROUPS_CHARTED_MAX = 6


async def listed(visit: Visit) -> Response:
    """All topics, page by page."""
    internal = visit.asked("all") == "1"
    wanted = visit.asked("q").lower()
    names = await visit.console.cluster.topics(internal=internal)
    found = [name for name in names if wanted in name.lower()]
    shown = slice_of(found, visit.number("page", 1, 1))
    settings = await visit.console.cluster.topic_settings()
    rows = [(name, settings.get(name, {})) for name in shown.items]
    return visit.page(
        "topics.html",
        rows=rows,
        shown=shown,
        q=visit.asked("q"),
        internal=internal,
        permissions=PERMISSIONS,
        clusters=sorted((await visit.console.cluster.info()).clusters),
    )


async def described(visit: Visit) -> Response:
    """One topic: queues with their offsets, groups with their lag."""
    name = visit.needed("name")
    found = await visit.admin.describe_topic(name)
    groups = [] if name.startswith((DLQ_PREFIX, RETRY_PREFIX)) else await _groups(visit, name)
    masters = await visit.console.cluster.masters()
    brokers = [each.broker_name for each in found.route.brokers]
    addresses = [masters[each] for each in brokers if each in masters]
    stats, _ = await answers_of(
        addresses, lambda a: visit.admin.broker_stats(a, TOPIC_PUT_NUMS, name)
    )
    return visit.page(
        "topic.html",
        topic=found,
        queues=slice_of(found.queues, visit.number("page", 1, 1)),
        messages=sum(each.max_offset - each.min_offset for each in found.queues),
        groups=groups,
        states=await visit.console.cluster.group_states(internal=True) if groups else {},
        rate=sum(each.minute.per_second for each in stats.values()),
        today=sum(each.day_total for each in stats.values()),
        permissions=PERMISSIONS,
        hours=hours_of(visit),
        hours_choices=HOURS,
        charted=[lag_series(group) for group, _ in groups[:GROUPS_CHARTED_MAX]],
        is_internal=is_internal_topic(name, await visit.console.cluster.info()),
    )


async def send(visit: Visit) -> ActionResult:
    """Send one message."""
    topic = visit.required("topic")
    try:
        lines = visit.body("properties").decode().split("\n")
        properties = dict(_pair(line) for line in lines if line.strip())
    except ValueError as error:
        raise ClientError(str(error)) from None
    message = Message(
        topic,
        visit.body(),
        tags=visit.given("tags"),
        keys=visit.given("keys"),
        properties=properties,
    )
    result = await visit.admin.send_message(message)
    queue = result.queue
    place = f"{queue.broker_name}/{queue.queue_id}"
    return ActionResult(
        f"Sent: {result.status.name} at offset {result.queue_offset} of {place}, "
        f"id {result.message_id}.",
        visit.path("/topic", name=topic),
        {"topic": topic, "queue": place, "offset": result.queue_offset},
        new=f"a message of {len(message.body)} bytes",
    )


async def create(visit: Visit) -> ActionResult:
    """Make a topic."""
    topic = visit.required("topic")
    queues = visit.given_number("queues", 1, QUEUES_MAX)
    perm = _perm(visit)
    done = await visit.admin.create_topic(
        topic, cluster=visit.given("cluster"), queues=queues, perm=perm
    )
    return ActionResult(
        f"Topic {topic} has {queues} queues on {', '.join(done)}.",
        visit.path("/topic", name=topic),
        {"topic": topic},
        new={"queues": queues, "perm": perm},
    )


async def update(visit: Visit) -> ActionResult:
    """Change queues or permission of a topic."""
    topic = visit.required("topic")
    queues = visit.given_number("queues", 1, QUEUES_MAX)
    changes = await visit.admin.update_topic(topic, queues=queues, perm=_perm(visit))
    return ActionResult(
        f"Topic {topic} is changed on {len(changes)} brokers.",
        visit.path("/topic", name=topic),
        {"topic": topic},
        old={each.address: _text(each.old) for each in changes},
        new={each.address: _text(each.new) for each in changes},
    )


async def delete(visit: Visit) -> ActionResult:
    """Delete a topic, whose name was typed once more."""
    topic = visit.required("topic")
    if visit.given("again") != topic:
        raise ClientError("type the topic's name once more to delete it; nothing was deleted")
    masters = await visit.console.cluster.masters()
    found, _ = await answers_of(
        masters.values(), lambda address: visit.admin.topic_settings(address, topic)
    )
    done = await visit.admin.delete_topic(topic)
    return ActionResult(
        f"Topic {topic} is deleted on {', '.join(done)}.",
        visit.path("/topics"),
        {"topic": topic},
        old={address: _text(each) for address, each in found.items() if each is not None},
    )


async def _groups(visit: Visit, topic: str) -> list[tuple[str, int | None]]:
    """Who consumes a topic, and how far behind they are; None: nobody knows."""
    names = await visit.admin.groups_of_topic(topic)
    found, _ = await answers_of(names, lambda group: visit.admin.group_progress(group, topic=topic))
    rows = [(name, max(found[name].lag, 0) if name in found else None) for name in names]
    return sorted(rows, key=lambda row: (-(row[1] or 0), row[0]))


def _perm(visit: Visit) -> int:
    perm = visit.given_number("perm", 2, 6)
    if perm not in PERMISSIONS:
        raise ClientError(f"'perm' is {perm}; 2 (write), 4 (read) and 6 (both) are there")
    return perm


def _text(settings: TopicConfig) -> str:
    return (
        f"{settings.read_queue_nums} read, {settings.write_queue_nums} write queues, "
        f"perm {settings.perm}"
    )


def _pair(line: str) -> tuple[str, str]:
    name, sign, value = line.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise ValueError("each line of the properties is name=value")
    return name.strip(), value
