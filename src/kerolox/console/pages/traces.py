"""Message traces: what clients told of one message, as a timeline."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceView,
)
from kerolox.console.visit import Visit
from kerolox.errors import TopicRouteNotFoundError
from kerolox.protocol.names import TRACE_TOPIC

__all__ = ["Span", "show", "spans_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of the timeline."""

    kind: str
    """``send``, ``consume``, ``commit`` or ``rollback``."""
    group: str
    client: str
    begin_ms: int
    took_ms: int | None
    """None: its end was not reported."""
    is_ok: bool
    note: str


async def show(visit: Visit) -> Response:
    """A form, and the trace of the message that it names."""
    message_id, topic = visit.asked("id"), visit.asked("topic") or TRACE_TOPIC
    spans, fault = [], ""
    if message_id:
        try:
            spans = spans_of(await visit.admin.message_traces(message_id, topic=topic))
        except TopicRouteNotFoundError:
            fault = f"There is no topic {topic}: brokers make it with traceTopicEnable=true."
        if not spans and not fault:
            fault = "No trace of it. Only clients that write traces tell of their messages."
    begin = min((span.begin_ms for span in spans), default=0)
    end = max((span.begin_ms + (span.took_ms or 0) for span in spans), default=0)
    return visit.page(
        "trace.html",
        message_id=message_id,
        trace_topic=topic,
        default_topic=TRACE_TOPIC,
        spans=spans,
        begin=begin,
        length=max(end - begin, 1),
        fault=fault,
    )


def spans_of(views: list[TraceView]) -> list[Span]:
    """Sends and deliveries in the order of their times; the begin and the end of a delivery are
    told by two records of one request."""
    ends = {
        view.trace.request_id: view.trace for view in views if isinstance(view.trace, SubAfterTrace)
    }
    spans = []
    for view in views:
        record = view.trace
        match record:
            case PubTrace():
                spans.append(
                    Span(
                        *("send", record.group, view.client_host, record.timestamp_ms),
                        *(record.cost_ms, record.is_success),
                        f"to {record.topic} at {record.store_host}, {record.body_bytes} bytes",
                    )
                )
            case EndTransactionTrace():
                checked = ", after a check" if record.is_from_check else ""
                spans.append(
                    Span(
                        *("transaction", record.group, view.client_host, record.timestamp_ms),
                        *(0, True, record.state.name + checked),
                    )
                )
            case SubBeforeTrace():
                spans.append(_delivery(view, record, ends.get(record.request_id)))
    return spans


def _delivery(view: TraceView, begin: SubBeforeTrace, end: SubAfterTrace | None) -> Span:
    tries = f"retry {begin.retry_times}" if begin.retry_times else "first delivery"
    if end is None:
        return Span(
            *("consume", begin.group, view.client_host, begin.timestamp_ms),
            *(None, True, f"{tries}, its end is not reported"),
        )
    return Span(
        *("consume", begin.group, view.client_host, begin.timestamp_ms),
        *(end.cost_ms, end.is_success, f"{tries}, {end.return_type.name}"),
    )
