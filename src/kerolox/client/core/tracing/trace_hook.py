"""The hook that writes message traces (``SendMessageTraceHookImpl`` and its kin).

Left out are: messages of the trace topic itself, sends that a broker did not answer, one-way sends,
and what a broker with ``traceOn=false`` stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kerolox.client.core.hooks import (
    ConsumeContext,
    ConsumeHook,
    EndTransactionContext,
    EndTransactionHook,
    SendContext,
    SendHook,
)
from kerolox.client.core.namespaces import without_namespace
from kerolox.client.core.tracing.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
)
from kerolox.message import PropertyKey
from kerolox.protocol.names import DEFAULT_REGION, TRACE_TOPIC

if TYPE_CHECKING:
    from kerolox.message import MessageExt

_START = "trace_start_ms"
_REQUEST = "trace_request"


class TraceHook(SendHook, ConsumeHook, EndTransactionHook):
    """Turns what a client does into trace records."""

    def __init__(
        self,
        append: Callable[[TraceRecord], None],
        *,
        now_ms: Callable[[], int],
        next_id: Callable[[], str],
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        """Nothing happens yet. ``append`` takes each record; it must not wait. ``next_id`` makes
        the ids that join the two records of one listener call. Messages of topics that start with
        ``trace_topic`` are not traced.
        """
        self._append = append
        self._now_ms = now_ms
        self._next_id = next_id
        self._trace_topic = trace_topic

    def before_send(self, context: SendContext) -> None:
        """Note the time."""
        context.notes[_START] = self._now_ms()

    def after_send(self, context: SendContext) -> None:
        """Tell of a message that is stored."""
        message, result = context.message, context.result
        start_ms = context.notes.get(_START)
        if result is None or not isinstance(start_ms, int) or not result.is_traced:
            return
        if message.topic.startswith(self._trace_topic):
            return
        namespace, properties = context.namespace, context.properties
        self._append(
            PubTrace(
                timestamp_ms=start_ms,
                region=result.region,
                group=without_namespace(namespace, context.group),
                topic=without_namespace(namespace, message.topic),
                message_id=result.message_id,
                tags=properties.get(PropertyKey.TAGS, ""),
                keys=properties.get(PropertyKey.KEYS, ""),
                store_host=context.broker_address,
                body_bytes=len(message.body),
                cost_ms=self._now_ms() - start_ms,
                message_type=context.message_type,
                offset_message_id=result.offset_message_id,
                is_success=result.is_ok,
            )
        )

    def before_consume(self, context: ConsumeContext) -> None:
        """Tell of each message that a listener is about to get."""
        traced = [m for m in context.messages if m.properties.get(PropertyKey.TRACE_ON) != "false"]
        if not traced:
            return
        start_ms, request_id = self._now_ms(), self._next_id()
        context.notes[_START] = start_ms
        context.notes[_REQUEST] = request_id, traced
        group = without_namespace(context.namespace, context.group)
        for message in traced:
            self._append(
                SubBeforeTrace(
                    timestamp_ms=start_ms,
                    region=message.properties.get(PropertyKey.MSG_REGION, ""),
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.keys,
                )
            )

    def after_consume(self, context: ConsumeContext) -> None:
        """Tell how the listener ended."""
        request = cast("tuple[str, list[MessageExt]] | None", context.notes.get(_REQUEST))
        if request is None:
            return
        request_id, traced = request
        now_ms = self._now_ms()
        cost_ms = (now_ms - cast("int", context.notes[_START])) // len(context.messages)
        group = without_namespace(context.namespace, context.group)
        for message in traced:
            self._append(
                SubAfterTrace(
                    request_id=request_id,
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    is_success=context.is_success,
                    keys=message.keys,
                    return_type=context.return_type,
                    timestamp_ms=now_ms,
                    group=group,
                )
            )

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Tell how a transaction ended."""
        if context.topic.startswith(self._trace_topic):
            return
        properties, namespace = context.properties, context.namespace
        self._append(
            EndTransactionTrace(
                timestamp_ms=self._now_ms(),
                region=properties.get(PropertyKey.MSG_REGION) or DEFAULT_REGION,
                group=without_namespace(namespace, context.group),
                topic=without_namespace(namespace, context.topic),
                message_id=context.message_id,
                tags=properties.get(PropertyKey.TAGS, ""),
                keys=properties.get(PropertyKey.KEYS, ""),
                store_host=context.broker_address,
                transaction_id=context.message_id,
                state=context.state,
                is_from_check=context.is_from_check,
            )
        )
