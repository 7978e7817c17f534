"""The clients: producers and consumers for asyncio; their blocking counterparts are in ``.sync``.

A name is imported on its first use. So commands and the workers of Spark can import modules of
:mod:`kerolox.client.core` without the clients, and start faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.client.exported import (
        AckIndex,
        AllocationStrategy,
        ClientSettings,
        CompressionType,
        Connection,
        ConsumeContext,
        ConsumeFromWhere,
        ConsumeHook,
        ConsumeStatus,
        Credentials,
        EndTransactionContext,
        EndTransactionHook,
        FilterClass,
        LitePullConsumer,
        LitePullConsumerSettings,
        LocalTransaction,
        MessageListener,
        MessageModel,
        OffsetStorage,
        OneMessageListener,
        Outcome,
        Producer,
        ProducerSettings,
        PullConsumer,
        PullConsumerSettings,
        PullResult,
        PullStatus,
        PushConsumer,
        PushConsumerSettings,
        QueueChange,
        QueueChangeCallback,
        QueuesCallback,
        QueueSelector,
        ReplyMessage,
        RpcHook,
        SendContext,
        SendHook,
        SendResult,
        SendStatus,
        Tls,
        TlsSettings,
        TraceView,
        Transaction,
        TransactionCheck,
        TransactionProducer,
        TransactionResult,
        TransactionState,
        allocate_by_config,
        allocate_by_consistent_hash,
        allocate_by_machine_room,
        allocate_nearby,
        connect,
        create_reply,
        select_by_hash,
        select_by_machine_room,
        select_by_random,
        split_batches,
    )

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


def __getattr__(name: str) -> object:
    """A public name, imported now."""
    if name in __all__:
        from kerolox.client import exported

        return getattr(exported, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
