"""``kerolox dlq``: the messages that groups gave up: list, show, send again, export."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kerolox.admin.positions import Position
from kerolox.cli.cluster_options import name_server_option, on_cluster
from kerolox.cli.messages import (
    body_option,
    first_matching,
    grep_option,
    searching,
    show_messages,
)
from kerolox.cli.output import NDJSON, complain, output_option, print_line
from kerolox.cli.positions import range_options
from kerolox.cli.rows import Column, is_text, number_column, show_rows
from kerolox.protocol.names import DLQ_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.admin import Access
    from kerolox.message import MessageExt

MESSAGES = 100
"""Shown by ``dlq show``, and sent by ``dlq resend``, unless ``--count`` says otherwise."""


@click.group()
def dlq() -> None:
    """Look at dead letters, the messages that a group gave up, and send them again.

    \b
    kerolox dlq list
    kerolox dlq resend shop --grep timeout --execute
    kerolox dlq export shop > dead.ndjson
    """


@dlq.command("list")
@output_option
@name_server_option
def list_command(output: str, name_server: str) -> None:
    """Print the groups that have dead letters, and how many."""
    from kerolox.admin import describe_topic, list_topics

    async def work(access: Access) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for topic in await list_topics(access):
            if not topic.startswith(DLQ_PREFIX):
                continue
            queues = (await describe_topic(access, topic)).queues
            rows.append(
                {
                    "group": topic.removeprefix(DLQ_PREFIX),
                    "messages": sum(each.max_offset - each.min_offset for each in queues),
                    "lastUpdateTimestamp": max(
                        (each.last_update_timestamp for each in queues), default=0
                    ),
                }
            )
        return rows

    columns = Column("group", "GROUP"), number_column("messages", "MESSAGES")
    show_rows(on_cluster(name_server, work), columns, output)


@dlq.command("show")
@click.argument("group")
@range_options
@grep_option
@click.option("--count", type=click.IntRange(min=1), default=MESSAGES, show_default=True)
@body_option
@output_option
@name_server_option
def show_command(
    group: str,
    start: Position,
    stop: Position,
    grep: str | None,
    count: int,
    body: str,
    output: str,
    name_server: str,
) -> None:
    """Print the dead letters of GROUP."""
    has = searching(grep)
    found = on_cluster(name_server, lambda a: _found(a, group, start, stop, count, has))
    show_messages(found, body, output)
    if is_text(output) and len(found) == count:
        complain("kerolox: there may be more (--count)")


@dlq.command("export")
@click.argument("group")
@range_options
@body_option
@name_server_option
def export_command(
    group: str, start: Position, stop: Position, body: str, name_server: str
) -> None:
    """Print all dead letters of GROUP as JSON, a line each."""
    from kerolox.admin import dead_letters

    async def work(access: Access) -> None:
        async for each in dead_letters(access, group, start=start, stop=stop):
            show_messages([each], body, NDJSON)
        sys.stdout.flush()

    on_cluster(name_server, work)


@dlq.command("resend")
@click.argument("group")
@click.argument("message_ids", nargs=-1, metavar="[ID]...")
@range_options
@grep_option
@click.option("--count", type=click.IntRange(min=1), default=MESSAGES, show_default=True)
@click.option("--to-topic", is_flag=True, help="To the topic: all its groups get the messages.")
@click.option("--execute", is_flag=True, help="Do it; else it is only said what would be done.")
@output_option
@name_server_option
def resend_command(
    group: str,
    message_ids: tuple[str, ...],
    start: Position,
    stop: Position,
    grep: str | None,
    count: int,
    to_topic: bool,
    execute: bool,
    output: str,
    name_server: str,
) -> int:
    """Give GROUP its dead letters again: those with the IDs, or all that the options choose.

    Each dead letter stays where it is; what became of it is a line. The exit code is 1 when one of
    them was not sent.
    """
    has = _choosing(searching(grep), set(message_ids))

    async def work(access: Access) -> list[dict[str, object]]:
        found = await _found(access, group, start, stop, count, has)
        return [await _resent(access, group, each, to_topic, execute) for each in found]

    rows = on_cluster(name_server, work)
    columns = (
        Column("msgId", "MESSAGE"),
        Column("topic", "TOPIC"),
        Column("state", "STATE"),
        Column("newMsgId", "SENT AS"),
        Column("error", "ERROR"),
    )
    show_rows(rows, columns, output)
    missing = set(message_ids) - {str(row[key]) for row in rows for key in ("msgId", "offsetMsgId")}
    for each in sorted(missing):
        complain(f"kerolox: group {group} has no dead letter {each} in that range")
    if is_text(output) and not execute:
        print_line("nothing was sent; --execute does it")
    return int(bool(missing) or any(row["state"] == "failed" for row in rows))


def _choosing(has: Callable[[MessageExt], bool], ids: set[str]) -> Callable[[MessageExt], bool]:
    if not ids:
        return has
    return lambda each: has(each) and bool(ids & {each.message_id, each.offset_message_id})


async def _found(
    access: Access,
    group: str,
    start: Position,
    stop: Position,
    count: int,
    has: Callable[[MessageExt], bool],
) -> list[MessageExt]:
    from kerolox.admin import dead_letters

    found, _ = await first_matching(dead_letters(access, group, start=start, stop=stop), has, count)
    return found


async def _resent(
    access: Access, group: str, message: MessageExt, to_topic: bool, execute: bool
) -> dict[str, object]:
    from kerolox.admin import copy_of, resend_dead_letter, send_message
    from kerolox.errors import KeroloxError

    copy = copy_of(message)
    row: dict[str, object] = {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": copy.topic,
        "state": "chosen",
        "newMsgId": "",
        "error": "",
    }
    if not execute:
        return row
    try:
        if to_topic:
            result = await send_message(access, copy)
        else:
            result = await resend_dead_letter(access, group, message)
    except KeroloxError as error:
        return row | {"state": "failed", "error": str(error)}
    return row | {"state": "sent", "newMsgId": result.message_id}
