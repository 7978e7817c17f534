"""The public names of ``kerolox``, ``kerolox.client`` and ``kerolox.client.sync``: the one list.

The three packages import a name when it is first asked for. Type checkers read the stubs beside
them (``__init__.pyi``), which ``tools/generate_names.py`` makes of this list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

_BLOCKING = "kerolox.client.sync._generated"

_CLIENTS = {
    "kerolox.client.aio.connection": ("Connection", "connect"),
    "kerolox.client.aio.consumers.lite_pull_consumer": ("LitePullConsumer",),
    "kerolox.client.aio.consumers.pull_consumer": ("PullConsumer",),
    "kerolox.client.aio.consumers.push.listening": ("MessageListener", "OneMessageListener"),
    "kerolox.client.aio.consumers.push_consumer": ("PushConsumer",),
    "kerolox.client.aio.consumers.queue_events": ("QueueChangeCallback", "QueuesCallback"),
    "kerolox.client.aio.producers.open_transaction": ("Transaction",),
    "kerolox.client.aio.producers.producer": ("Producer",),
    "kerolox.client.aio.producers.transaction": (
        "LocalTransaction",
        "TransactionCheck",
        "TransactionProducer",
    ),
}
"""By module: what ``kerolox.client.sync`` has a blocking counterpart of."""

_OF_BOTH = {
    "kerolox.client.aio.producers.preparing": ("QueueSelector",),
    "kerolox.client.aio.settings": (
        "ClientSettings",
        "LitePullConsumerSettings",
        "ProducerSettings",
        "PullConsumerSettings",
        "PushConsumerSettings",
    ),
    "kerolox.client.core.consuming.offsets": ("OffsetStorage",),
    "kerolox.client.core.consuming.outcome": ("AckIndex", "ConsumeStatus", "Outcome"),
    "kerolox.client.core.consuming.pull": ("PullResult", "PullStatus"),
    "kerolox.client.core.consuming.rebalance": (
        "AllocationStrategy",
        "QueueChange",
        "allocate_by_consistent_hash",
    ),
    "kerolox.client.core.consuming.strategies": (
        "allocate_by_config",
        "allocate_by_machine_room",
        "allocate_nearby",
    ),
    "kerolox.client.core.hooks": (
        "ConsumeContext",
        "ConsumeHook",
        "EndTransactionContext",
        "EndTransactionHook",
        "RpcHook",
        "SendContext",
        "SendHook",
    ),
    "kerolox.client.core.sending.request_reply": ("ReplyMessage", "create_reply"),
    "kerolox.client.core.sending.queue_choice": (
        "select_by_hash",
        "select_by_machine_room",
        "select_by_random",
    ),
    "kerolox.client.core.sending.send": ("SendResult", "SendStatus", "split_batches"),
    "kerolox.client.core.sending.transaction": ("TransactionResult", "TransactionState"),
    "kerolox.client.core.tracing.trace": ("TraceView",),
    "kerolox.filter.filter_class": ("FilterClass",),
    "kerolox.message": ("ConsumeFromWhere", "MessageModel"),
    "kerolox.protocol.compression": ("CompressionType",),
    "kerolox.security.credentials": ("Credentials",),
    "kerolox.security.tls": ("Tls", "TlsSettings"),
}
"""By module: what both kinds of clients use."""

_MORE = {
    "kerolox.message": ("Message", "MessageExt", "MessageId", "MessageQueue"),
    "kerolox.release": ("__version__",),
}
"""What ``kerolox`` alone has, beside the errors, which ``kerolox.errors`` lists."""


def _origins(*tables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: module for table in tables for module, names in table.items() for name in names}


CLIENT = _origins(_CLIENTS, _OF_BOTH)
"""Name → module."""

SYNC = dict.fromkeys(_origins(_CLIENTS), _BLOCKING) | _origins(_OF_BOTH)

KEROLOX = CLIENT | _origins(_MORE)


def importer(package: str, origins: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package: a public name, imported now."""

    def get(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(origins[name]), name)

    return get
