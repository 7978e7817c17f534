"""``kerolox message``: find messages by id, key, place or time; show them; send them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from kerolox.admin.positions import Position
from kerolox.cli import completing
from kerolox.cli.cluster_options import (
    Place,
    name_server_option,
    place_options,
    topic_option,
)
from kerolox.cli.confirming import Consent, confirm, consent_options
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.messages import (
    body_option,
    count_option,
    first_matching,
    grep_option,
    message_row,
    searching,
    show_message,
    show_messages,
    tags_option,
)
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.positions import queue_of, range_options
from kerolox.cli.rows import Column, is_text, number_column, show_record, show_rows, time_column
from kerolox.errors import NotFoundError
from kerolox.message import PropertyKey
from kerolox.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kerolox.admin import Admin, DelayLevel, MessageTrack
    from kerolox.message import MessageExt


_topic_of_id_option = topic_option("Its topic; needed for an id that a producer made.")


@click.group(cls=CommandGroup)
def message() -> None:
    """Find, show and resend single messages.

    \b
    kerolox message list Orders --from 2h --grep customer --body json
    kerolox message find Orders o-1
    kerolox message at Orders broker-a/0 17
    """


@message.command("list")
@click.argument("topic", shell_complete=completing.topics)
@range_options
@click.option("--queue", metavar="BROKER/ID", help="Only this queue.")
@tags_option
@grep_option
@count_option()
@body_option
@output_option
@name_server_option
def list_command(
    topic: str,
    start: Position,
    stop: Position,
    queue: str | None,
    tags: str,
    grep: str | None,
    count: int,
    body: str,
    output: str,
    name_server: str,
) -> None:
    """Print the messages that TOPIC holds now, queue by queue."""

    has = searching(grep)
    chosen = queue_of(topic, queue) if queue else None
    looked_at = 0

    async def work(admin: Admin) -> list[MessageExt]:
        nonlocal looked_at
        source = admin.read_messages(
            topic,
            broker_name=chosen.broker_name if chosen else "",
            queue_id=chosen.queue_id if chosen else None,
            start=start,
            stop=stop,
            expression=tags,
        )
        found, looked_at = await first_matching(source, has, count)
        return found

    found = on_cluster(name_server, work)
    show_messages(found, body, output)
    if is_text(output):
        more = "; there may be more (--count)" if len(found) == count else ""
        complain(f"kerolox: {len(found)} of {counted(looked_at, 'message')} examined{more}")


@message.command("get")
@click.argument("message_id")
@_topic_of_id_option
@body_option
@output_option
@name_server_option
def get_command(message_id: str, topic: str, body: str, output: str, name_server: str) -> None:
    """Print the message with MESSAGE_ID: that of its place in the log, or its producer's."""

    found = on_cluster(name_server, lambda admin: admin.message_by_id(message_id, topic=topic))
    _show(found, body, output)


@message.command("at")
@click.argument("topic", shell_complete=completing.topics)
@click.argument("queue", metavar="BROKER/ID")
@click.argument("offset", type=click.IntRange(min=0))
@body_option
@output_option
@name_server_option
def at_command(
    topic: str, queue: str, offset: int, body: str, output: str, name_server: str
) -> None:
    """Print the message at an offset of a queue."""

    place = queue_of(topic, queue)
    _show(on_cluster(name_server, lambda admin: admin.message_at(place, offset)), body, output)


@message.command("find")
@click.argument("topic", shell_complete=completing.topics)
@click.argument("key")
@count_option(1024, default=64)
@body_option
@output_option
@name_server_option
def find_command(
    topic: str, key: str, count: int, body: str, output: str, name_server: str
) -> None:
    """Print the messages of TOPIC that have KEY."""

    found = on_cluster(
        name_server, lambda admin: admin.messages_by_key(topic, key, max_messages=count)
    )
    show_messages(found, body, output)
    if is_text(output):
        complain(f"kerolox: {counted(len(found), 'message')}")


@message.command("consumers")
@click.argument("message_id")
@_topic_of_id_option
@output_option
@name_server_option
def consumers_command(message_id: str, topic: str, output: str, name_server: str) -> None:
    """Print which groups have consumed a message; of those offline, by their offsets."""

    async def work(admin: Admin) -> list[MessageTrack]:
        return await admin.message_tracks(await admin.message_by_id(message_id, topic=topic))

    rows = [
        {
            "group": each.group,
            "state": each.type.value,
            "online": each.is_online,
            "error": each.error,
        }
        for each in on_cluster(name_server, work)
    ]
    columns = (
        Column("group", "GROUP"),
        Column("state", "STATE"),
        Column("online", "IS", text=lambda value: "online" if value else "offline"),
        Column("error", "ERROR"),
    )
    show_rows(rows, columns, output)


@message.command("resend")
@click.argument("message_id")
@_topic_of_id_option
@click.option(
    "--to",
    "target",
    default="",
    metavar="TOPIC",
    shell_complete=completing.topics,
    help="Another topic.",
)
@consent_options
@output_option
@name_server_option
def resend_command(
    message_id: str, topic: str, target: str, consent: Consent, output: str, name_server: str
) -> None:
    """Send a copy of a message: all groups of the topic get it.

    Says first where it goes, and asks on a terminal; elsewhere it needs --yes.
    """
    from kerolox.admin import copy_of

    found = on_cluster(name_server, lambda admin: admin.message_by_id(message_id, topic=topic))
    copy = copy_of(found, topic=target)
    row: dict[str, object] = {"msgId": message_id, "topic": copy.topic, "done": False}
    if not _agreed(row, f"a copy goes to {copy.topic}", "Send it?", consent, output, name_server):
        return
    result = on_cluster(name_server, lambda admin: admin.send_copy(found, topic=target))
    if is_text(output):
        print_line(f"sent to {copy.topic} as {result.message_id}")
        return
    row |= {
        "done": True,
        "newMsgId": result.message_id,
        "offsetMsgId": result.offset_message_id,
    }
    show_record(row, (), output)


def _agreed(
    row: dict[str, object],
    plan: str,
    question: str,
    consent: Consent,
    output: str,
    name_server: str,
) -> bool:
    """Show what would be done, and ask unless it is agreed to: whether to do it."""
    if consent.yes:
        return True
    if is_text(output):
        print_line(plan)
    else:
        show_record(row, (), output)
    return confirm(question, consent, output, name_server)


def _show(found: MessageExt, body: str, output: str) -> None:
    if not is_text(output):
        show_message(found, body, output)
        return
    row = message_row(found, body)
    row["queue"] = f"{found.broker_name}/{found.queue_id}@{found.queue_offset}"
    row.setdefault("body", row.get("bodyBase64", ""))
    columns = [
        Column("topic", "topic"),
        Column("queue", "queue"),
        Column("msgId", "id"),
        Column("offsetMsgId", "offset id"),
        Column("tags", "tags"),
        Column("keys", "keys"),
        time_column("bornTimestamp", "born"),
        Column("bornHost", "by"),
        time_column("storeTimestamp", "stored"),
        Column("storeHost", "at"),
        Column("reconsumeTimes", "retries"),
        Column("properties", "properties"),
        Column("body", "body"),
    ]
    show_record(row, columns, output)


@message.command("delayed")
@count_option(10_000)
@body_option
@place_options
@output_option
@name_server_option
def delayed_command(count: int, body: str, place: Place, output: str, name_server: str) -> None:
    """Print delayed messages whose time has not come, the next ones first."""
    rows, waiting = on_cluster(name_server, lambda admin: _delayed(admin, place, body, count))
    columns = (
        time_column("dueTimestamp", "DUE"),
        number_column("delayLevel", "LEVEL"),
        Column("topic", "TO TOPIC"),
        Column("keys", "KEY"),
        Column("msgId", "MESSAGE"),
        Column("body", "BODY"),
    )
    _show_waiting(rows, waiting, columns, output)


def _show_waiting(
    rows: list[dict[str, object]], waiting: int, columns: Sequence[Column], output: str
) -> None:
    show_rows(rows, columns, output)
    if is_text(output):
        complain(f"kerolox: {len(rows)} of {waiting} messages that wait")


async def _delayed(
    admin: Admin, place: Place, body: str, count: int
) -> tuple[list[dict[str, object]], int]:
    """The rows of those that are due first, and how many wait in all."""
    from kerolox.admin.asking import targets

    return await _delayed_at(admin, await targets(admin, **place._asdict()), body, count)


async def _delayed_at(
    admin: Admin, addresses: list[str], body: str, count: int
) -> tuple[list[dict[str, object]], int]:
    from kerolox.admin.asking import all_answers

    found = await all_answers(addresses, lambda address: admin.delay_levels(address))
    levels = [level for each in found.values() for level in each if level.waiting]
    messages: list[tuple[int, DelayLevel, MessageExt]] = []
    for level in levels:
        next_ones = await admin.delayed_messages(level, max_messages=count)
        messages += [(each.store_timestamp + level.delay_ms, level, each) for each in next_ones]
    messages.sort(key=lambda entry: (entry[0], entry[2].offset_message_id))
    rows = [
        {
            **_row(each, body),
            "delayLevel": level.number,
            "delayMs": level.delay_ms,
            "dueTimestamp": due_ms,
        }
        for due_ms, level, each in messages[:count]
    ]
    return rows, sum(level.waiting for level in levels)


@message.command("waiting")
@count_option(10_000)
@body_option
@place_options
@output_option
@name_server_option
def waiting_command(count: int, body: str, place: Place, output: str, name_server: str) -> None:
    """Print what waits, by its moment: delayed messages, and those for any moment.

    HANDLE takes a message back: kerolox message recall.
    """
    rows, waiting, is_all = on_cluster(
        name_server, lambda admin: _waiting(admin, place, body, count)
    )
    columns = (
        time_column("dueTimestamp", "DUE"),
        Column("topic", "TO TOPIC"),
        Column("keys", "KEY"),
        Column("msgId", "MESSAGE"),
        Column("recallHandle", "HANDLE"),
    )
    _show_waiting(rows, waiting, columns, output)
    if is_text(output) and not is_all:
        complain("kerolox: a broker has more than were read; some that are due first may lack")


async def _waiting(
    admin: Admin, place: Place, body: str, count: int
) -> tuple[list[dict[str, object]], int, bool]:
    """The rows of those that are due first, how many wait in all, and whether all were read."""
    from kerolox.admin.asking import all_answers, targets

    addresses = await targets(admin, **place._asdict())
    delayed, waiting = await _delayed_at(admin, addresses, body, count)
    found = await all_answers(
        addresses, lambda address: admin.timed_messages(address, max_messages=count)
    )
    timed = [
        {**_row(each.message, body), "dueTimestamp": each.due_ms, "recallHandle": each.handle}
        for broker in found.values()
        for each in broker.messages
    ]
    untaken = [{**row, "recallHandle": ""} for row in delayed]
    rows = sorted([*untaken, *timed], key=lambda row: cast("int", row["dueTimestamp"]))
    waiting += sum(sum(broker.waiting.values()) for broker in found.values())
    return rows[:count], waiting, all(broker.is_all for broker in found.values())


@message.command("recall")
@click.argument("handle")
@consent_options
@output_option
@name_server_option
def recall_command(handle: str, consent: Consent, output: str, name_server: str) -> None:
    """Take a message back that waits for its moment: nobody will get it.

    HANDLE is what its send gave, or what `kerolox message waiting` shows. A terminal gets a
    question; elsewhere it needs --yes.
    """
    from kerolox.protocol.recall_handles import RecallError, decode_handle

    try:
        wanted = decode_handle(handle)
    except RecallError as error:
        raise click.UsageError(f"{error}.") from None
    row: dict[str, object] = {
        "msgId": wanted.unique_key,
        "topic": wanted.topic,
        "brokerName": wanted.broker_name,
        "done": False,
    }
    plan = f"message {wanted.unique_key} of {wanted.topic} will not come"
    if not _agreed(row, plan, "Take it back?", consent, output, name_server):
        return
    on_cluster(name_server, lambda admin: admin.recall_message(handle))
    if is_text(output):
        print_line(f"taken back: {wanted.unique_key} of {wanted.topic}")
        return
    show_record(row | {"done": True}, (), output)


@message.command("transactions")
@body_option
@place_options
@output_option
@name_server_option
def transactions_command(body: str, place: Place, output: str, name_server: str) -> None:
    """Print open transactions: half messages that are neither committed nor rolled back."""
    from kerolox.admin.asking import all_answers, targets

    async def work(admin: Admin) -> tuple[list[dict[str, object]], bool]:
        addresses = await targets(admin, **place._asdict())
        found = await all_answers(addresses, lambda address: admin.open_halves(address))
        rows = [
            {
                **_row(half, body),
                "producerGroup": half.properties.get(PropertyKey.PRODUCER_GROUP, ""),
                "checks": half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "0"),
            }
            for each in found.values()
            for half in each.halves
        ]
        return rows, all(each.is_all for each in found.values())

    rows, is_all = on_cluster(name_server, work)
    columns = (
        time_column("bornTimestamp", "BORN"),
        Column("topic", "TOPIC"),
        Column("producerGroup", "PRODUCER GROUP"),
        number_column("checks", "ASKED"),
        Column("msgId", "MESSAGE"),
        Column("body", "BODY"),
    )
    show_rows(rows, columns, output)
    if not is_all:
        complain("kerolox: a broker has more half messages than were read; some may be ended")


@message.command("commit")
@click.argument("message_id")
@consent_options
@place_options
@output_option
@name_server_option
def commit_command(
    message_id: str, consent: Consent, place: Place, output: str, name_server: str
) -> None:
    """Commit an open transaction in place of its producer: its topic gets the message.

    Says first what it is, and asks on a terminal; elsewhere it needs --yes. One whose producer
    decides in the same moment may come twice from a RocketMQ broker.
    """
    _end_half(message_id, place, consent, output, name_server, commit=True)


@message.command("rollback")
@click.argument("message_id")
@consent_options
@place_options
@output_option
@name_server_option
def rollback_command(
    message_id: str, consent: Consent, place: Place, output: str, name_server: str
) -> None:
    """Roll an open transaction back in place of its producer: the message is dropped.

    Says first what it is, and asks on a terminal; elsewhere it needs --yes.
    """
    _end_half(message_id, place, consent, output, name_server, commit=False)


def _end_half(
    message_id: str, place: Place, consent: Consent, output: str, name_server: str, *, commit: bool
) -> None:
    address, half = on_cluster(name_server, lambda admin: _open_half(admin, place, message_id))
    topic = half.properties.get(PropertyKey.REAL_TOPIC, half.topic)
    group = half.properties.get(PropertyKey.PRODUCER_GROUP, "")
    row: dict[str, object] = {
        "msgId": half.message_id,
        "topic": topic,
        "producerGroup": group,
        "broker": address,
        "decision": "commit" if commit else "rollback",
        "done": False,
    }
    what = f"message {half.message_id} of producer group {group}"
    plan = f"{topic} gets {what}" if commit else f"{what} will not come to {topic}"
    question = "Commit it?" if commit else "Roll it back?"
    if not _agreed(row, plan, question, consent, output, name_server):
        return
    on_cluster(
        name_server, lambda admin: admin.end_half_message(address, message_id, commit=commit)
    )
    if is_text(output):
        print_line(f"{'committed' if commit else 'rolled back'}: {half.message_id} of {topic}")
        return
    show_record(row | {"done": True}, (), output)


async def _open_half(admin: Admin, place: Place, message_id: str) -> tuple[str, MessageExt]:
    """The open transaction of that id, and the address of the broker that has it."""
    from kerolox.admin.asking import answers_of, targets

    addresses = await targets(admin, **place._asdict())
    found, failed = await answers_of(addresses, lambda each: admin.open_half(each, message_id))
    for address, half in found.items():
        return address, half
    # That one broker does not answer says more than that the others have none.
    raise min(failed.values(), key=lambda error: isinstance(error, NotFoundError))


def _row(message: MessageExt, body: str) -> dict[str, object]:
    """What is shown of a message that is kept back; its topic is where it goes."""
    row = message_row(message, body)
    row["topic"] = message.properties.get(PropertyKey.REAL_TOPIC, message.topic)
    row.setdefault("body", row.get("bodyBase64", ""))
    return row
