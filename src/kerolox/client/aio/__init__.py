"""The clients for asyncio."""

from kerolox.client.aio.consuming import ConsumeStatus, MessageListener
from kerolox.client.aio.producer import Producer, QueueSelector
from kerolox.client.aio.pull_consumer import PullConsumer
from kerolox.client.aio.push_consumer import OneMessageListener, PushConsumer
from kerolox.client.aio.settings import (
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from kerolox.client.aio.transaction import (
    LocalTransaction,
    TransactionCheck,
    TransactionProducer,
)

__all__ = [
    "ConsumeStatus",
    "LocalTransaction",
    "MessageListener",
    "OneMessageListener",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueSelector",
    "TransactionCheck",
    "TransactionProducer",
]
