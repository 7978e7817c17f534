"""Reading the traces that clients of other languages wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client import Producer
from kerolox.errors import TopicRouteNotFoundError
from kerolox.protocol.names import TRACE_TOPIC
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client.core.tracing.trace import TraceRecord
    from tests.support.servers.up import Up

__all__ = ["traces_of"]


async def traces_of(
    up: Up, message_id: str, count: int, *, topic: str = TRACE_TOPIC
) -> list[TraceRecord]:
    """At least ``count`` records of a message. Clients in Java tell what they have every 5 s."""
    found: list[TraceRecord] = []

    async def enough() -> bool:
        try:
            views = await producer.query_trace(message_id, topic=topic)
        except TopicRouteNotFoundError:
            # A topic of its own comes with the first trace in it.
            return False
        found[:] = [view.trace for view in views]
        return len(found) >= count

    async with Producer("reader", up.namesrv) as producer:
        await until(enough, what=f"{count} traces of {message_id}")
    return found
