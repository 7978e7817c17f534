"""The clients: producers and consumers for asyncio; their blocking twins are in ``.sync``."""

from kerolox.client.aio import (
    ConsumeStatus,
    MessageListener,
    OneMessageListener,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    QueueSelector,
)
from kerolox.client.core.pull import PullResult, PullStatus
from kerolox.client.core.send import SendResult, SendStatus, split_batches

__all__ = [
    "ConsumeStatus",
    "MessageListener",
    "OneMessageListener",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueSelector",
    "SendResult",
    "SendStatus",
    "split_batches",
]
