"""Kerolox: a message broker, clients and a Spark source, compatible with RocketMQ 4.x.

All that users of the asyncio clients need can be imported from here: messages, clients, settings,
statuses and errors. :mod:`kerolox.client.sync` has the blocking clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import (
    BrokerBusyError,
    BrokerError,
    BrokerSystemError,
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    ConsumerNotOnlineError,
    GroupNotFoundError,
    KeroloxError,
    LocalProtocolError,
    MessageIllegalError,
    MessageRejectedError,
    NoPermissionError,
    NotFoundError,
    RemoteProtocolError,
    RemotingError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    StoreError,
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    TopicExistsError,
    TopicNotFoundError,
    TopicRouteNotFoundError,
)
from kerolox.message import Message, MessageExt, MessageId, MessageQueue

if TYPE_CHECKING:
    from kerolox.client import (
        AllocationStrategy,
        ConsumeContext,
        ConsumeFromWhere,
        ConsumeHook,
        ConsumeStatus,
        EndTransactionContext,
        EndTransactionHook,
        LocalTransaction,
        MessageListener,
        MessageModel,
        OneMessageListener,
        Producer,
        ProducerSettings,
        PullConsumer,
        PullConsumerSettings,
        PullResult,
        PullStatus,
        PushConsumer,
        PushConsumerSettings,
        QueueSelector,
        ReplyMessage,
        RpcHook,
        SendContext,
        SendHook,
        SendResult,
        SendStatus,
        TraceView,
        TransactionCheck,
        TransactionProducer,
        TransactionResult,
        TransactionState,
        allocate_by_config,
        allocate_by_consistent_hash,
        allocate_by_machine_room,
        allocate_nearby,
        create_reply,
        split_batches,
    )

__all__ = [
    "AllocationStrategy",
    "BrokerBusyError",
    "BrokerError",
    "BrokerSystemError",
    "ClientClosedError",
    "ClientError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeStatus",
    "ConsumerNotOnlineError",
    "EndTransactionContext",
    "EndTransactionHook",
    "GroupNotFoundError",
    "KeroloxError",
    "LocalProtocolError",
    "LocalTransaction",
    "Message",
    "MessageExt",
    "MessageId",
    "MessageIllegalError",
    "MessageListener",
    "MessageModel",
    "MessageQueue",
    "MessageRejectedError",
    "NoPermissionError",
    "NotFoundError",
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
    "RemoteProtocolError",
    "RemotingError",
    "ReplyMessage",
    "RequestCodeNotSupportedError",
    "RequestTimeoutError",
    "RpcHook",
    "SendContext",
    "SendHook",
    "SendResult",
    "SendStatus",
    "ServiceNotAvailableError",
    "StoreError",
    "SubscriptionNotFoundError",
    "SubscriptionNotLatestError",
    "SubscriptionParseError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicRouteNotFoundError",
    "TraceView",
    "TransactionCheck",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "__version__",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "create_reply",
    "split_batches",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """What the clients have, imported when it is first asked for, so that commands start fast."""
    if name in __all__:
        from kerolox import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
