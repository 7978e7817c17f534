"""Topics: list, describe, send a test message, make, change, delete."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.responses import Response

from kerolox.admin import ProducerInfo, TopicConfig, TopicDescription, TopicUsage, is_internal_topic
from kerolox.admin.asking import answers_of
from kerolox.admin.duplicates import TopicWindow, topic_windows
from kerolox.admin.retention import TopicRetention, topic_retentions
from kerolox.client.core.routes import MASTER_ID
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.gathered import PAINT_SECONDS
from kerolox.console.history.sampler import lag_series
from kerolox.console.listing import Value, order_of
from kerolox.console.pages.overview import HOURS, hours_of
from kerolox.console.rendering import slice_of
from kerolox.console.visit import Visit
from kerolox.errors import ClientError
from kerolox.message import Message
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from kerolox.text import counted

__all__ = ["create", "delete", "described", "examined", "listed", "send", "update"]

QUEUES_MAX = 1_024
PERMISSIONS = {
    int(Perm.READ | Perm.WRITE): "read and write",
    int(Perm.READ): "read",
    int(Perm.WRITE): "write",
}
GROUPS_CHARTED_MAX = 6
PRODUCERS_SHOWN_MAX = 50

COLUMNS = {
    "name": False,
    "messages": True,
    "size": True,
    "rate": True,
    "last": True,
    "lag": True,
    "queues": True,
}
"""Columns of the list → whether the largest comes first."""
USAGE_COLUMNS = frozenset(("messages", "size", "rate", "last"))
USAGE_SECONDS, USAGES_SECONDS = 10.0, 60.0
"""How old what topics hold may be: in the rows of a page, and where all are ordered by it."""


async def listed(visit: Visit) -> Response:
    """All topics, page by page. What they hold is shown as far as it is known by then."""
    internal = visit.asked("all") == "1"
    wanted = visit.asked("q").lower()
    cluster, usages = visit.console.cluster, visit.console.usages
    names = await cluster.topics(internal=internal)
    settings = await cluster.topic_settings()
    found = [name for name in names if wanted in name.lower()]
    order = order_of(visit, COLUMNS)
    sample = visit.console.sampler.known
    lags = sample.by_topic() if sample is not None else {}
    usages.keep_only(await cluster.topics(internal=True))
    # Who orders by what topics hold needs that of all.
    is_of_all = order.column in USAGE_COLUMNS
    # A page waits once: for what it is ordered by, where that is not known at all, else for its
    # rows. What is too old is good enough for the order.
    awaited = PAINT_SECONDS if is_of_all and len(usages.known(found)) < len(found) else 0.0
    of_all = (
        await usages.get(found, seconds_max=USAGES_SECONDS, wait_seconds=awaited)
        if is_of_all
        else {}
    )
    left = len(found) - len(of_all) if is_of_all else 0

    def value(name: str) -> Value:
        if order.column == "name":
            return name
        if order.column == "queues":
            return sum(each.write_queue_nums for each in settings.get(name, {}).values())
        if order.column == "lag":
            return lags[name].lag if name in lags else None
        usage = of_all.get(name)
        return _usage_value(usage, order.column) if isinstance(usage, TopicUsage) else None

    shown = slice_of(order.sorted(found, value), visit.number("page", 1, 1))
    usage = await usages.get(
        shown.items, seconds_max=USAGE_SECONDS, wait_seconds=PAINT_SECONDS - awaited
    )
    return visit.page(
        "topics.html",
        lags=lags,
        rows=[(name, settings.get(name, {}), usage.get(name)) for name in shown.items],
        unknown=left or any(name not in usage for name in shown.items),
        is_usage=lambda each: isinstance(each, TopicUsage),
        left=left,
        shown=shown,
        order=order,
        parameters={"q": visit.asked("q"), "all": "1" if internal else ""},
        q=visit.asked("q"),
        internal=internal,
        permissions=PERMISSIONS,
        clusters=sorted((await cluster.info()).clusters),
    )


def _usage_value(usage: TopicUsage, column: str) -> float | None:
    match column:
        case "messages":
            return usage.messages
        case "size":
            return usage.bytes_about
        case "rate":
            return usage.in_per_second
    return usage.last_stored_ms or None


async def described(visit: Visit) -> Response:
    """One topic: queues with their offsets, groups with their lag."""
    name = visit.needed("name")
    found = await visit.shared(("topic", name), lambda: examined(visit, name))
    groups = found.groups
    return visit.page(
        "topic.html",
        topic=found.topic,
        queues=slice_of(found.topic.queues, visit.number("page", 1, 1)),
        usage=found.usage,
        groups=groups,
        producers=found.producers,
        kept=found.kept,
        windows=found.windows,
        producers_max=PRODUCERS_SHOWN_MAX,
        states=await visit.console.cluster.group_states(internal=True) if groups else {},
        permissions=PERMISSIONS,
        hours=hours_of(visit),
        hours_choices=HOURS,
        charted=[lag_series(group) for group, _ in groups[:GROUPS_CHARTED_MAX]],
        is_internal=is_internal_topic(name, await visit.console.cluster.info()),
    )


class Examined(NamedTuple):
    """All that a page shows of a topic."""

    topic: TopicDescription
    usage: TopicUsage
    groups: list[tuple[str, int | None]]
    """Who consumes it, with the lag."""
    producers: list[ProducerInfo]
    """Those of its brokers."""
    attributes: dict[str, dict[str, str]]
    """By broker."""
    kept: list[TopicRetention]
    windows: list[TopicWindow]


async def examined(visit: Actor, name: str) -> Examined:
    """A topic with all that brokers say of it."""
    found = await visit.admin.describe_topic(name)
    masters = (each.addresses.get(MASTER_ID) for each in found.route.brokers)
    usage, groups, (told, _) = await asyncio.gather(
        visit.admin.topic_usage(name, described=found),
        _groups(visit, name),
        answers_of((address for address in masters if address), visit.admin.all_producers),
    )
    # A producer is known to each broker that it sends to.
    producers = {(each.group, each.client_id): each for some in told.values() for each in some}
    attributes = await visit.admin.topic_attributes(name)
    kept = await topic_retentions(visit.admin, found, attributes)
    windows = await topic_windows(visit.admin, found.route, name, attributes)
    return Examined(found, usage, groups, sorted(producers.values()), attributes, kept, windows)


async def send(visit: Actor) -> ActionResult:
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


async def create(visit: Actor) -> ActionResult:
    """Make a topic."""
    topic = visit.required("topic")
    queues = visit.given_number("queues", 1, QUEUES_MAX)
    perm = _perm(visit)
    done = await visit.admin.create_topic(
        topic, cluster=visit.given("cluster"), queues=queues, perm=perm
    )
    return ActionResult(
        f"Topic {topic} has {counted(queues, 'queue')} on {', '.join(done)}.",
        visit.path("/topic", name=topic),
        {"topic": topic},
        new={"queues": queues, "perm": perm},
    )


async def update(visit: Actor) -> ActionResult:
    """Change queues or permission of a topic."""
    topic = visit.required("topic")
    queues = visit.given_number("queues", 1, QUEUES_MAX)
    changes = await visit.admin.update_topic(topic, queues=queues, perm=_perm(visit))
    return ActionResult(
        f"Topic {topic} is changed on {counted(len(changes), 'broker')}.",
        visit.path("/topic", name=topic),
        {"topic": topic},
        old={each.address: _text(each.old) for each in changes},
        new={each.address: _text(each.new) for each in changes},
    )


async def delete(visit: Actor) -> ActionResult:
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


async def _groups(visit: Actor, topic: str) -> list[tuple[str, int | None]]:
    """Who consumes a topic, and how far behind they are; None: nobody knows. Retries and dead
    letters are of one group."""
    if topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        return []
    names = await visit.admin.groups_of_topic(topic)
    found, _ = await answers_of(names, lambda group: visit.admin.group_progress(group, topic=topic))
    rows = [(name, max(found[name].lag, 0) if name in found else None) for name in names]
    return sorted(rows, key=lambda row: (-(row[1] or 0), row[0]))


def _perm(visit: Actor) -> int:
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
