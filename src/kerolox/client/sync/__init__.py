"""The blocking clients: the same names and arguments as :mod:`kerolox.client`, without asyncio.

Each client runs its asyncio client in a thread of its own. Many threads may use it. Listeners are
plain functions that run in threads of the consumer.
"""

from kerolox.client.aio.producers.preparing import QueueSelector
from kerolox.client.aio.settings import (
    ClientSettings,
    LitePullConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from kerolox.client.core.consuming.offsets import OffsetStorage
from kerolox.client.core.consuming.outcome import AckIndex, ConsumeStatus, Outcome
from kerolox.client.core.consuming.pull import PullResult, PullStatus
from kerolox.client.core.consuming.rebalance import (
    AllocationStrategy,
    QueueChange,
    allocate_by_consistent_hash,
)
from kerolox.client.core.consuming.strategies import (
    allocate_by_config,
    allocate_by_machine_room,
    allocate_nearby,
)
from kerolox.client.core.hooks import (
    ConsumeContext,
    ConsumeHook,
    EndTransactionContext,
    EndTransactionHook,
    RpcHook,
    SendContext,
    SendHook,
)
from kerolox.client.core.sending.request_reply import ReplyMessage, create_reply
from kerolox.client.core.sending.selectors import (
    select_by_hash,
    select_by_machine_room,
    select_by_random,
)
from kerolox.client.core.sending.send import SendResult, SendStatus, split_batches
from kerolox.client.core.sending.transaction import TransactionResult, TransactionState
from kerolox.client.core.tracing.trace import TraceView
from kerolox.client.sync._generated import (
    Connection,
    LitePullConsumer,
    LocalTransaction,
    MessageListener,
    OneMessageListener,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueChangeCallback,
    QueuesCallback,
    TransactionCheck,
    TransactionProducer,
    connect,
)
from kerolox.client.sync.transactions import Transaction
from kerolox.filter.filter_class import FilterClass
from kerolox.message import ConsumeFromWhere, MessageModel
from kerolox.protocol.compression import CompressionType
from kerolox.security.credentials import Credentials
from kerolox.security.tls import Tls, TlsSettings

__all__ = [
    "AckIndex",
    "AllocationStrategy",
    "ClientSettings",
    "CompressionType",
    "Connection",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeStatus",
    "Credentials",
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterClass",
    "LitePullConsumer",
    "LitePullConsumerSettings",
    "LocalTransaction",
    "MessageListener",
    "MessageModel",
    "OffsetStorage",
    "OneMessageListener",
    "Outcome",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueChange",
    "QueueChangeCallback",
    "QueueSelector",
    "QueuesCallback",
    "ReplyMessage",
    "RpcHook",
    "SendContext",
    "SendHook",
    "SendResult",
    "SendStatus",
    "Tls",
    "TlsSettings",
    "TraceView",
    "Transaction",
    "TransactionCheck",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "connect",
    "create_reply",
    "select_by_hash",
    "select_by_machine_room",
    "select_by_random",
    "split_batches",
]
