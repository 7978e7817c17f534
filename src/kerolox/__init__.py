"""Kerolox: a message broker, clients and a Spark source, compatible with RocketMQ 4.x."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.message import Message, MessageExt, MessageId, MessageQueue

if TYPE_CHECKING:
    from kerolox.client import Producer, PullConsumer, PushConsumer

__all__ = [
    "Message",
    "MessageExt",
    "MessageId",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "__version__",
]

__version__ = "0.1.0"

_CLIENTS = frozenset(("Producer", "PullConsumer", "PushConsumer"))


def __getattr__(name: str) -> object:
    """The asyncio clients, imported when they are first asked for, so that commands start fast."""
    if name in _CLIENTS:
        from kerolox import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
