"""The clients: producers and consumers for asyncio; their blocking twins are in ``.sync``."""

from kerolox.client.aio import (
    ConsumeStatus,
    LocalTransaction,
    MessageListener,
    OneMessageListener,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    QueueSelector,
    TransactionCheck,
    TransactionProducer,
)
from kerolox.client.core.pull import PullResult, PullStatus
from kerolox.client.core.request_reply import ReplyMessage, create_reply
from kerolox.client.core.send import SendResult, SendStatus, split_batches
from kerolox.client.core.transaction import TransactionResult, TransactionState

__all__ = [
    "ConsumeStatus",
    "LocalTransaction",
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
    "ReplyMessage",
    "SendResult",
    "SendStatus",
    "TransactionCheck",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "create_reply",
    "split_batches",
]
