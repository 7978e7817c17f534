"""The clients for asyncio."""

from kerolox.client.aio.consumers.consuming import ConsumeStatus, MessageListener
from kerolox.client.aio.consumers.pull_consumer import PullConsumer
from kerolox.client.aio.consumers.push_consumer import OneMessageListener, PushConsumer
from kerolox.client.aio.producers.producer import Producer, QueueSelector
from kerolox.client.aio.producers.transaction import (
    LocalTransaction,
    TransactionCheck,
    TransactionProducer,
)
from kerolox.client.aio.settings import (
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
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
