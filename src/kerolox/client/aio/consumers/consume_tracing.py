"""The traces of a consumer, and the hook that writes them."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from kerolox.client.aio.producers.producer import Producer
from kerolox.client.aio.producers.tracing import TraceDispatcher, trace_producer
from kerolox.client.core.sending.unique_id import UniqueIdFactory

if TYPE_CHECKING:
    from kerolox.client.aio.consumer_settings import LitePullConsumerSettings, PushConsumerSettings
    from kerolox.client.core.hooks import ConsumeHook


def consume_tracing(
    group: str,
    name_servers: tuple[str, ...],
    ip: str,
    settings: PushConsumerSettings | LitePullConsumerSettings,
) -> tuple[TraceDispatcher | None, tuple[ConsumeHook, ...]]:
    """What sends the traces, if there are any, and all hooks of the consumer; ``group``: as the
    user named it, ``ip``: our address.
    """
    if not settings.enable_trace:
        return None, settings.consume_hooks
    tracing = TraceDispatcher(
        lambda: trace_producer(Producer, group, "CONSUME", ";".join(name_servers), settings),
        settings.trace_topic,
        settings.on_failure,
    )
    ids = UniqueIdFactory(ip, os.getpid(), secrets.randbits(32))
    return tracing, (*settings.consume_hooks, tracing.hook(ids))
