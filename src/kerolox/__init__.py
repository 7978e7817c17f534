"""Kerolox: a message broker, clients and a Spark source, compatible with RocketMQ 4.x."""

from kerolox.message import Message, MessageExt, MessageId, MessageQueue

__all__ = ["Message", "MessageExt", "MessageId", "MessageQueue", "__version__"]

__version__ = "0.1.0"
