"""Messages: browse, find, show, follow, send again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.responses import Response

from kerolox.admin import Position, PositionKind
from kerolox.admin.asking import answers_of
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.rendering import VIEWS, fits_a_form, shown_body, typed_body
from kerolox.console.scan import Scan, position_in, queue_of, scan, wanted_of
from kerolox.console.visit import Visit
from kerolox.errors import ClientError, KeroloxError, NotFoundError
from kerolox.message import MessageExt, MessageId, MessageQueue, PropertyKey
from kerolox.protocol.names import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC

__all__ = [
    *("browse", "described", "download", "found_of", "is_place", "message_of", "names_a_broker"),
    *("resend", "tail"),
]

START, STOP = "-20", "end"
TAIL_QUEUES_MAX = 64
TAIL_MESSAGES_MAX = 100
"""Of one check of all queues; the next check has those that were left."""
READABLE_SECONDS_MAX, READABLE_STEP_SECONDS = 3.0, 0.02
"""For how long, and how often, a message that was sent again is looked for."""


async def browse(visit: Visit) -> Response:
    """A form, and the messages that it asks for."""
    topic = visit.asked("topic")
    names = ("queue", "from", "until", "tags", "sql", "text", "id", "key")
    asked = {name: visit.asked(name) for name in names}
    found = await found_of(visit, topic, asked) if topic else None
    return visit.page(
        "messages.html",
        topic=topic,
        asked=asked,
        found=found,
        topics=await visit.console.cluster.topics(internal=True) if not topic else [],
        start=START,
        stop=STOP,
    )


async def described(visit: Visit) -> Response:
    """One message, by its place or its id."""
    message = await message_of(visit, visit.asked)
    schemas = visit.console.schemas
    schema = schemas.of(message)
    views = VIEWS if schema is None else (*VIEWS, schema.format)
    view = visit.asked("view") if visit.asked("view") in views else VIEWS[0]
    taken, body, no_schema = shown_body(message, view, schemas)
    tracks = await visit.admin.message_tracks(message) if visit.asked("tracks") else None
    first, end = await _bounds(visit, message)
    kept_back = message.topic in (SCHEDULE_TOPIC, HALF_TOPIC)
    return visit.page(
        "message.html",
        message=message,
        view=taken,
        views=views[1:],
        no_schema=no_schema,
        body=body,
        previous=message.queue_offset - 1 if message.queue_offset > first else None,
        next=message.queue_offset + 1 if message.queue_offset + 1 < end else None,
        is_text=fits_a_form(message.body),
        tracks=tracks,
        origin=message.properties.get(PropertyKey.RETRY_TOPIC) or message.topic,
        becomes=message.properties.get(PropertyKey.REAL_TOPIC, "") if kept_back else "",
        dead_letter_of=message.topic.removeprefix(DLQ_PREFIX)
        if message.topic.startswith(DLQ_PREFIX)
        else "",
    )


async def download(visit: Visit) -> Response:
    """The body of one message, as it is stored."""
    message = await message_of(visit, visit.asked)
    name = f"message-{message.queue_id}-{message.queue_offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(message.body, 200, headers, "application/octet-stream")


async def _bounds(visit: Actor, message: MessageExt) -> tuple[int, int]:
    """The first offset of the message's queue, and that behind the last; the message's own where
    the broker does not say."""
    offset = message.queue_offset
    if not message.broker_name:
        return offset, offset
    try:
        first, end = await asyncio.gather(
            visit.admin.min_offset(message.queue), visit.admin.max_offset(message.queue)
        )
    except KeroloxError:
        return offset, offset
    return first, end


async def resend(visit: Actor) -> ActionResult:
    """Send a copy of a message to its topic, or to another."""
    message = await message_of(visit, visit.given)
    body = typed_body(visit.body(), message.body) if visit.given("edited") == "1" else None
    topic = visit.given("to") or message.topic
    visit.target.update(topic=topic, msgId=message.message_id)
    result = await visit.admin.send_copy(message, topic=topic, body=body)
    await _until_readable(visit, result.queue, result.queue_offset)
    place = f"{result.queue.broker_name}/{result.queue.queue_id}"
    return ActionResult(
        f"Sent again: {result.status.name} at offset {result.queue_offset} of {place}.",
        visit.path(
            "/message",
            topic=topic,
            queue=place,
            offset=str(result.queue_offset),
        ),
        {**visit.target, "queue": place, "offset": result.queue_offset},
        old=message.message_id,
        new=result.message_id,
    )


async def tail(visit: Visit) -> Response:
    """What came to a topic since the last check: a page first, then parts of it."""
    topic = visit.needed("topic")
    cursor = visit.request.query_params.get("cursor", "")
    if not cursor:
        begin = await _ends(visit, topic)
        return visit.page("tail.html", topic=topic, cursor=_cursor_text(begin), messages=[])
    places = _cursor(topic, cursor)
    left = max(TAIL_MESSAGES_MAX // max(len(places), 1), 1)
    messages: list[MessageExt] = []

    async def query(queue: MessageQueue) -> int:
        offset = places[queue]
        async for message in visit.admin.read_messages(
            topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            start=Position(PositionKind.OFFSET, offset),
            max_messages=left,
        ):
            messages.append(message)
            offset = message.queue_offset + 1
        return offset

    found, _ = await answers_of(places, query)
    messages.sort(key=lambda m: (m.store_timestamp, m.queue_offset), reverse=True)
    return visit.page(
        "tail_part.html",
        topic=topic,
        cursor=_cursor_text(places | found),
        messages=messages,
    )


async def found_of(visit: Actor, topic: str, asked: dict[str, str]) -> Scan:
    """What a form asks for: by ``id``, by ``key``, or by place and expressions."""
    admin = visit.admin
    if asked["id"]:
        return Scan([await _by_id(visit, topic, asked["id"])], 1)
    if asked["key"]:
        messages = await admin.messages_by_key(topic, asked["key"])
        return Scan(messages[::-1], len(messages))
    wanted = wanted_of(
        topic,
        asked["queue"],
        position_in(asked["from"] or START, visit.zone),
        position_in(asked["until"] or STOP, visit.zone),
        tags=asked["tags"],
        sql=asked["sql"],
        text=asked["text"],
    )
    return await scan(admin, wanted)


async def _until_readable(visit: Actor, queue: MessageQueue, offset: int) -> None:
    """Wait for a message that was stored: a Java broker puts it into its queue a little later, and
    the page that comes next shows it. Where it can't be read it is sent all the same."""
    with contextlib.suppress(TimeoutError, KeroloxError):
        async with asyncio.timeout(READABLE_SECONDS_MAX):
            while True:
                try:
                    await visit.admin.message_at(queue, offset)
                    return
                except NotFoundError:
                    await asyncio.sleep(READABLE_STEP_SECONDS)


async def message_of(visit: Actor, value: Callable[[str], str]) -> MessageExt:
    """The message that parameters, or the fields of a form, name."""
    topic, queue, offset, key = (value(name) for name in ("topic", "queue", "offset", "id"))
    if not topic:
        raise ClientError("name the message's topic")
    if key:
        return await _by_id(visit, topic, key)
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise ClientError("name a message by its id, or by its queue and offset")
    return await visit.admin.message_at(queue_of(topic, queue), int(offset))


async def _by_id(visit: Actor, topic: str, key: str) -> MessageExt:
    """By a producer's id, or by a broker's, if that broker is one of the cluster's."""
    if is_place(key) and not await names_a_broker(visit, key):
        found = await visit.admin.messages_by_unique_key(topic, key)
        if not found:
            raise NotFoundError(f"topic {topic!r} has no message with id {key!r}")
        return found[0]
    return await visit.admin.message_by_id(key, topic=topic)


def is_place(key: str) -> bool:
    """Whether an id can be one of a broker's, which names the place of a message."""
    try:
        MessageId.parse(key)
    except ValueError:
        return False
    return True


async def names_a_broker(visit: Actor, key: str) -> bool:
    """Whether the broker that such an id names is one of the cluster's. Else the console would
    connect to wherever somebody likes."""
    located = MessageId.parse(key)
    return f"{located.host}:{located.port}" in await visit.console.cluster.broker_addresses()


async def _ends(visit: Visit, topic: str) -> dict[MessageQueue, int]:
    queues = (await visit.admin.describe_topic(topic)).queues
    if len(queues) > TAIL_QUEUES_MAX:
        raise ClientError(
            f"topic {topic!r} has {len(queues)} queues; up to {TAIL_QUEUES_MAX} can be followed "
            "here. 'kerolox tail' follows all"
        )
    return {each.queue: each.max_offset for each in queues}


def _cursor_text(places: dict[MessageQueue, int]) -> str:
    return " ".join(f"{q.broker_name}/{q.queue_id}:{offset}" for q, offset in places.items())


def _cursor(topic: str, text: str) -> dict[MessageQueue, int]:
    places = {}
    for each in text[: TAIL_QUEUES_MAX * 200].split(" ")[:TAIL_QUEUES_MAX]:
        queue, _, offset = each.rpartition(":")
        if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
            raise ClientError("the place to go on is none; load the page again")
        places[queue_of(topic, queue)] = int(offset)
    return places
