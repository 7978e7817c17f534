"""``kerolox dlq``: the messages that groups gave up: list, show, send again, purge, export."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kerolox.admin.positions import Position
from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.confirming import Consent, confirm, consent_options
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.messages import (
    MESSAGES_SHOWN,
    body_option,
    body_text,
    count_option,
    first_matching,
    grep_option,
    message_row,
    searching,
    show_messages,
)
from kerolox.cli.output import NDJSON, complain, output_option, print_line
from kerolox.cli.positions import PositionType, range_options
from kerolox.cli.rows import Column, RowPages, is_text, number_column, show_rows, time_column
from kerolox.message import DEAD_LETTER_REASON, PropertyKey
from kerolox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kerolox.admin import Admin, DeadLetterQueue, ResentLetter
    from kerolox.message import MessageExt, MessageQueue

PROGRESS_EVERY = 1_000
"""After so many letters it is said how far it is."""

FAILURES_MAX = 100
"""So many letters in a row that can't be sent end the command."""

RESENT_COLUMNS = (
    Column("msgId", "MESSAGE"),
    Column("place", "AT"),
    Column("topic", "TOPIC"),
    Column("state", "STATE"),
    Column("newMsgId", "SENT AS"),
    Column("error", "ERROR"),
)


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Examine dead letters, the messages that a group gave up, and resend them.

    \b
    kerolox dlq list
    kerolox dlq resend shop --grep timeout --dry-run
    kerolox dlq export shop > dead.ndjson
    """


@dlq.command("list")
@output_option
@name_server_option
def list_command(output: str, name_server: str) -> None:
    """Print the groups that have dead letters: how many wait, and how many are done.

    A letter is done when it was sent again, or purged. It stays in the queue all the same.
    """

    rows = [
        {
            "group": each.group,
            "messages": each.messages,
            "waiting": each.waiting,
            "done": each.messages - each.waiting,
            "lastUpdateTimestamp": each.last_update_ms,
        }
        for each in on_cluster(name_server, lambda admin: admin.dead_letter_summaries())
    ]
    columns = (
        Column("group", "GROUP"),
        number_column("waiting", "WAITING"),
        number_column("done", "DONE"),
        time_column("lastUpdateTimestamp", "LAST ONE"),
    )
    show_rows(rows, columns, output)
    if is_text(output) and not rows:
        complain("kerolox: no group has dead letters")


@dlq.command("show")
@click.argument("group", shell_complete=completing.groups)
@range_options
@grep_option
@click.option("--waiting", is_flag=True, help="Only those that are not done.")
@count_option()
@body_option
@output_option
@name_server_option
def show_command(
    group: str,
    start: Position,
    stop: Position,
    grep: str | None,
    waiting: bool,
    count: int,
    body: str,
    output: str,
    name_server: str,
) -> None:
    """Print the dead letters of GROUP: why they are dead, how often they were tried, their ids."""

    has = searching(grep)

    async def work(admin: Admin) -> list[dict[str, object]]:
        queues = {each.queue: each for each in await admin.dead_letter_queues(group)}

        def is_wanted(message: MessageExt) -> bool:
            return has(message) and not (waiting and _is_done(queues, message))

        source = admin.dead_letters(group, start=start, stop=stop)
        found, _ = await first_matching(source, is_wanted, count)
        return [_letter_row(queues, each, body) for each in found]

    rows = on_cluster(name_server, work)
    columns = (
        time_column("storeTimestamp", "SINCE"),
        Column("place", "AT"),
        Column("msgId", "MESSAGE"),
        Column("originTopic", "TOPIC"),
        number_column("tries", "TRIES"),
        Column("state", "STATE"),
        Column("reason", "REASON"),
        Column("keys", "KEY"),
        Column("bodyShown", "BODY"),
    )
    if is_text(output):
        shown = {"bodyShown": ""}
        rows = [
            {**shown, **row, "bodyShown": row.get("bodyText", row.get("bodyBase64", ""))}
            for row in rows
        ]
    else:
        rows = [{k: v for k, v in row.items() if k != "bodyText"} for row in rows]
    show_rows(rows, columns, output)
    if is_text(output) and not rows:
        waits = " that waits" if waiting else ""
        complain(f"kerolox: group {group} has no dead letter{waits} there")
    elif is_text(output) and len(rows) == count:
        complain("kerolox: there may be more (--count)")


def _letter_row(
    queues: Mapping[MessageQueue, DeadLetterQueue], message: MessageExt, body: str
) -> dict[str, object]:
    return {
        **message_row(message, body),
        "place": _place(message),
        "originTopic": message.properties.get(PropertyKey.RETRY_TOPIC, ""),
        "reason": message.properties.get(DEAD_LETTER_REASON, ""),
        "tries": message.reconsume_times,
        "state": "done" if _is_done(queues, message) else "waiting",
        "bodyText": body_text(message.body, body),
    }


def _is_done(queues: Mapping[MessageQueue, DeadLetterQueue], message: MessageExt) -> bool:
    queue = queues.get(message.queue)
    return queue is not None and queue.is_done(message)


def _place(message: MessageExt) -> str:
    return f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"


@dlq.command("export")
@click.argument("group", shell_complete=completing.groups)
@range_options
@body_option
@name_server_option
def export_command(
    group: str, start: Position, stop: Position, body: str, name_server: str
) -> None:
    """Print all dead letters of GROUP as JSON, a line each."""

    async def work(admin: Admin) -> None:
        async for each in admin.dead_letters(group, start=start, stop=stop):
            show_messages([each], body, NDJSON)
        sys.stdout.flush()

    on_cluster(name_server, work)


@dlq.command("resend")
@click.argument("group", shell_complete=completing.groups)
@click.argument("message_ids", nargs=-1, metavar="[ID]...")
@range_options
@grep_option
@click.option("--count", type=click.IntRange(min=1), help="Only so many.  [default: all]")
@click.option("--again", is_flag=True, help="Also those that were sent again before, or purged.")
@click.option("--to-topic", is_flag=True, help="To the topic: all its groups get the messages.")
@consent_options
@output_option
@name_server_option
def resend_command(
    group: str,
    message_ids: tuple[str, ...],
    start: Position,
    stop: Position,
    grep: str | None,
    count: int | None,
    again: bool,
    to_topic: bool,
    consent: Consent,
    output: str,
    name_server: str,
) -> int:
    """Resend dead letters to GROUP: those with the IDs, or all that the options choose.

    Each is sent once: its broker keeps that it was, and a further call goes on with the others.
    What became of each is a line. The exit code is 1 when one of them was not sent.

    Says first which ones, and asks on a terminal; elsewhere it needs --yes.
    """
    work = _Resending(group, frozenset(message_ids), output)

    def sent(*, dry_run: bool) -> None:
        async def go(admin: Admin) -> None:

            work.waiting = sum(each.waiting for each in await admin.dead_letter_queues(group))
            found = admin.resend_dead_letters(
                group,
                start=start,
                stop=stop,
                wanted=_choosing(searching(grep), set(message_ids)),
                max_messages=count,
                again=again,
                tell_done=bool(message_ids),
                to_topic=to_topic,
                dry_run=dry_run,
            )
            async for each in found:
                if not work.add(each):
                    break

        work.begin(dry_run=dry_run)
        try:
            on_cluster(name_server, go, doing=work.status)
        except BaseException:
            work.end(is_whole=False)
            raise
        work.end()

    if not consent.yes:
        sent(dry_run=True)
        if not work.chosen or not confirm(
            f"Send {counted(work.chosen, 'dead letter')} again?", consent, output, name_server
        ):
            return work.exit_code()
    sent(dry_run=False)
    return work.exit_code()


class _Resending:
    """What was done, and its lines as they come."""

    def __init__(self, group: str, ids: frozenset[str], output: str) -> None:
        self._group, self._ids, self._output = group, ids, output
        self.waiting = self.chosen = 0

    def status(self) -> str:
        """What is done now, for a terminal."""
        if self._is_plan:
            return f"{counted(self.chosen, 'dead letter')} found"
        return f"{self._counts['sent']} of {counted(self.waiting, 'dead letter')} sent"

    def begin(self, *, dry_run: bool) -> None:
        self._pages = RowPages(RESENT_COLUMNS, self._output)
        self._is_plan = dry_run
        self._missing = set(self._ids)
        self._failed_in_a_row = 0
        self._counts = dict.fromkeys(("chosen", "sent", "failed", "done before", "not marked"), 0)

    def add(self, letter: ResentLetter) -> bool:
        """Whether to go on."""
        message = letter.message
        self._counts[letter.state] += 1
        self._counts["not marked"] += letter.state == "sent" and bool(letter.error)
        self.chosen = self._counts["chosen"]
        self._missing -= {message.message_id, message.offset_message_id}
        # A plan for people is no longer than they read.
        if not (self._is_plan and is_text(self._output) and self.chosen > MESSAGES_SHOWN):
            self._pages.add(
                {
                    "msgId": message.message_id,
                    "offsetMsgId": message.offset_message_id,
                    "place": _place(message),
                    "topic": letter.topic,
                    "state": letter.state,
                    "newMsgId": letter.result.message_id if letter.result else "",
                    "error": letter.error,
                }
            )
        sent = self._counts["sent"]
        if letter.state == "sent" and sent % PROGRESS_EVERY == 0:
            complain(f"kerolox: {sent} of {self.waiting} dead letters sent")
        self._failed_in_a_row = self._failed_in_a_row + 1 if letter.state == "failed" else 0
        return self._failed_in_a_row < FAILURES_MAX

    def end(self, *, is_whole: bool = True) -> None:
        """Print what is left, and how far it is. ``is_whole``: nothing broke it off."""
        self._pages.end()
        counts = self._counts
        if self._is_plan:
            if is_text(self._output) and self.chosen > MESSAGES_SHOWN:
                print_line(f"… and {self.chosen - MESSAGES_SHOWN} more")
        elif counts["sent"] or counts["failed"]:
            failed = f", {counts['failed']} failed" if counts["failed"] else ""
            left = max(self.waiting - counts["sent"], 0)
            more = f"; {left} wait: the same command goes on with them" if left else ""
            complain(f"kerolox: {counted(counts['sent'], 'dead letter')} sent{failed}{more}")
        if self._failed_in_a_row >= FAILURES_MAX:
            complain(f"kerolox: {FAILURES_MAX} in a row failed, so no more are tried")
        if not is_whole:
            return
        if not self._ids and not any(counts.values()):
            complain(f"kerolox: group {self._group} has no dead letter that waits and fits")
        for each in sorted(self._missing):
            complain(f"kerolox: group {self._group} has no dead letter {each} in that range")
        if counts["done before"]:
            complain(
                f"kerolox: {counts['done before']} were sent again before, or purged; --again sends"
                " them once more"
            )

    def exit_code(self) -> int:
        counts = self._counts
        return int(bool(self._missing or counts["failed"] or counts["not marked"]))


@dlq.command("purge")
@click.argument("group", shell_complete=completing.groups)
@click.option(
    "--until",
    "stop",
    type=PositionType(),
    metavar="POSITION",
    help="Only those before, for example 7d: older than seven days.",
)
@consent_options
@output_option
@name_server_option
def purge_command(
    group: str, stop: Position | None, consent: Consent, output: str, name_server: str
) -> None:
    """Mark the dead letters of GROUP as done: nothing counts them, and `resend` leaves them out.

    The letters stay in their queue until the broker deletes their part of the log, as it does with
    all messages; `resend --again` still sends them.

    Says first how many, and asks on a terminal; elsewhere it needs --yes.
    """

    columns = (
        Column("queue", "QUEUE"),
        number_column("marked", "MARKED"),
        number_column("waiting", "STILL WAITING"),
    )

    def purged(*, dry_run: bool) -> list[dict[str, object]]:
        queues = on_cluster(
            name_server, lambda admin: admin.purge_dead_letters(group, stop=stop, dry_run=dry_run)
        )
        return [
            {
                "queue": f"{each.before.queue.broker_name}/{each.before.queue.queue_id}",
                "marked": each.marked,
                "waiting": each.before.waiting - each.marked,
                "done": not dry_run,
            }
            for each in queues
        ]

    nothing = f"kerolox: group {group} has no dead letter that waits there"
    if not consent.yes:
        rows = purged(dry_run=True)
        show_rows(rows, columns, output)
        count = sum(int(str(row["marked"])) for row in rows)
        if not count:
            complain(nothing)
            return
        if not confirm(
            f"Mark {counted(count, 'dead letter')} as done?", consent, output, name_server
        ):
            return
    rows = purged(dry_run=False)
    if not consent.yes:
        print_line("they are marked")
        return
    show_rows(rows, columns, output)
    if not any(row["marked"] for row in rows):
        complain(nothing)


def _choosing(has: Callable[[MessageExt], bool], ids: set[str]) -> Callable[[MessageExt], bool]:
    if not ids:
        return has
    return lambda each: has(each) and bool(ids & {each.message_id, each.offset_message_id})
