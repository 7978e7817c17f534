"""``kerolox message delayed`` and ``transactions``: what brokers keep back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import Place, name_server_option, on_cluster, place_options
from kerolox.cli.messages import body_option, message_row
from kerolox.cli.output import complain, output_option
from kerolox.cli.rows import Column, is_text, number_column, show_rows, time_column
from kerolox.message import PropertyKey

if TYPE_CHECKING:
    from kerolox.admin import Access, DelayLevel
    from kerolox.message import MessageExt

MESSAGES = 100

count_option = click.option(
    "--count", type=click.IntRange(1, 10_000), default=MESSAGES, show_default=True
)


@click.command("delayed")
@count_option
@body_option
@place_options
@output_option
@name_server_option
def delayed_command(count: int, body: str, place: Place, output: str, name_server: str) -> None:
    """Print delayed messages whose time has not come, the next ones first."""
    rows, waiting = on_cluster(name_server, lambda access: _delayed(access, place, body, count))
    columns = (
        time_column("dueTimestamp", "DUE"),
        number_column("delayLevel", "LEVEL"),
        Column("topic", "TO TOPIC"),
        Column("keys", "KEY"),
        Column("msgId", "MESSAGE"),
        Column("body", "BODY"),
    )
    show_rows(rows, columns, output)
    if is_text(output):
        complain(f"kerolox: {len(rows)} of {waiting} messages that wait")


async def _delayed(
    access: Access, place: Place, body: str, count: int
) -> tuple[list[dict[str, object]], int]:
    """The rows of those that are due first, and how many wait in all."""
    from kerolox.admin import delay_levels, delayed_messages
    from kerolox.admin.asking import all_answers, targets

    addresses = await targets(access, **place._asdict())
    found = await all_answers(addresses, lambda address: delay_levels(access, address))
    levels = [level for each in found.values() for level in each if level.waiting]
    messages: list[tuple[int, DelayLevel, MessageExt]] = []
    for level in levels:
        next_ones = await delayed_messages(access, level, max_messages=count)
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


@click.command("transactions")
@body_option
@place_options
@output_option
@name_server_option
def transactions_command(body: str, place: Place, output: str, name_server: str) -> None:
    """Print open transactions: half messages that are neither committed nor rolled back."""
    from kerolox.admin import open_halves
    from kerolox.admin.asking import all_answers, targets

    async def work(access: Access) -> tuple[list[dict[str, object]], bool]:
        addresses = await targets(access, **place._asdict())
        found = await all_answers(addresses, lambda address: open_halves(access, address))
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


def _row(message: MessageExt, body: str) -> dict[str, object]:
    """What is shown of a message that is kept back; its topic is where it goes."""
    row = message_row(message, body)
    row["topic"] = message.properties.get(PropertyKey.REAL_TOPIC, message.topic)
    row.setdefault("body", row.get("bodyBase64", ""))
    return row
