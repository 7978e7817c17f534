"""Tools that read messages, dead letters and open transactions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kerolox.console.pages.messages import START, STOP, found_of, message_of
from kerolox.console.rendering import VIEWS, preview_text, shown_body
from kerolox.console.scan import Scan, position_in, scan, wanted_of
from kerolox.errors import ClientError
from kerolox.mcp.reading import Nothing, OfGroup, OfTopic, place_text
from kerolox.mcp.tools import Agent, Answer, Tool, about
from kerolox.message import DEAD_LETTER_REASON, MessageExt, MessageQueue
from kerolox.protocol.names import DLQ_PREFIX

__all__ = ["TOOLS"]


class OfMessages(OfTopic):
    """A window of a topic."""

    start: Annotated[
        str, about("beginning, -20 (the newest of each queue), a time, 2h ago as 2h, an offset")
    ] = START
    until: Annotated[str, about("end, a time, an offset")] = STOP
    queue: Annotated[str, about("broker/id; empty: all")] = ""
    tags: Annotated[str, about("A tag expression as A || B; the broker filters")] = ""
    sql: Annotated[str, about("SQL92 over properties; $name is a member of a JSON body")] = ""
    contains: Annotated[str, about("Only bodies with this in them")] = ""
    key: Annotated[str, about("Only messages with this key; goes with no other filter")] = ""


class OfMessage(OfTopic):
    """A message, by its id, or by queue and offset."""

    id: Annotated[str, about("The producer's id or the broker's")] = ""
    queue: Annotated[str, about("broker/id")] = ""
    offset: Annotated[int, msgspec.Meta(ge=-1, description="Its offset in the queue")] = -1
    view: Annotated[str, about(f"Of the body: {', '.join(VIEWS)}, avro, protobuf")] = "auto"


class OfLetters(OfGroup):
    """Dead letters of a group."""

    start: Annotated[str, about("As in messages")] = "-200"
    until: Annotated[str, about("As in messages")] = STOP
    contains: Annotated[str, about("Only bodies with this in them")] = ""
    sql: Annotated[str, about("SQL92, as in messages")] = ""


def row_of(agent: Agent, message: MessageExt) -> dict[str, object]:
    """A message in a list: its body is a preview."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "queue": place_text(MessageQueue("", message.broker_name, message.queue_id)),
        "offset": message.queue_offset,
        "stored_ms": message.store_timestamp,
        "tags": message.tags,
        "keys": message.keys,
        "reconsume_times": message.reconsume_times,
        "body_bytes": len(message.body),
        "body_preview": preview_text(message, agent.console.schemas),
    }


def scan_answer(agent: Agent, found: Scan, rows: list[dict[str, object]] | None = None) -> Answer:
    """The messages of a scan, and how far it went."""
    left_out = [f"queue {place_text(queue)}: {why}" for queue, why in found.failed.items()]
    if found.cut:
        queues = ", ".join(place_text(each) for each in found.cut[:8])
        left_out.append(f"{len(found.cut)} queues have more than was read: {queues}")
    if found.left_out:
        left_out.append(f"{found.left_out} more messages match")
    data = {
        "messages_read": found.read,
        "messages": rows or [row_of(agent, each) for each in found.messages],
    }
    return Answer(data, tuple(left_out))


async def messages(agent: Agent, a: OfMessages) -> Answer:
    """Messages of a topic by time, place, key or expression, newest first."""
    if a.key and (a.queue or a.tags or a.sql or a.contains):
        raise ClientError("a key is looked up in the index, with no other filter")
    asked = {
        **{"queue": a.queue, "from": a.start, "until": a.until, "tags": a.tags, "sql": a.sql},
        **{"text": a.contains, "id": "", "key": a.key},
    }
    return scan_answer(agent, await found_of(agent, a.topic, asked))


async def message(agent: Agent, a: OfMessage) -> Answer:
    """One message with its properties and body."""
    offset = "" if a.offset < 0 else str(a.offset)
    named = {"topic": a.topic, "id": a.id, "queue": a.queue, "offset": offset}
    found = await message_of(agent, named.__getitem__)
    view, body, fault = shown_body(found, a.view, agent.console.schemas)
    return Answer(
        {
            **row_of(agent, found),
            "born_ms": found.born_timestamp,
            "born_host": f"{found.born_host[0]}:{found.born_host[1]}",
            "properties": found.properties,
            "body_view": view,
            "body": body,
        },
        (fault,) if fault else (),
    )


async def tracks(agent: Agent, a: OfMessage) -> Answer:
    """What became of a message in each group."""
    offset = "" if a.offset < 0 else str(a.offset)
    named = {"topic": a.topic, "id": a.id, "queue": a.queue, "offset": offset}
    return Answer(await agent.admin.message_tracks(await message_of(agent, named.__getitem__)))


async def dead_letter_groups(agent: Agent, _: Nothing) -> Answer:
    """Groups that have dead letters, those with the most that wait first."""
    found = await agent.admin.dead_letter_summaries()
    return Answer(sorted(found, key=lambda each: (-each.waiting, -each.messages, each.group)))


async def dead_letters(agent: Agent, a: OfLetters) -> Answer:
    """The dead letters of a group: which, why, whether they wait."""
    await agent.console.cluster.check_group(a.group)
    wanted = wanted_of(
        DLQ_PREFIX + a.group,
        "",
        position_in(a.start),
        position_in(a.until),
        tags="",
        sql=a.sql,
        text=a.contains,
    )
    queues = {e.queue: e for e in await agent.admin.dead_letter_queues(a.group)}
    if not queues:
        return Answer({"messages_read": 0, "messages": []})
    found = await scan(agent.admin, wanted)
    rows: list[dict[str, object]] = [
        {
            **row_of(agent, each),
            "place": f"{place_text(each.queue)}:{each.queue_offset}",
            "reason": each.properties.get(DEAD_LETTER_REASON, ""),
            "is_done": each.queue in queues and queues[each.queue].is_done(each),
        }
        for each in found.messages
    ]
    return scan_answer(agent, found, rows)


async def transactions(agent: Agent, _: Nothing) -> Answer:
    """Halves that are neither committed nor rolled back."""
    found, failed = await agent.console.cluster.ask_masters(agent.admin.open_halves)
    return Answer(
        {
            name: {
                "is_all": each.is_all,
                "open": [
                    {**row_of(agent, half), "properties": half.properties} for half in each.halves
                ],
            }
            for name, each in found.items()
        },
        tuple(f"broker {name}: {why}" for name, why in failed.items()),
    )


TOOLS = (
    Tool("messages", "Messages of a topic by time, place, key, expression.", OfMessages, messages),
    Tool("message", "One message: properties, body.", OfMessage, message),
    Tool("message_tracks", "What became of a message in each group.", OfMessage, tracks),
    Tool("dead_letter_groups", "Groups that have dead letters.", Nothing, dead_letter_groups),
    Tool("dead_letters", "Dead letters of a group: which, why.", OfLetters, dead_letters),
    Tool("transactions", "Transactions that are open.", Nothing, transactions),
)
