"""Dead letters: whose, which, given to their group again one by one or chosen, exported."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from kerolox.admin import dead_letters, describe_topic, message_at, resend_dead_letter
from kerolox.admin.asking import answers_of
from kerolox.console.rendering import preview_text
from kerolox.console.scan import position_in, queue_of, scan, wanted_of
from kerolox.console.visit import Done, Visit
from kerolox.errors import ClientError, KeroloxError, TopicRouteNotFoundError
from kerolox.message import MessageExt
from kerolox.protocol.names import DLQ_PREFIX

__all__ = ["browse", "export", "listed", "resend"]

RESENT_AT_ONCE_MAX = 50
EXPORTED_MAX = 10_000
EXPORTED_BYTES_MAX = 256 * 1024 * 1024


async def listed(visit: Visit) -> Response:
    """Groups that have some."""
    topics = await visit.console.cluster.topics(internal=True)
    names = [name for name in topics if name.startswith(DLQ_PREFIX)]
    found, _ = await answers_of(names, lambda name: describe_topic(visit.admin.access, name))
    rows = [
        (
            topic.removeprefix(DLQ_PREFIX),
            sum(each.max_offset - each.min_offset for each in described.queues),
            max((each.last_update_timestamp for each in described.queues), default=0),
        )
        for topic, described in found.items()
    ]
    return visit.page("dead_letters.html", rows=sorted(rows, key=lambda row: -row[1]))


async def browse(visit: Visit) -> Response:
    """Those of one group."""
    group = visit.needed("group")
    asked = {name: visit.asked(name) for name in ("from", "until", "text", "sql")}
    wanted = wanted_of(
        DLQ_PREFIX + group,
        "",
        position_in(asked["from"] or "beginning"),
        position_in(asked["until"] or "end"),
        tags="",
        sql=asked["sql"],
        text=asked["text"],
    )
    try:
        found = await scan(visit.admin.access, wanted)
    except TopicRouteNotFoundError:
        raise ClientError(f"group {group!r} has no dead letters") from None
    return visit.page(
        "dead_letter.html",
        group=group,
        asked=asked,
        found=found,
        preview=preview_text,
        most=RESENT_AT_ONCE_MAX,
    )


async def resend(visit: Visit) -> Done:
    """Give chosen ones to their group again; each stays, and each has a result."""
    group = visit.required("group")
    places = visit.form.get("place", [])
    if not places:
        raise ClientError("choose at least one dead letter")
    if len(places) > RESENT_AT_ONCE_MAX:
        raise ClientError(f"choose {RESENT_AT_ONCE_MAX} dead letters at most")
    body = None
    if visit.given("edited") == "1":
        body = visit.given("body", characters_max=1 << 20).replace("\r\n", "\n").encode()
    assert visit.session is not None
    results: dict[str, str] = {}
    for place in dict.fromkeys(places):
        results[place] = await _resent(visit, group, place, body)
        # Also when a later one takes too long, what is done is told.
        visit.target["results"] = results
    failed = [place for place, result in results.items() if not result.startswith("sent")]
    for place, result in results.items():
        visit.session.note(f"{place}: {result}")
    return Done(
        f"{len(results) - len(failed)} of {len(results)} dead letters were sent again.",
        visit.path("/dead-letter", group=group),
        {"group": group, "edited": body is not None},
        new=results,
    )


async def export(visit: Visit) -> Response:
    """All of a group as JSON, a line each."""
    group = visit.needed("group")
    headers = {"content-disposition": 'attachment; filename="dead-letters.ndjson"'}
    return StreamingResponse(_lines(visit, group), 200, headers, "application/x-ndjson")


async def _lines(visit: Visit, group: str) -> AsyncIterator[bytes]:
    left = EXPORTED_BYTES_MAX
    found = dead_letters(visit.admin.access, group, max_messages=EXPORTED_MAX)
    async for message in found:
        line = msgspec.json.encode(_row(message)) + b"\n"
        left -= len(line)
        if left < 0:
            return
        yield line


def _row(message: MessageExt) -> dict[str, object]:
    row: dict[str, object] = {
        "msgId": message.message_id,
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        return {**row, "body": message.body.decode()}
    except UnicodeDecodeError:
        return {**row, "bodyBase64": base64.b64encode(message.body).decode()}


async def _resent(visit: Visit, group: str, place: str, body: bytes | None) -> str:
    queue, _, offset = place.rpartition(":")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise ClientError("a dead letter is named broker/id:offset")
    access = visit.admin.access
    try:
        message = await message_at(access, queue_of(DLQ_PREFIX + group, queue), int(offset))
        result = await resend_dead_letter(access, group, message, body=body)
    except KeroloxError as error:
        return f"not sent: {error}"
    return f"sent, {result.status.name}, id {result.message_id}"
