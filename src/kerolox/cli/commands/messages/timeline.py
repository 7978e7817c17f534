"""What happened to a message, of its traces."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.hooks import ConsumeReturnType
from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
)
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.admin import Admin
    from kerolox.client.core.tracing.trace import TraceView
    from kerolox.message import MessageExt


class TraceAnswers(NamedTuple):
    """What a cluster knows of a message."""

    views: list[TraceView]
    message: MessageExt | None
    """As it is stored; None: it is not there any more, or nobody said in which topic it is."""


async def ask(admin: Admin, message_id: str, topic: str) -> TraceAnswers:
    """Read the traces of a message and, where they say its topic, the message."""
    views = await admin.message_traces(message_id, topic=topic)
    own = next((each.trace.topic for each in views if isinstance(each.trace, PubTrace)), "")
    try:
        message = await admin.message_by_id(message_id, topic=own) if own else None
    except KeroloxError:
        message = None
    return TraceAnswers(views, message)


def timeline(answers: TraceAnswers) -> list[dict[str, object]]:
    """What happened, in order, each with the milliseconds since the first."""
    began: dict[tuple[str, str], int] = {}
    for view in answers.views:
        if isinstance(view.trace, SubBeforeTrace):
            began[view.client_host, view.trace.request_id] = view.trace.timestamp_ms
    found = [_event(view, began) for view in answers.views]
    if answers.message is not None:
        found.append(_stored(answers.message))
    # The clocks of machines differ; what is reported of one moment stands as it must have been.
    found.sort(key=lambda event: (event["timestamp"], _ORDER[str(event["type"])]))
    first = found[0]["timestamp"]
    assert isinstance(first, int)
    for event in found:
        at = event["timestamp"]
        assert isinstance(at, int)
        event["afterMs"] = at - first
    return found


_ORDER = {"Pub": 0, "Stored": 1, "EndTransaction": 2, "SubBefore": 3, "SubAfter": 4}


def _event(view: TraceView, began: dict[tuple[str, str], int]) -> dict[str, object]:
    record = view.trace
    at, took = record.timestamp_ms, None
    match record:
        case PubTrace():
            event, took = ("sent" if record.is_success else "send failed"), record.cost_ms
            note = (
                f"{record.message_type.name}, {record.body_bytes} bytes of topic {record.topic} to "
                f"{record.store_host}"
            )
        case SubBeforeTrace():
            event = "consuming"
            note = f"retry {record.retry_times}" if record.retry_times else ""
        case SubAfterTrace():
            is_done = record.return_type is ConsumeReturnType.SUCCESS
            event, took = ("consumed" if is_done else "not consumed"), record.cost_ms
            note = record.return_type.name
            # Clients before 4.9 don't say when it ended.
            at = at or began.get((view.client_host, record.request_id), 0) + took
        case EndTransactionTrace():
            event = f"transaction: {record.state.name.lower()}"
            note = "after a question of the broker" if record.is_from_check else ""
    fields = {
        name: value.name if isinstance(value, Enum) else value
        for name, value in dataclasses.asdict(record).items()
    }
    return {
        "timestamp": at,
        "afterMs": 0,
        "type": type(record).__name__.removesuffix("Trace"),
        "event": event,
        "group": record.group,
        "client": view.client_host,
        "tookMs": took,
        "note": note,
        "details": fields,
    }


def _stored(message: MessageExt) -> dict[str, object]:
    place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    return {
        "timestamp": message.store_timestamp,
        "afterMs": 0,
        "type": "Stored",
        "event": "stored",
        "group": "",
        "client": "",
        "tookMs": None,
        "note": place,
        "details": {"topic": message.topic, "offset_message_id": message.offset_message_id},
    }
