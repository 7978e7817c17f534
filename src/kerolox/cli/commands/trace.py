"""``kerolox trace``: what clients told of one message (``mqadmin queryMsgTraceById``)."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import name_server_option, on_cluster
from kerolox.cli.output import output_option, print_json, print_line
from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
)
from kerolox.protocol.names import TRACE_TOPIC
from kerolox.text import time_text

if TYPE_CHECKING:
    from kerolox.client.core.tracing.trace import TraceView


@click.command()
@click.argument("message_id")
@click.option(
    "--topic",
    default=TRACE_TOPIC,
    show_default=True,
    help="Where clients write traces, if they were told to write them elsewhere.",
)
@output_option
@name_server_option
def trace(message_id: str, topic: str, output: str, name_server: str) -> None:
    """Print who sent and who consumed the message with the producer's id MESSAGE_ID.

    Only clients with message traces switched on tell of it; each does so within about a second.
    """
    from kerolox.admin import message_traces

    views = on_cluster(name_server, lambda access: message_traces(access, message_id, topic=topic))
    if not views:
        raise click.ClickException(
            f"topic {topic} has no trace of message {message_id}; do its clients write traces?"
        )
    for view in views:
        if output == "json":
            print_json(_as_json(view))
        else:
            print_line(_text_line(view), output)


def _text_line(view: TraceView) -> str:
    record = view.trace
    parts = [time_text(record.timestamp_ms), f"{_kind(view):<14}"]
    parts.append(f"group={record.group} client={view.client_host}")
    match record:
        case PubTrace():
            status = "success" if record.is_success else "failed"
            parts.append(
                f"topic={record.topic} type={record.message_type.name} broker={record.store_host}"
                f" bytes={record.body_bytes} ms={record.cost_ms} {status}"
            )
        case SubBeforeTrace():
            parts.append(f"retries={record.retry_times}")
        case SubAfterTrace():
            parts.append(f"ms={record.cost_ms} {record.return_type.name}")
        case EndTransactionTrace():
            how = " after a check" if record.is_from_check else ""
            parts.append(f"topic={record.topic} {record.state.name}{how}")
    return "  ".join(parts)


def _as_json(view: TraceView) -> dict[str, object]:
    fields = {
        name: value.name if isinstance(value, Enum) else value
        for name, value in dataclasses.asdict(view.trace).items()
    }
    return {"type": _kind(view), **fields, "client_host": view.client_host}


def _kind(view: TraceView) -> str:
    """``TraceType`` of RocketMQ."""
    return type(view.trace).__name__.removesuffix("Trace")
