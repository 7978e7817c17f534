"""``kerolox trace``: the way of one message as a timeline (``mqadmin queryMsgTraceById``)."""

from __future__ import annotations

import click

from kerolox.cli.cluster_options import name_server_option, topic_option
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import output_option
from kerolox.cli.rows import Column, number_column, show_rows, time_column
from kerolox.protocol.names import TRACE_TOPIC


@click.command(cls=Command)
@click.argument("message_id")
@topic_option(
    "Where clients write traces, if they were told to write them elsewhere.", default=TRACE_TOPIC
)
@output_option
@name_server_option
def trace(message_id: str, topic: str, output: str, name_server: str) -> None:
    """Print when the message with the producer's id MESSAGE_ID was sent, stored and consumed.

    Only clients with message traces switched on (enable_trace, enableMsgTrace) write them, within
    about a second.
    """
    from kerolox.cli.commands.messages.timeline import ask, timeline

    answers = on_cluster(name_server, lambda admin: ask(admin, message_id, topic))
    if not answers.views:
        raise click.ClickException(
            f"topic {topic} has no trace of message {message_id}; do its clients "
            "write some (enable_trace)?"
        )
    columns = (
        time_column("timestamp", "TIME"),
        number_column("afterMs", "AFTER MS"),
        Column("event", "EVENT"),
        Column("group", "GROUP"),
        Column("client", "CLIENT"),
        number_column("tookMs", "TOOK MS"),
        Column("note", "NOTE"),
    )
    show_rows(timeline(answers), columns, output)
