"""Dead letters: whose, which, given to their group again chosen or all, marked, exported."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from kerolox.admin import DeadLetterQueue, ResentLetter
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.rendering import typed_body
from kerolox.console.scan import position_in, queue_of, scan, wanted_of
from kerolox.console.security.sessions import new_key
from kerolox.console.visit import Visit
from kerolox.errors import ClientError, KeroloxError, TopicRouteNotFoundError
from kerolox.message import DEAD_LETTER_REASON, MessageExt, MessageQueue
from kerolox.protocol.names import DLQ_PREFIX
from kerolox.text import counted

__all__ = ["browse", "export", "listed", "purge", "resend", "resend_all"]

NEWEST_SHOWN = 200
"""Of each queue, unless another beginning is asked for, or a part of them."""
RESENT_AT_ONCE_MAX = 200
"""As many as a page shows."""
RESENT_SECONDS_MAX = 10.0
"""For so long one request sends all that wait; the next goes on."""
FAILURES_SHOWN_MAX = 5
EXPORTED_MAX = 10_000
EXPORTED_BYTES_MAX = 256 * 1024 * 1024


async def listed(visit: Visit) -> Response:
    """Groups that have some, those with the most that wait first."""
    found = await visit.shared("dead letters", visit.admin.dead_letter_summaries)
    rows = sorted(found, key=lambda each: (-each.waiting, -each.messages, each.group))
    return visit.page("dead_letters.html", rows=rows)


async def browse(visit: Visit) -> Response:
    """Those of one group."""
    group = visit.needed("group")
    asked = {name: visit.asked(name) for name in ("from", "until", "text", "sql")}
    # Who searches means all of them; else the newest are shown, as a page has room for.
    start = "beginning" if asked["text"] or asked["sql"] else f"-{NEWEST_SHOWN}"
    wanted = wanted_of(
        DLQ_PREFIX + group,
        "",
        position_in(asked["from"] or start, visit.zone),
        position_in(asked["until"] or "end", visit.zone),
        tags="",
        sql=asked["sql"],
        text=asked["text"],
    )
    queues = await visit.shared(
        ("dead letters", group), lambda: visit.admin.dead_letter_queues(group)
    )
    version = _version(queues)
    if visit.is_refresh and visit.request.headers.get("if-none-match") == version:
        return Response(status_code=304)
    try:
        found = await scan(visit.admin, wanted)
    except TopicRouteNotFoundError:
        raise ClientError(f"group {group!r} has no dead letters") from None
    by_queue = {each.queue: each for each in queues}
    waiting = sum(each.waiting for each in queues)
    begun = _begun(visit, group)
    return visit.page(
        "dead_letter.html",
        group=group,
        version=version,
        start=f"-{NEWEST_SHOWN}",
        asked=asked,
        found=found,
        is_done=lambda message: _is_done(by_queue, message),
        reason=DEAD_LETTER_REASON,
        waiting=waiting,
        begun=begun if waiting else 0,
        messages=sum(each.messages for each in queues),
        most=RESENT_AT_ONCE_MAX,
    )


def _version(queues: list[DeadLetterQueue]) -> str:
    """Another one once a letter has come, has gone or is done."""
    text = " ".join(
        f"{each.queue.broker_name}/{each.queue.queue_id}:{each.min_offset}:{each.max_offset}"
        f":{each.marks}"
        for each in queues
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _begun(visit: Visit, group: str) -> int:
    """How many the user has begun to send again, if this page goes on with that; else 0."""
    if visit.session is None or visit.is_part:
        return 0
    mark, total = visit.session.under_way.pop(group, ("", 0))
    return total if mark and mark == visit.asked("on") else 0


async def resend(visit: Actor) -> ActionResult:
    """Give chosen ones to their group again; each stays, marked as done, and has a result."""
    group = visit.required("group")
    places = visit.form.get("place", [])
    if not places:
        raise ClientError("choose at least one dead letter")
    if len(places) > RESENT_AT_ONCE_MAX:
        raise ClientError(f"choose {RESENT_AT_ONCE_MAX} dead letters at most")
    typed = visit.body() if visit.given("edited") == "1" else None
    again = visit.given("again") == "1"
    results: dict[str, str] = {}
    for place in dict.fromkeys(places):
        results[place] = await _resent(visit, group, place, typed, again=again)
        # Also when a later one takes too long, what is done is told.
        visit.target["results"] = results
    failed = [place for place, result in results.items() if not result.startswith("sent")]
    told = list(results) if len(results) <= FAILURES_SHOWN_MAX else failed[:FAILURES_SHOWN_MAX]
    for place in told:
        visit.note(f"{place}: {results[place]}")
    return ActionResult(
        f"{len(results) - len(failed)} of {counted(len(results), 'dead letter')}"
        f" {'was' if len(results) - len(failed) == 1 else 'were'} sent again.",
        visit.path("/dead-letter", group=group),
        {"group": group, "edited": typed is not None},
        new=results,
    )


async def resend_all(visit: Actor) -> ActionResult:
    """Give all that wait to their group again, for as long as a request may take."""
    group = visit.required("group")
    began, sent = time.monotonic(), 0
    failed: list[ResentLetter] = []
    async for each in visit.admin.resend_dead_letters(group):
        sent += each.state == "sent"
        if each.error:
            failed.append(each)
        visit.target["sent"] = sent
        if time.monotonic() - began > RESENT_SECONDS_MAX or len(failed) > RESENT_AT_ONCE_MAX:
            break
    for each in failed[:FAILURES_SHOWN_MAX]:
        visit.note(f"{_place(each.message)}: {each.error}")
    left = sum(each.waiting for each in await visit.admin.dead_letter_queues(group))
    text = f"{counted(sent, 'dead letter')} {'was' if sent == 1 else 'were'} sent again."
    mark, wait = "", "waits" if left == 1 else "wait"
    if left and sent and len(failed) <= RESENT_AT_ONCE_MAX:
        # The page that comes next sends the form again: it alone has the mark, so no link does.
        begun = visit.given("begun")
        total = int(begun) if begun.isascii() and begun.isdigit() and len(begun) < 19 else 0
        mark = new_key()
        visit.go_on_with(group, mark, max(total, sent + left))
        text += f" {left} still {wait}."
    elif left:
        text += f" {left} still {wait}: look why, then send all once more."
    return ActionResult(
        text,
        visit.path("/dead-letter", group=group, on=mark),
        {"group": group},
        new={"sent": sent, "failed": len(failed), "waiting": left},
    )


async def purge(visit: Actor) -> ActionResult:
    """Mark all that wait as done: nothing counts them any more. They stay in their queue."""
    group = visit.required("group")
    if visit.given("again") != group:
        raise ClientError("type the group's name once more; nothing was marked")
    queues = await visit.admin.purge_dead_letters(group)
    count = sum(each.marked for each in queues)
    return ActionResult(
        f"{counted(count, 'dead letter')} of {group} {'is' if count == 1 else 'are'} marked as"
        " done.",
        visit.path("/dead-letter", group=group),
        {"group": group},
        old={"waiting": count},
        new={"waiting": 0},
    )


async def export(visit: Visit) -> Response:
    """All of a group as JSON, a line each."""
    group = visit.needed("group")
    headers = {"content-disposition": 'attachment; filename="dead-letters.ndjson"'}
    return StreamingResponse(_lines(visit, group), 200, headers, "application/x-ndjson")


async def _lines(visit: Visit, group: str) -> AsyncIterator[bytes]:
    left = EXPORTED_BYTES_MAX
    found = visit.admin.dead_letters(group, max_messages=EXPORTED_MAX)
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


async def _resent(visit: Actor, group: str, place: str, typed: bytes | None, *, again: bool) -> str:
    queue, _, offset = place.rpartition(":")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise ClientError("a dead letter is named broker/id:offset")
    admin = visit.admin
    try:
        message = await admin.message_at(queue_of(DLQ_PREFIX + group, queue), int(offset))
        queues = {each.queue: each for each in await admin.dead_letter_queues(group)}
        if _is_done(queues, message) and not again:
            return "left out: it was sent again before, or marked as done"
        body = None if typed is None else typed_body(typed, message.body)
        result = await admin.resend_dead_letter(group, message, body=body)
    except KeroloxError as error:
        return f"not sent: {error}"
    return f"sent, {result.status.name}, id {result.message_id}"


def _is_done(queues: dict[MessageQueue, DeadLetterQueue], message: MessageExt) -> bool:
    queue = queues.get(message.queue)
    return queue is not None and queue.is_done(message)


def _place(message: MessageExt) -> str:
    return f"{message.broker_name}/{message.queue_id}:{message.queue_offset}"
