"""``kerolox group release``, and what ``group describe`` says of messages that are out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option, topic_option
from kerolox.cli.confirming import Consent, confirm, consent_options
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.positions import queue_of
from kerolox.cli.rows import Column, duration_column, is_text, number_column, show_rows
from kerolox.cli.values import DurationType
from kerolox.text import counted, duration_text

if TYPE_CHECKING:
    from kerolox.admin import Admin, PoppedMessages, PoppedQueue
    from kerolox.message import MessageQueue

OWNERS_SHOWN = 5

OUT_COLUMNS = (
    number_column("inFlight", "OUT"),
    duration_column("inFlightMs", "FOR"),
    Column("heldBy", "HELD BY"),
)
"""Of queues of which members have messages out."""


async def held(admin: Admin, name: str, topic: str) -> PoppedMessages | None:
    """What a group has out; None: its brokers do not tell."""
    from kerolox.errors import KeroloxError

    try:
        return await admin.popped_messages(name, topic=topic, max_messages=0)
    except KeroloxError:
        return None  # RocketMQ's, or a slave: how many is known by the progress


def out_row(queue: PoppedQueue | None, count: int, for_ms: int) -> dict[str, object]:
    """What ``describe`` says of a queue. ``count``, ``for_ms``: as the group's progress says."""
    return {
        "inFlight": count if queue is None else queue.messages,
        "inFlightMs": for_ms if queue is None else queue.oldest_ms,
        "heldBy": "" if queue is None else queue.oldest_owner,
    }


def print_owners(found: PoppedMessages) -> None:
    """Say who has how many, for how long."""
    for each in found.owners[:OWNERS_SHOWN]:
        print_line(
            f"  {each.owner or 'a member that is not known any more'} has "
            f"{counted(each.messages, 'message')}, for {duration_text(each.oldest_ms)} at most"
        )
    if (more := len(found.owners) - OWNERS_SHOWN) > 0:
        print_line(f"  and {more} more members")


@click.command("release", cls=Command)
@click.argument("name", shell_complete=completing.groups)
@topic_option("Of this topic only.")
@click.option("--queue", "queue", metavar="BROKER/ID", help="Of this queue of --topic only.")
@click.option("--offset", type=click.IntRange(0), help="This message of --queue only.")
@click.option("--owner", default="", metavar="CLIENT", help="What this member has only.")
@click.option(
    "--held",
    "held_seconds",
    type=DurationType(),
    default="0s",
    metavar="DURATION",
    help="What is out for so long only: 90s, 15m, 2h.",
)
@consent_options
@output_option
@name_server_option
def release_command(
    name: str,
    topic: str,
    queue: str | None,
    offset: int | None,
    owner: str,
    held_seconds: float,
    consent: Consent,
    output: str,
    name_server: str,
) -> None:
    """Let messages that members popped and hold come again at once, to any member.

    Who has them loses them: what it acknowledges later has no effect. Of a queue that is popped in
    order all that is out is released, or nothing. 'kerolox group describe' says who has what.

    Says first what that does, and asks on a terminal; elsewhere it needs --yes.
    """
    if queue is not None and not topic:
        raise click.UsageError("--queue needs --topic.")
    if offset is not None and queue is None:
        raise click.UsageError("--offset needs --queue.")
    chosen: MessageQueue | None = None if queue is None else queue_of(topic, queue)

    async def planned(admin: Admin) -> PoppedMessages:
        return await admin.popped_messages(
            name,
            topic=topic,
            queue=chosen,
            offset=offset,
            owner=owner,
            held_ms=int(held_seconds * 1000),
        )

    plan = on_cluster(name_server, planned)
    for broker in plan.silent:
        complain(f"kerolox: {broker} is a broker of RocketMQ, which does not tell what is out")
    if not consent.yes or not plan.messages:
        _show(plan, output, is_done=False)
        if not plan.messages:
            if is_text(output):
                print_line(f"group {name} has nothing out that is meant; nothing was changed")
            return
        question = f"Release {counted(plan.messages, 'message')} of group {name}?"
        if not confirm(question, consent, output, name_server):
            return
    done = on_cluster(name_server, lambda admin: admin.release_popped(plan))
    if consent.yes:
        _show(done, output, is_done=True)
    if is_text(output):
        print_line(f"{counted(done.messages, 'message')} of group {name} released")


def _show(found: PoppedMessages, output: str, *, is_done: bool) -> None:
    columns = (
        Column("topic", "TOPIC"),
        Column("queue", "QUEUE"),
        number_column("offset", "OFFSET"),
        Column("owner", "HELD BY"),
        duration_column("heldMs", "FOR"),
        duration_column("leftMs", "LEFT"),
    )
    rows: list[dict[str, object]] = [
        {
            "topic": each.queue.topic,
            "queue": f"{each.queue.broker_name}/{each.queue.queue_id}",
            "brokerName": each.queue.broker_name,
            "queueId": each.queue.queue_id,
            "offset": each.offset,
            "owner": each.owner,
            "heldMs": each.held_ms,
            "leftMs": max(each.left_ms, 0),
            "isOrder": each.is_order,
            "done": is_done,
        }
        for each in found.listed
    ]
    show_rows(rows, columns, output)
    if is_text(output) and (more := found.messages - len(rows)) > 0:
        print_line(f"and {counted(more, 'more message')}")
